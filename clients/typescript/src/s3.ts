/** S3 clients of the AWS SDK, version 3, that write under a lock: its headers are signed in, for each attempt. */

import type { FencingError } from "./errors.js";
import { TokenStale } from "./errors.js";
import { FENCED, type Shown } from "./fetch.js";
import { isOfTheFence, refusalOfElements } from "./refusals.js";

/* eslint-disable @typescript-eslint/no-explicit-any -- the types of the SDK are generic over all of its commands */

/** The part of the SDK's middleware stack that the plugin uses. This package depends on no part of the SDK. */
export interface S3Plugin {
  applyToStack(stack: any): void;
}

interface Stack {
  add(middleware: Middleware, options: object): void;
  addRelativeTo(middleware: Middleware, options: object): void;
}
type Handler = (args: any) => Promise<{ output: Record<string, unknown> }>;
type Middleware = (next: Handler) => Handler;

interface HttpRequest {
  protocol: string;
  hostname: string;
  port?: number;
  headers: Record<string, string>;
}

/** Thrown between the attempts of the SDK, which would take the cause of a `LockLost` for its own trouble. */
class Unsent extends Error {}

/** Return the plugin of one lock: `client.middlewareStack.use(plugin)`. */
export function s3Plugin(lock: Shown, url: string): S3Plugin {
  const gateway = new URL(url);
  const answers: Middleware = (next) => async (args) => {
    lock.check();
    try {
      const answer = await next(args);
      const errors = answer.output["Errors"];
      // One of several deletions may be refused alone.
      if (Array.isArray(errors)) for (const one of errors as unknown[]) note(elementsOf(one), 412, lock);
      return answer;
    } catch (error) {
      if (error instanceof Unsent) lock.check();
      if (isServiceError(error)) note(elementsOf(error), error.$metadata.httpStatusCode ?? 0, lock);
      throw error;
    }
  };
  const requests: Middleware = (next) => async (args: { request: HttpRequest }) => {
    try {
      lock.check();
    } catch {
      throw new Unsent("The lock is lost.");
    }
    const { request } = args;
    for (const name of Object.keys(request.headers)) {
      if (FENCED.includes(name.toLowerCase())) Reflect.deleteProperty(request.headers, name);
    }
    if (isFor(request, gateway)) Object.assign(request.headers, lock.headers());
    return await next(args);
  };
  return {
    applyToStack(stack: Stack) {
      stack.add(answers, { step: "initialize", priority: "high", name: "fencingGatewayAnswers", override: true });
      stack.addRelativeTo(requests, {
        relation: "before",
        toMiddleware: "awsAuthMiddleware",
        name: "fencingGatewayRequests",
        override: true,
      });
    },
  };
}

/** Return whether a request goes to the gateway. A bucket may stand in front of its name. */
function isFor(request: HttpRequest, gateway: URL): boolean {
  const port = request.port === undefined ? "" : `:${request.port}`;
  const target = new URL(`${request.protocol}//${request.hostname}${port}`);
  return (
    target.protocol === gateway.protocol &&
    target.port === gateway.port &&
    (target.hostname === gateway.hostname || target.hostname.endsWith(`.${gateway.hostname}`))
  );
}

function note(elements: Record<string, unknown>, status: number, lock: Shown): void {
  const refusal: FencingError = refusalOfElements(status, elements);
  if (!isOfTheFence(refusal)) return;
  if (refusal instanceof TokenStale) lock.overtaken(refusal);
  throw refusal;
}

interface ServiceError {
  readonly $metadata: { readonly httpStatusCode?: number };
}

function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && "$metadata" in error;
}

/** Return the elements of S3's error document, as the SDK hands them out. */
function elementsOf(error: unknown): Record<string, unknown> {
  if (typeof error !== "object" || error === null) return {};
  const own = Object.entries(error).filter(([name, value]) => name !== "name" && typeof value === "string");
  const known = error as { Code?: unknown; name?: unknown; message?: unknown; Message?: unknown };
  return { ...Object.fromEntries(own), Code: known.Code ?? known.name, Message: known.Message ?? known.message };
}
