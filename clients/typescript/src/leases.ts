/** The gateway's lease service: a place in its queue, answers that got lost, and nothing left behind. */

import { type Grant, type Wanted, granted, meant, renewed } from "./answers.js";
import type { Api } from "./api.js";
import type { Clock } from "./clock.js";
import { IssuerWentBackwards, LockLost, NotAcquired, Refused, TokenStale, Unavailable } from "./errors.js";
import { pause } from "./retries.js";
import { raced, sleep, within } from "./timers.js";

/** Seconds that one request waits at most; proxies give up on one after 60 or less. The place in the queue stays. */
const STRETCH = 20;
const GIVING_BACK = 5;
/** Seconds after which a request is taken to have reached the gateway, if it has not been answered by then. */
const ARRIVING = 1;
/** Seconds for which an acquire is repeated while the gateway cannot be reached: it is being restarted, perhaps. */
const SHORTEST_TIMEOUT = 2;
const LONGEST_TIMEOUT = 60;

/**
 * What is known of the attempts of one acquire. `isUnclear`: one of them may have been granted, or has a place in the
 * queue. A later refusal of another attempt does not change that.
 */
interface Attempts {
  isUnclear: boolean;
}

export class Leases {
  /** Seconds that one request waits. The operator may let it wait for less. */
  #stretch = STRETCH;

  constructor(
    readonly api: Api,
    readonly clock: Clock,
  ) {}

  /**
   * Acquire the lock, waiting for so many seconds.
   *
   * Whatever is thrown, nothing stays behind: no place in the queue, and no lease. Throws `NotAcquired`, `Unavailable`,
   * `Refused`, or the reason of `signal`.
   */
  async acquire(wanted: Wanted, wait: number, signal?: AbortSignal): Promise<Grant> {
    signal?.throwIfAborted();
    const attempts: Attempts = { isUnclear: false };
    try {
      return await this.#acquired(wanted, attempts, wait, signal);
    } catch (error) {
      if (attempts.isUnclear) await this.#withdraw(wanted);
      throw error;
    }
  }

  async #acquired(wanted: Wanted, attempts: Attempts, wait: number, signal: AbortSignal | undefined): Promise<Grant> {
    const timeout = Math.min(Math.max(wait, SHORTEST_TIMEOUT), LONGEST_TIMEOUT);
    const until = this.clock() + wait;
    let giveUp = this.clock() + timeout;
    let failures = 0;
    for (;;) {
      const stretch = Math.min(this.#stretch, Math.max(until - this.clock(), 0));
      try {
        return await this.#once(wanted, attempts, stretch, signal);
      } catch (error) {
        if (signal?.aborted === true) throw error;
        if (error instanceof NotAcquired) {
          if (until <= this.clock() || error.own) throw error;
          giveUp = this.clock() + timeout;
          failures = 0;
        } else if (error instanceof Unavailable) {
          failures += 1;
          const seconds = pause(failures, error.retryAfter);
          if (giveUp <= this.clock() + seconds) throw error;
          await sleep(seconds, signal);
        } else if (error instanceof Refused && error.message.includes("body.wait") && stretch >= 1) {
          this.#stretch = Math.min(this.#stretch, stretch / 2);
        } else if (error instanceof LockLost) {
          // Granted, but the answer took longer than the grant lasts. The next one is a new grant.
          if (giveUp <= this.clock()) {
            throw new Unavailable("Answers take longer than the lease lasts.", {
              advice: "Ask for a longer ttl.",
              cause: error,
            });
          }
        } else {
          throw error;
        }
      }
    }
  }

