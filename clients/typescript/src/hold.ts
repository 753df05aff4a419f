/** The state of one hold: valid until a reading of the clock, lost once and for ever. No timers, no requests. */

import type { Grant } from "./answers.js";
import type { Clock } from "./clock.js";
import { LockLost, type LossReason, FencingError, TokenStale } from "./errors.js";
import { Token } from "./token.js";

/** The part of the validity that is left unused: no two clocks run at exactly the same speed. */
const DRIFT = 0.01;

export class Hold {
  #grant: Grant;
  #failure: LockLost | null = null;
  #trouble: unknown = null;
  readonly #clock: Clock;
  readonly #ttl: number;
  readonly #lost: (failure: LockLost) => void;

  constructor(
    readonly resource: string,
    grant: Grant,
    ttl: number,
    clock: Clock,
    /** Called once, when the hold is lost. */
    lost: (failure: LockLost) => void,
  ) {
    this.#grant = grant;
    this.#ttl = ttl;
    this.#clock = clock;
    this.#lost = lost;
  }

  get grant(): Grant {
    return this.#grant;
  }

  /** Return the seconds for which the lock is held for certain; 0 where it is lost. */
  left(): number {
    return this.#failure === null ? Math.max(this.#remaining(), 0) : 0;
  }

  /** Return why it is lost, by what is known and by the clock as it stands; null while it is held. */
  loss(): LockLost | null {
    if (this.#failure === null && this.#remaining() <= 0) {
      this.lose("late", `The lock ${this.resource} was not renewed in time.`, this.#trouble);
    }
    return this.#failure;
  }

  /** Throw `LockLost` if it is lost. */
  check(): void {
    const loss = this.loss();
    if (loss !== null) throw loss;
  }

  /** Mark the hold as lost. Only the first reason counts. */
  lose(reason: LossReason, message: string, cause: unknown): void {
    if (this.#end(reason, message, cause)) this.#lost(this.#failure as unknown as LockLost);
  }

  /** Mark the hold as given back. Nothing may be written under it any more. */
  release(): void {
    this.#end("released", `The lock ${this.resource} has been released.`, null);
  }

  /** Note that the fence has refused a write. */
  overtaken(refusal: TokenStale): void {
    if (refusal.resource === null || refusal.resource === this.resource) {
      this.lose("stale", `The lock ${this.resource} has been taken over.`, refusal);
    }
  }

  /** Return the seconds until the first renewal. */
  first(): number {
    return this.left() / 3;
  }

  /** Return the seconds that an attempt to renew may take. */
  attempt(): number {
    return Math.max(this.left() / 2, 0.05);
  }

  /** Note a renewal. Return the seconds until the next one. */
  renewed(grant: Grant): number {
    if (Token.compare(grant.token, this.#grant.token) !== 0) {
      this.lose("token", `The lock ${this.resource} came back from its renewal with another token.`, null);
    } else if (this.#failure === null) {
      this.#grant = grant;
      this.#trouble = null;
    }
    return (this.loss() === null ? this.left() : 0) / 3;
  }

  /** Note a renewal that has failed; `left` is from before it. Return the seconds until the next one. */
  failed(error: unknown, left: number): number {
    if (error instanceof LockLost) {
      this.lose("refused", `The lock ${this.resource} is lost: ${error.message}`, error);
    }
    this.#trouble = error;
    return Math.min(Math.max(left / 10, 0.05), 1);
  }

  #remaining(): number {
    return this.#grant.validUntil - this.#clock() - DRIFT * this.#ttl;
  }

  #end(reason: LossReason, message: string, cause: unknown): boolean {
    if (this.#failure !== null) return false;
    const known = cause instanceof FencingError ? { code: cause.code, facts: cause.facts } : {};
    this.#failure = new LockLost(message, { ...known, ...(cause === null ? {} : { cause }) }, reason);
    return true;
  }
}
