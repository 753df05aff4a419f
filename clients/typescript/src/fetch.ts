/** `fetch` under a lock: its headers on every request to the gateway, and on no other. */

import type { Api } from "./api.js";
import { OutcomeUnknown, Refused, TokenStale, Unavailable } from "./errors.js";
import { isOfTheFence, refusalOf } from "./refusals.js";
import { raced } from "./timers.js";

export type FencedFetch = (input: string | URL | Request, init?: RequestInit) => Promise<Response>;

/** A lock, as requests under it see it. */
export interface Shown {
  readonly signal: AbortSignal;
  headers(): Record<string, string>;
  check(): void;
  overtaken(refusal: TokenStale): void;
}

export const FENCED = ["fencing-token", "fencing-resource", "fencing-holder", "fencing-sequencer"];

const REDIRECTS = new Set([301, 302, 303, 307, 308]);
const READS = new Set(["GET", "HEAD", "OPTIONS"]);
/** No connection was made, so nothing was sent. */
const UNSENT = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN"]);

/** Return `fetch` for one lock. */
export function fencedFetch(lock: Shown, api: Api): FencedFetch {
  return async (input, init = {}) => {
    lock.check();
    const isRequest = input instanceof Request;
    const url = isRequest ? input.url : addressOf(input, api.url);
    const isOurs = new URL(url).origin === new URL(api.url).origin;
    const headers = new Headers(init.headers ?? (isRequest ? input.headers : undefined));
    const method = (init.method ?? (isRequest ? input.method : "GET")).toUpperCase();
    const outer = init.signal ?? (isRequest ? input.signal : null);
    const signal = AbortSignal.any(outer === null ? [lock.signal] : [lock.signal, outer]);
    const redirect = init.redirect ?? (isRequest ? input.redirect : "follow");
    if (isOurs) await raced(present(headers, lock, api), signal);
    else for (const name of FENCED) headers.delete(name);
    lock.check();

    let response: Response;
    try {
      // A redirect that is followed would show the lock to another host.
      const sent = { ...init, headers, signal, redirect: isOurs ? "manual" : redirect } as const;
      response = await api.fetch(isRequest ? input : url, sent);
    } catch (error) {
      signal.throwIfAborted();
      throw withoutAnswer(error, method, url);
    }
    if (!isOurs) return response;
    if (redirect !== "manual" && (response.type === "opaqueredirect" || REDIRECTS.has(response.status))) {
      await response.body?.cancel();
      throw new Refused("The answer is a redirect, which a request under a lock does not follow.", response.status, {
        advice: "Give the gateway's own address.",
      });
    }
    if (response.status === 412) await look(response, lock);
    return response;
  };
}

/** Add the lock to the headers of a request to the gateway. */
async function present(headers: Headers, lock: Shown, api: Api): Promise<void> {
  // A caller that holds several locks sends a list of its own.
  if (!headers.has("fencing-token")) {
    for (const [name, value] of Object.entries(lock.headers())) if (!headers.has(name)) headers.set(name, value);
  }
  if (!headers.has("authorization")) {
    const authorization = await api.authorization();
    if (authorization !== null) headers.set("authorization", authorization);
  }
}

/** Throw the refusal of the fence, after telling the lock. An ordinary 412 is the program's own affair. */
async function look(response: Response, lock: Shown): Promise<void> {
  const refusal = await refusalOf(response);
  if (refusal === null || !isOfTheFence(refusal)) return;
  if (refusal instanceof TokenStale) lock.overtaken(refusal);
  await response.body?.cancel();
  throw refusal;
}

function withoutAnswer(error: unknown, method: string, url: string): Error {
  const message = `${method} ${new URL(url).origin} got no answer: ${String(error)}.`;
  if (READS.has(method) || isUnsent(error)) return new Unavailable(message, { cause: error });
  return new OutcomeUnknown(message, { cause: error });
}

function isUnsent(error: unknown): boolean {
  const cause: unknown = error instanceof Error ? error.cause : null;
  return cause instanceof Error && "code" in cause && UNSENT.has(String(cause.code));
}

/** Return the whole address of a request: a path is the gateway's. */
function addressOf(input: string | URL, gateway: string): string {
  const text = String(input);
  if (/^[a-z][a-z0-9+.-]*:/i.test(text)) return text;
  return text.startsWith("/") ? gateway + text : `${gateway}/${text}`;
}