  async #once(wanted: Wanted, attempts: Attempts, stretch: number, signal: AbortSignal | undefined): Promise<Grant> {
    const asked = this.clock();
    const { isUnclear: wasUnclear } = attempts;
    attempts.isUnclear = true;
    let view: unknown;
    try {
      view = await this.#posted(wanted, stretch, signal);
    } catch (error) {
      // Below 400, an answer that cannot be read has granted it, perhaps.
      const isRefused = error instanceof Refused && error.status >= 400;
      const hasNoPlace = error instanceof NotAcquired && stretch <= 0;
      attempts.isUnclear = wasUnclear || !(isRefused || hasNoPlace);
      if (error instanceof NotAcquired && !error.own) {
        // Refused before the time was over: it does not queue us, and must not be hammered either.
        await sleep(Math.max(0, Math.min(1, stretch, asked + stretch - this.clock())), signal);
      }
      throw error;
    }
    const grant = granted(view, wanted, asked);
    // It may have been granted long after it was asked for, and counts from then on: a short request tells better.
    return this.clock() - asked > wanted.ttl / 5 ? await this.renew(grant, wanted, this.api.timeout, signal) : grant;
  }

  /** Return the answer. If aborted, let the request arrive before its withdrawal. */
  async #posted(wanted: Wanted, stretch: number, signal: AbortSignal | undefined): Promise<unknown> {
    const { resource, ...content } = wanted;
    const ending = new AbortController();
    const sent = this.clock();
    const request = this.api.ask(
      "POST",
      `/v1/leases/${resource}`,
      { ...content, wait: stretch },
      { timeout: this.api.timeout + stretch, signal: ending.signal },
    );
    if (signal === undefined) return await request;
    try {
      return await raced(request, signal);
    } catch (error) {
      if (signal.aborted) {
        const arrived = sleep(Math.max(sent + ARRIVING - this.clock(), 0));
        await Promise.race([request.catch(() => undefined), arrived]);
      }
      throw error;
    } finally {
      ending.abort();
    }
  }

  /** Renew the lease. Throws `LockLost` where the gateway says that it is lost. */
  async renew(grant: Grant, wanted: Wanted, timeout: number, signal?: AbortSignal): Promise<Grant> {
    const asked = this.clock();
    const path = `/v1/leases/${wanted.resource}/${grant.lease}`;
    return renewed(await this.api.ask("PUT", path, { ttl: wanted.ttl }, { timeout, signal }), grant, wanted, asked);
  }

  /** Release the lease. A failure is no error, because the lease ends by itself. */
  async release(grant: Grant, wanted: Wanted): Promise<void> {
    await this.#givenBack("DELETE", `/v1/leases/${wanted.resource}/${grant.lease}`);
  }

  /**
   * Raise the fence: once this has returned, nothing older takes effect. Repeats for `ttl` seconds.
   *
   * Throws `IssuerWentBackwards`; `TokenStale` where the lock is not held any more; `Unavailable`.
   */
  async barrier(grant: Grant, wanted: Wanted, signal: AbortSignal): Promise<void> {
    const content = {
      token: grant.token.toString(),
      ...(wanted.mode === "exclusive" ? { holder: wanted.holder } : {}),
      ...(grant.sequencer === null ? {} : { sequencer: grant.sequencer }),
    };
    const giveUp = this.clock() + wanted.ttl;
    for (let failures = 1; ; failures += 1) {
      try {
        meant(
          await this.api.ask("POST", `/v1/fences/${wanted.resource}/barrier`, content, { signal }),
          wanted.resource,
        );
        return;
      } catch (error) {
        if (error instanceof TokenStale) throw await this.#behind(grant, wanted, error);
        if (!(error instanceof Unavailable)) throw error;
        // A write of an older holder that is under way has to land first, or to be given up.
        const seconds = pause(failures, error.retryAfter);
        if (giveUp <= this.clock() + seconds) throw error;
        await sleep(seconds, signal);
      }
    }
  }

  /** Return the error for a refusal of a token that was just issued. */
  async #behind(grant: Grant, wanted: Wanted, refusal: TokenStale): Promise<Error> {
    if (!(await this.#isHeld(grant, wanted))) return refusal;
    return new IssuerWentBackwards(
      `The gateway says that ${wanted.holder} holds ${wanted.resource} with the token ${grant.token.toString()}, ` +
        `but the fence is at ${refusal.fence ?? "a higher one"} already.`,
      { code: refusal.code, facts: refusal.facts, cause: refusal },
    );
  }

  async #isHeld(grant: Grant, wanted: Wanted): Promise<boolean> {
    try {
      const view = meant(await this.api.ask("GET", `/v1/leases/${wanted.resource}`), wanted.resource);
      const holders: unknown = view["holders"];
      return (
        Array.isArray(holders) &&
        holders.some(
          (one: unknown) =>
            typeof one === "object" &&
            one !== null &&
            "holder" in one &&
            "token" in one &&
            one.holder === wanted.holder &&
            one.token === grant.token.toString(),
        )
      );
    } catch {
      return false;
    }
  }

  async #withdraw({ resource, holder, request }: Wanted): Promise<void> {
    await this.#givenBack("POST", `/v1/withdrawals/${resource}`, { holder, request });
  }

  async #givenBack(method: string, path: string, content?: object): Promise<void> {
    try {
      await within(GIVING_BACK, undefined, (signal) => this.api.ask(method, path, content, { signal }));
    } catch {
      // The lease ends by itself, and so does a place in the queue.
    }
  }
}
