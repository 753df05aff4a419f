/** The errors of locks and fenced requests: one class for each reaction of a program. */

export type Facts = Readonly<Record<string, unknown>>;

export interface Details {
  readonly code?: string;
  readonly advice?: string | null;
  readonly facts?: Facts;
  readonly cause?: unknown;
  readonly retryAfter?: number | null;
}

/** The base of all errors that this package throws on purpose. */
export class FencingError extends Error {
  /** What to do next. */
  readonly advice: string;
  /** The gateway's code, or "" if the error is not from the gateway. */
  readonly code: string;
  /** The machine-readable particulars of the answer. */
  readonly facts: Facts;
  /** Seconds that the answer asks the client to wait, if it does. */
  readonly retryAfter: number | null;
  /** Whether the same request may be sent again without a look at what has happened. */
  readonly retryable: boolean = false;

  constructor(message: string, details: Details = {}, advice = "") {
    const next = details.advice ?? advice;
    super(next === "" ? message : `${message} ${next}`, "cause" in details ? { cause: details.cause } : undefined);
    this.name = new.target.name;
    this.advice = next;
    this.code = details.code ?? "";
    this.facts = details.facts ?? {};
    this.retryAfter = details.retryAfter ?? null;
  }
}

/** The fence has refused the token. Nothing was written, and the refusal is on record. */
export class TokenStale extends FencingError {
  constructor(message: string, details: Details = {}) {
    super(message, details, "Stop: a newer holder has taken over, and trying again cannot succeed.");
  }
  get resource(): string | null {
    return textOf(this.facts["resource"]);
  }
  /** The token that was refused, as it was sent. */
  get token(): string | null {
    return textOf(this.facts["token"]);
  }
  /** The token that has overtaken it. */
  get fence(): string | null {
    return textOf(this.facts["fence"]);
  }
  /** The holder, or else the caller, that has raised the fence. */
  get raisedBy(): string | null {
    return textOf(this.facts["raised_by"]);
  }
  /** When the fence was raised (RFC 3339, by the database's clock). */
  get raisedAt(): string | null {
    return textOf(this.facts["raised_at"]);
  }
  /** The id of the refusal's record: `GET /v1/rejections`. */
  get rejection(): string | null {
    return textOf(this.facts["rejection"]);
  }
}

/**
 * Why a lock is lost: its time is over, a renewal was refused, the fence has refused a write, a renewal came back with
 * another token, the program has released it, or the lease is gone.
 */
export type LossReason = "late" | "refused" | "stale" | "token" | "released" | "gone";

/** The lock is not held any more. The `cause` is the refusal, or the trouble of the last renewal. */
export class LockLost extends FencingError {
  readonly reason: LossReason;

  constructor(message: string, details: Details = {}, reason: LossReason = "gone") {
    super(message, details, "Stop working under its token, and acquire the lock again.");
    this.reason = reason;
  }
}

/** The fence is ahead of a token just issued, although the lock service says that it is held: its counter was lost. */
export class IssuerWentBackwards extends FencingError {
  constructor(message: string, details: Details = {}) {
    super(
      message,
      details,
      "The counter of the lock service went back. Have an administrator start a new epoch of this resource, then " +
        "acquire again.",
    );
  }
}

/** Another holder has the lock, and kept it for the whole time to wait. */
export class NotAcquired extends FencingError {
  override readonly retryable = true;

  constructor(message: string, details: Details = {}) {
    super(message, details, "Try again later, or wait longer.");
  }
  get resource(): string {
    return textOf(this.facts["resource"]) ?? "";
  }
  /** The name of the holder, if it is known. */
  get holder(): string | null {
    return textOf(this.facts["holder"]);
  }
  /** Seconds until its lease ends without a renewal, if it is known. */
  get expiresIn(): number | null {
    return durationOf(this.facts["expires_in"]);
  }
  /** Whether it is this very holder, which shares the lock. */
  get own(): boolean {
    return this.facts["own"] === true;
  }
}

/** The gateway cannot be reached or cannot work just now. Nothing was done. */
export class Unavailable extends FencingError {
  override readonly retryable = true;

  constructor(message: string, details: Details = {}) {
    super(message, details, "Try again.");
  }
}

/** Whether the write took effect is not known. It takes no effect any more after the next acknowledged write. */
export class OutcomeUnknown extends FencingError {
  constructor(message: string, details: Details = {}) {
    super(message, details, "Read the current state, then write again with the same token.");
  }
}

/** The gateway's policy refuses the token as one that cannot have been issued. */
export class TokenImplausible extends FencingError {
  constructor(message: string, details: Details = {}) {
    super(message, details, "Use the token your lock service gave you; ask the operator if its counter was reset.");
  }
}

/** Any other refusal. */
export class Refused extends FencingError {
  constructor(
    message: string,
    /** The status of HTTP. */
    readonly status: number,
    details: Details = {},
  ) {
    super(message, details);
  }
}

/** Return a text from an answer, and null for anything else. */
export function textOf(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}

/** Return a duration from an answer: a finite number. Null for anything else. */
export function durationOf(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}
