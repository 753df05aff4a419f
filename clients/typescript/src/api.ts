/** Requests to the fencing API. Every one of them may be repeated: an answer that is lost or unclear is `Unavailable`. */

import { OutcomeUnknown, Refused, Unavailable } from "./errors.js";
import { refusalFrom } from "./refusals.js";
import { within } from "./timers.js";

export type Fetch = typeof globalThis.fetch;

/** Returns the value of the header Authorization; null without one. It is called for each request. */
export type Authorization = () => Promise<string | null>;

export interface Ask {
  /** Seconds that the answer may take. */
  readonly timeout?: number;
  readonly signal?: AbortSignal | undefined;
}

export class Api {
  constructor(
    readonly url: string,
    readonly authorization: Authorization,
    readonly fetch: Fetch,
    readonly timeout: number,
  ) {}

  /**
   * Return the JSON of a success, and null without a body.
   *
   * Throws the typed error of a refusal, `Unavailable` without an answer, or the reason of `signal`.
   */
  async ask(method: string, path: string, content?: object, options: Ask = {}): Promise<unknown> {
    let response: Response;
    let body: string;
    try {
      [response, body] = await within(options.timeout ?? this.timeout, options.signal, async (signal) => {
        const headers = new Headers();
        const authorization = await this.authorization();
        signal.throwIfAborted();
        if (authorization !== null) headers.set("Authorization", authorization);
        if (content !== undefined) headers.set("Content-Type", "application/json");
        const answer = await this.fetch(this.url + path, {
          method,
          headers,
          signal,
          redirect: "manual",
          ...(content === undefined ? {} : { body: JSON.stringify(content) }),
        });
        return [answer, await answer.text()] as const;
      });
    } catch (error) {
      options.signal?.throwIfAborted();
      throw new Unavailable(`${this.url} cannot be reached: ${String(error)}.`, { cause: error });
    }
    if (response.status >= 400) {
      const refusal = refusalFrom(response.status, response.headers, body);
      if (refusal instanceof OutcomeUnknown) {
        const { code, facts, retryAfter } = refusal;
        throw new Unavailable(refusal.message, { code, facts, retryAfter, cause: refusal });
      }
      throw refusal;
    }
    if (response.status === 204) return null;
    try {
      return JSON.parse(body) as unknown;
    } catch {
      throw new Refused(`The server at ${this.url} is not a fencing gateway.`, response.status);
    }
  }
}
