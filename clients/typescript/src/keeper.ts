/** Keeping one hold alive in the background, and noticing by the clock when it is not. Nothing here throws. */

import type { Wanted } from "./answers.js";
import type { Clock } from "./clock.js";
import type { Hold } from "./hold.js";
import type { Leases } from "./leases.js";
import { later } from "./timers.js";

/** Seconds between two looks at the clock: timers stand still while the machine is suspended. */
const TICK = 1;

export class Keeper {
  readonly #hold: Hold;
  readonly #leases: Leases;
  readonly #wanted: Wanted;
  readonly #clock: Clock;
  readonly #ending = new AbortController();
  #due: number;
  #renewing: Promise<void> | null = null;
  #cancel: () => void = () => undefined;

  constructor(hold: Hold, leases: Leases, wanted: Wanted) {
    this.#hold = hold;
    this.#leases = leases;
    this.#wanted = wanted;
    this.#clock = leases.clock;
    this.#due = this.#clock() + hold.first();
    this.#schedule();
  }

  /** End the renewals. Afterwards no timer and no request is left. */
  async stop(): Promise<void> {
    this.#ending.abort();
    this.#cancel();
    await this.#renewing;
  }

  #schedule(): void {
    const tick = Math.min(TICK, Math.max(0.02, this.#wanted.ttl / 20));
    const renewal = this.#renewing === null ? Math.max(this.#due - this.#clock(), 0) : tick;
    this.#cancel = later(Math.min(tick, this.#hold.left(), renewal), () => {
      this.#look();
    });
  }

  #look(): void {
    if (this.#ending.signal.aborted) return;
    if (this.#hold.loss() !== null) {
      // A request that is under way cannot help any more.
      this.#ending.abort();
      return;
    }
    if (this.#renewing === null && this.#due <= this.#clock()) {
      this.#renewing = this.#renew().finally(() => {
        this.#renewing = null;
        this.#cancel();
        this.#look();
      });
    }
    this.#schedule();
  }

  async #renew(): Promise<void> {
    const left = this.#hold.left();
    let seconds: number;
    try {
      const grant = await this.#leases.renew(this.#hold.grant, this.#wanted, this.#hold.attempt(), this.#ending.signal);
      seconds = this.#hold.renewed(grant);
    } catch (error) {
      if (this.#ending.signal.aborted) return;
      seconds = this.#hold.failed(error, left);
    }
    this.#due = this.#clock() + seconds;
  }
}
