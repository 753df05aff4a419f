/** The client: where the gateway is, who the program is there, and the locks it asks for. */

import type { Wanted } from "./answers.js";
import { Api, type Authorization, type Fetch } from "./api.js";
import { type Clock, systemClock } from "./clock.js";
import { Leases } from "./leases.js";
import { Lock } from "./lock.js";
import { canonical } from "./resource.js";
import type { Mode } from "./sequencer.js";

export interface GatewayOptions {
  /** The address of the gateway, such as `https://gateway.example.com`. */
  readonly url: string;
  /** The API key of this program. */
  readonly apiKey?: string;
  /** Returns an identity token. It is called for each request, so keep the token until it expires. */
  readonly token?: () => string | Promise<string>;
  /** The beginning of the names of this program's holders, by which others see its locks. */
  readonly holder?: string;
  /** Seconds that an answer may take. The default is 30. */
  readonly timeout?: number;
  /** Sends the requests instead of the platform's `fetch`. */
  readonly fetch?: Fetch;
  /** Seconds since some moment in the past. It must go on while the machine is suspended. */
  readonly clock?: Clock;
}

export interface LockOptions {
  /** Seconds that the lock stays held after its holder has died. It is renewed after a third of them. Default: 30. */
  readonly ttl?: number;
  /** Seconds to wait in the queue: 0 not at all, Infinity for ever, which is the default. */
  readonly wait?: number;
  /** `shared`: with other shared holders. They have one token. */
  readonly mode?: Mode;
  /** The whole name of the holder, instead of a unique one. Two locks of one name share one hold. */
  readonly holder?: string;
  /** Whether to raise the fence before the work begins. Default: true. */
  readonly barrier?: boolean;
  /** Ends the waiting. The place in the queue is given back. */
  readonly signal?: AbortSignal;
}

const HOLDER = /^[!-~]([ -~]{0,198}[!-~])?$/;
const MOST_OF_A_NAME = 180;

export class Gateway {
  readonly url: string;
  readonly #leases: Leases;
  readonly #holder: string;

  constructor(options: GatewayOptions) {
    const address = new URL(options.url);
    if (!["http:", "https:"].includes(address.protocol) || address.username !== "" || address.search !== "") {
      throw new TypeError("The address of a gateway is of the form https://gateway.example.com.");
    }
    if (options.apiKey !== undefined && options.token !== undefined) {
      throw new TypeError("Give apiKey or token, not both.");
    }
    this.url = `${address.origin}${address.pathname}`.replace(/\/+$/, "");
    const clock = options.clock ?? systemClock();
    const send = options.fetch ?? ((...request) => globalThis.fetch(...request));
    this.#leases = new Leases(new Api(this.url, authorizationOf(options), send, options.timeout ?? 30), clock);
    this.#holder = named(options.holder ?? ownName());
  }

  /**
   * Acquire a lock. Release it: `await using lock = await gateway.acquire(…)`, or `await lock.release()`.
   *
   * Throws `NotAcquired`, `Unavailable`, `IssuerWentBackwards`, `TokenImplausible`, `Refused`, or the reason of the
   * signal. Then nothing stays behind.
   */
  async acquire(resource: string, options: LockOptions = {}): Promise<Lock> {
    const wait = options.wait ?? Infinity;
    const wanted = this.#wanted(resource, options);
    if (!(wait >= 0)) throw new RangeError("wait must be a number of seconds from 0 on.");
    const grant = await this.#leases.acquire(wanted, wait, options.signal);
    const lock = new Lock(wanted, grant, this.#leases);
    try {
      if (options.barrier ?? true) await lock.barrier(options.signal);
      lock.check();
      options.signal?.throwIfAborted();
      return lock;
    } catch (error) {
      await lock.release();
      throw error;
    }
  }

  /**
   * Acquire a lock, do the work, and release the lock.
   *
   * Pass `lock.signal` on: it is aborted when the lock is lost. Then this throws `LockLost`, even if the work has ended
   * normally: it cannot know whether all of it was done under the lock.
   */
  async lock<T>(resource: string, work: (lock: Lock) => T | Promise<T>): Promise<T>;
  async lock<T>(resource: string, options: LockOptions, work: (lock: Lock) => T | Promise<T>): Promise<T>;
  async lock<T>(
    resource: string,
    ...[first, second]: [(lock: Lock) => T | Promise<T>] | [LockOptions, (lock: Lock) => T | Promise<T>]
  ): Promise<T> {
    const [options, work] = typeof first === "function" ? [{}, first] : [first, second];
    if (work === undefined) throw new TypeError("The work under the lock is missing.");
    const lock = await this.acquire(resource, options);
    try {
      const result = await work(lock);
      lock.check();
      return result;
    } catch (error) {
      // Our own signal has ended the work, however its libraries put it.
      if (isAbort(error)) lock.check();
      throw error;
    } finally {
      await lock.release();
    }
  }

  #wanted(resource: string, { ttl = 30, mode = "exclusive", holder }: LockOptions): Wanted {
    if (!(ttl > 0 && ttl < Infinity)) throw new RangeError("ttl must be a number of seconds above 0.");
    return {
      resource: canonical(resource),
      // A unique name, in this process as well: for the lock service, one name is one holder.
      holder: holder === undefined ? `${this.#holder.slice(0, MOST_OF_A_NAME)}-${randomText(6)}` : named(holder),
      ttl,
      mode,
      request: randomText(16),
    };
  }
}

function authorizationOf({ apiKey, token }: GatewayOptions): Authorization {
  if (token !== undefined) return async () => `Bearer ${await token()}`;
  return () => Promise.resolve(apiKey === undefined ? null : `Bearer ${apiKey}`);
}

function isAbort(error: unknown): boolean {
  return error instanceof Error && (error.name === "AbortError" || error.name === "LockLost");
}

function named(holder: string): string {
  if (!HOLDER.test(holder)) throw new RangeError("A holder's name is 1 to 200 printable ASCII characters.");
  return holder;
}

/** Return the program, the host and the process id, where there are such: `billing.js@host-7:4711`. */
function ownName(): string {
  const { process } = globalThis as {
    process?: { pid?: number; argv?: string[]; getBuiltinModule?: (name: string) => unknown };
  };
  const os = process?.getBuiltinModule?.("node:os") as { hostname(): string } | undefined;
  const readable = (name: string, most: number): string => name.replace(/[^!-~]/g, "-").slice(0, most);
  const host = readable(os?.hostname() ?? "", 100);
  const program = readable(process?.argv?.[1]?.split(/[\\/]/).pop() ?? "", 60) || "javascript";
  return host === "" ? program : `${program}@${host}:${process?.pid ?? 0}`;
}

function randomText(bytes: number): string {
  const random = crypto.getRandomValues(new Uint8Array(bytes));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
