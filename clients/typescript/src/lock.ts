/** A lock that is held: its token, its loss, and the requests that carry it. */

import { type LockLost, Refused, textOf, type TokenStale } from "./errors.js";
import { type FencedFetch, fencedFetch } from "./fetch.js";
import { Hold } from "./hold.js";
import type { Grant, Wanted } from "./answers.js";
import { Keeper } from "./keeper.js";
import type { Leases } from "./leases.js";
import { type S3Plugin, s3Plugin } from "./s3.js";
import type { Mode } from "./sequencer.js";
import type { Token } from "./token.js";

/** The options of temporary S3 keys. */
export interface CredentialOptions {
  /** The resources that the keys may write. The default is the lock's own. */
  readonly pattern?: string;
  /** Seconds, from 60 to 43,200. */
  readonly ttl?: number;
  /** The reads of the keys: what they write, every bucket, or what they write and what these patterns cover. */
  readonly read?: "own" | "all" | readonly string[];
}

/** Temporary S3 keys that write under one token. The AWS SDK takes them as its `credentials`. */
export interface FencedCredentials {
  readonly accessKeyId: string;
  readonly secretAccessKey: string;
  readonly sessionToken: string;
  readonly expiration: Date;
}

export class Lock implements AsyncDisposable {
  readonly resource: string;
  /** The name of the holder: unique to this lock, unless the program sets it. */
  readonly holder: string;
  readonly mode: Mode;
  /** Aborted when the lock is lost; the reason is a `LockLost`. A release does not abort it. */
  readonly signal: AbortSignal;
  /**
   * `fetch` under this lock: it adds the headers to requests to the gateway, sends nothing once the lock is lost, and
   * throws `TokenStale` for a refusal by the fence. A path without a host is the gateway's.
   */
  readonly fetch: FencedFetch;

  readonly #hold: Hold;
  readonly #keeper: Keeper;
  readonly #leases: Leases;
  readonly #wanted: Wanted;
  #released: Promise<void> | null = null;

  /** Locks come from `Gateway.acquire` and `Gateway.lock`. */
  constructor(wanted: Wanted, grant: Grant, leases: Leases) {
    const losing = new AbortController();
    this.resource = wanted.resource;
    this.holder = wanted.holder;
    this.mode = wanted.mode;
    this.signal = losing.signal;
    this.#wanted = wanted;
    this.#leases = leases;
    this.#hold = new Hold(wanted.resource, grant, wanted.ttl, leases.clock, (failure) => {
      losing.abort(failure);
    });
    this.#keeper = new Keeper(this.#hold, leases, wanted);
    this.fetch = fencedFetch(this, leases.api);
  }

  get token(): Token {
    return this.#hold.grant.token;
  }

  /** The signed form of the token, if the gateway has a signing key. */
  get sequencer(): string | null {
    return this.#hold.grant.sequencer;
  }

  /** Why the lock is lost, by what is known and by the clock as it stands; null while it is held. */
  get loss(): LockLost | null {
    return this.#hold.loss();
  }

  /** Seconds for which the lock is held by this machine's clock, if it is not renewed. 0 where it is lost. */
  get expiresIn(): number {
    return this.#hold.left();
  }

  /** Throw `LockLost` if the lock is known to be lost, or its time is over. */
  check(): void {
    this.#hold.check();
  }

  /** Return the headers of a request under this lock. Shared holders share the token, so they name no holder. */
  headers(): Record<string, string> {
    return {
      "Fencing-Token": this.token.toString(),
      "Fencing-Resource": this.resource,
      ...(this.mode === "exclusive" ? { "Fencing-Holder": this.holder } : {}),
      ...(this.sequencer === null ? {} : { "Fencing-Sequencer": this.sequencer }),
    };
  }

  /** Raise the fence: once this has returned, nothing older takes effect, so what is read stays true. */
  async barrier(signal?: AbortSignal): Promise<void> {
    this.check();
    const either = signal === undefined ? this.signal : AbortSignal.any([this.signal, signal]);
    await this.#leases.barrier(this.#hold.grant, this.#wanted, either);
    this.check();
  }

  /** Return a plugin that makes an S3 client of the AWS SDK, version 3, write under this lock. */
  s3Plugin(): S3Plugin {
    return s3Plugin(this, this.#leases.api.url);
  }

  /** Return temporary S3 keys that write under this lock. They outlive it, until another holder takes over. */
  async credentials(options: CredentialOptions = {}): Promise<FencedCredentials> {
    this.check();
    const { pattern, ttl = 3600, read = "own" } = options;
    const content = {
      resource: pattern ?? this.resource,
      token: this.token.toString(),
      ...(this.mode === "exclusive" ? { holder: this.holder } : {}),
      ...(this.sequencer === null ? {} : { sequencer: this.sequencer }),
      ttl,
      ...(read === "own" ? {} : { read }),
    };
    const view = await this.#leases.api.ask("POST", "/v1/credentials", content, { signal: this.signal });
    const answer = (typeof view === "object" && view !== null ? view : {}) as Record<string, unknown>;
    const [accessKeyId, secretAccessKey, sessionToken, expiration] = [
      textOf(answer["access_key_id"]),
      textOf(answer["secret_access_key"]),
      textOf(answer["session_token"]),
      textOf(answer["expiration"]),
    ];
    if (accessKeyId === null || secretAccessKey === null || sessionToken === null || expiration === null) {
      throw new Refused("The answer with the credentials cannot be read.", 200);
    }
    return { accessKeyId, secretAccessKey, sessionToken, expiration: new Date(expiration) };
  }

  /** Note that the fence has refused the token. A program that sends it by other means calls this. */
  overtaken(refusal: TokenStale): void {
    this.#hold.overtaken(refusal);
  }

  /** Give the lock back. It never throws: a lease that cannot be given back ends by itself. */
  release(): Promise<void> {
    this.#released ??= this.#giveBack();
    return this.#released;
  }

  /** For `await using`: releases the lock. It does not report a loss: end the block with `lock.check()`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.release();
  }

  async #giveBack(): Promise<void> {
    this.#hold.release();
    await this.#keeper.stop();
    await this.#leases.release(this.#hold.grant, this.#wanted);
  }
}
