/** Answers about leases. A missing field or a wrong type makes an answer unreadable: nothing is guessed. */

import { Refused, durationOf, textOf } from "./errors.js";
import type { Mode } from "./sequencer.js";
import { Token } from "./token.js";

/** The wanted lock. `request` is the id by which the gateway knows this acquire, however often it is sent. */
export interface Wanted {
  readonly resource: string;
  readonly holder: string;
  readonly ttl: number;
  readonly mode: Mode;
  readonly request: string;
}

/** A lease, as the gateway last confirmed it. `validUntil` is by the client's clock, without a margin. */
export interface Grant {
  readonly token: Token;
  readonly lease: string;
  readonly sequencer: string | null;
  readonly validUntil: number;
}

/** Both become a part of later requests: a path and a header. */
const LEASE = /^[0-9A-Za-z-]{1,64}$/;
const SEQUENCER = /^[!-~]{1,1024}$/;

/** Return an answer that is about `resource`. Throws `Refused`: a proxy that changes paths makes another name of it. */
export function meant(view: unknown, resource: string): Readonly<Record<string, unknown>> {
  if (typeof view === "object" && view !== null && "resource" in view && view.resource === resource) {
    return { ...view };
  }
  throw new Refused(`The answer is not about ${resource}, which the gateway was asked about.`, 200, {
    advice: "A proxy on the way changes paths, or the server is not a fencing gateway (docs/fencing.md).",
  });
}

/** Read the answer to an acquire that was sent at `asked`. Throws `Refused`. */
export function granted(view: unknown, wanted: Wanted, asked: number): Grant {
  const answer = meant(view, wanted.resource);
  const lease = textOf(answer["lease"]);
  const sequencer = answer["sequencer"] ?? null;
  if (lease === null || !LEASE.test(lease)) throw unreadable(wanted.resource);
  if (sequencer !== null && !(typeof sequencer === "string" && SEQUENCER.test(sequencer))) {
    throw unreadable(wanted.resource);
  }
  return { token: tokenIn(answer, wanted.resource), lease, sequencer, validUntil: asked + lasting(answer, wanted) };
}

/** Read the answer to a renewal that was sent at `asked`. Throws `Refused`. Its token may be another one. */
export function renewed(view: unknown, grant: Grant, wanted: Wanted, asked: number): Grant {
  const answer = meant(view, wanted.resource);
  if (answer["lease"] !== grant.lease) throw unreadable(wanted.resource);
  return { ...grant, token: tokenIn(answer, wanted.resource), validUntil: asked + lasting(answer, wanted) };
}

/** A number is no token: JSON.parse rounds the large ones. */
function tokenIn(answer: Readonly<Record<string, unknown>>, resource: string): Token {
  try {
    return Token.parse(textOf(answer["token"]) ?? "");
  } catch {
    throw unreadable(resource);
  }
}

/** Return for how many seconds a lease lasts: never for longer than it was asked for. */
function lasting(answer: Readonly<Record<string, unknown>>, wanted: Wanted): number {
  const seconds = durationOf(answer["expires_in"]);
  if (seconds === null) throw unreadable(wanted.resource);
  return Math.min(seconds, wanted.ttl);
}

function unreadable(resource: string): Refused {
  return new Refused(`The answer about the lease of ${resource} cannot be read.`, 200, {
    advice: "A proxy on the way may change answers, or the server is not a fencing gateway.",
  });
}
