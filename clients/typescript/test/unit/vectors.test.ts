/** The vectors of docs/client-protocol.md, which the clients in all languages run. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, test } from "node:test";
import { pathToFileURL } from "node:url";

import type { Grant, Wanted } from "../../src/answers.js";
import { Api } from "../../src/api.js";
import {
  FencingError,
  LockLost,
  NotAcquired,
  OutcomeUnknown,
  Refused,
  TokenImplausible,
  TokenStale,
  Unavailable,
} from "../../src/errors.js";
import { fencedFetch } from "../../src/fetch.js";
import { Hold } from "../../src/hold.js";
import { Leases } from "../../src/leases.js";
import { refusalFrom } from "../../src/refusals.js";
import { canonical, escape, escapePath } from "../../src/resource.js";
import { pause, retryAfter } from "../../src/retries.js";
import { parseSequencer } from "../../src/sequencer.js";
import { Token } from "../../src/token.js";

const VECTORS = pathToFileURL("../../tests/vectors/client/");

// eslint-disable-next-line @typescript-eslint/no-unnecessary-type-parameters -- it names the form of a file
function vectors<T>(name: string): T {
  return JSON.parse(readFileSync(new URL(`${name}.json`, VECTORS), "utf-8")) as T;
}

const KINDS = new Map<string, unknown>([
  ["stale", TokenStale],
  ["lock-lost", LockLost],
  ["not-acquired", NotAcquired],
  ["unavailable", Unavailable],
  ["outcome-unknown", OutcomeUnknown],
  ["implausible", TokenImplausible],
  ["refused", Refused],
]);

function kind(error: unknown): string | undefined {
  assert.ok(error instanceof FencingError, String(error));
  return Array.from(KINDS).find(([, known]) => error.constructor === known)?.[0];
}

interface Answer {
  readonly answered?: number;
  readonly status: number;
  readonly headers?: Record<string, string>;
  readonly body: string;
}

/** A clock, and a server that answers with what a step says, when the step says. */
class Script {
  at = 0;
  answers: Answer[] = [];
  asked: string[] = [];
  askedAgain = false;

  readonly clock = (): number => this.at;

  api(url = "https://gateway.example"): Api {
    return new Api(url, () => Promise.resolve(null), this.#answer, 30);
  }

  readonly #answer = (input: string | URL | Request): Promise<Response> => {
    const url = input instanceof Request ? input.url : String(input);
    this.asked.push(new Request(url).url);
    if (url.includes("/v1/withdrawals/")) return Promise.resolve(new Response(null, { status: 204 }));
    const answer = this.answers.shift();
    // More requests than answers: the client has asked again, and shall not go on.
    this.askedAgain ||= answer === undefined;
    this.at = answer?.answered ?? this.at;
    const { status, headers = {}, body } = answer ?? { status: 403, body: "" };
    return Promise.resolve(new Response(body, { status, headers }));
  };
}

interface Reading {
  readonly text: string;
  readonly error?: boolean;
}

describe("tokens", () => {
  const { read, compare } = vectors<{
    read: (Reading & { epoch: string; value: string; canonical: string })[];
    compare: { left: string; right: string; order: number }[];
  }>("tokens");
  for (const one of read) {
    test(JSON.stringify(one.text.slice(0, 40)), () => {
      if (one.error === true) {
        assert.throws(() => Token.parse(one.text), RangeError);
        return;
      }
      const token = Token.parse(one.text);
      assert.deepEqual([token.epoch, token.value], [BigInt(one.epoch), BigInt(one.value)]);
      assert.equal(token.toString(), one.canonical);
    });
  }
  for (const { left, right, order } of compare) {
    test(`${left} and ${right}`, () => {
      assert.equal(Token.compare(Token.parse(left), Token.parse(right)), order);
    });
  }
});

describe("resources", () => {
  const { names, values, paths } = vectors<{
    names: { name: string; error?: boolean; spelling: string | null; canonical: string }[];
    values: { value: string; escaped: string; as_path: string }[];
    paths: { gateway: string; resource: string; lease: string | null; url: string }[];
  }>("resources");
  for (const one of names) {
    test(JSON.stringify(one.name.slice(0, 40)), () => {
      if (one.error !== true) {
        assert.equal(canonical(one.name), one.canonical);
        return;
      }
      assert.throws(
        () => canonical(one.name),
        ({ message }: Error) =>
          one.spelling === null
            ? !message.includes("canonical spelling")
            : message.endsWith(` Its canonical spelling is ${one.spelling}.`),
      );
    });
  }
  for (const one of values) {
    test(`the value ${JSON.stringify(one.value)}`, () => {
      assert.deepEqual([escape(one.value), escapePath(one.value)], [one.escaped, one.as_path]);
    });
  }
  for (const one of paths) {
    test(one.url, async () => {
      const script = new Script();
      script.answers = [{ status: 200, body: "{}" }];
      const path = `/v1/leases/${one.resource}${one.lease === null ? "" : `/${one.lease}`}`;
      await script.api(one.gateway.replace(/\/$/, "")).ask("GET", path);
      assert.deepEqual(script.asked, [one.url]);
    });
  }
});

describe("sequencers", () => {
  const { read } = vectors<{
    read: (Reading & { resource: string; mode: string; token: string; signature: string })[];
  }>("sequencers");
  for (const one of read) {
    test(JSON.stringify(one.text.slice(0, 60)), () => {
      if (one.error === true) {
        assert.throws(() => parseSequencer(one.text), RangeError);
        return;
      }
      const { resource, mode, token, signature } = parseSequencer(one.text);
      assert.deepEqual([resource, mode, token.toString()], [one.resource, one.mode, one.token]);
      assert.equal(signature, one.signature);
    });
  }
});

/** The members of the typed errors, by the names of the facts. */
const MEMBERS = new Map([
  ["resource", "resource"],
  ["token", "token"],
  ["fence", "fence"],
  ["raised_by", "raisedBy"],
  ["raised_at", "raisedAt"],
  ["rejection", "rejection"],
  ["holder", "holder"],
  ["expires_in", "expiresIn"],
]);

describe("answers", () => {
  const all = vectors<{
    answers: (Answer & {
      name: string;
      headers: Record<string, string>;
      error: string;
      code: string;
      retry: boolean;
      retry_after: number | null;
      of_the_api?: string;
      facts?: Record<string, unknown>;
    })[];
    retry_after: { headers: Record<string, string>; seconds: number | null }[];
    pauses: { failures: number; draw: number; retry_after: number | null; seconds: number }[];
  }>("answers");
  for (const one of all.answers) {
    test(one.name, async () => {
      const error = refusalFrom(one.status, new Headers(one.headers), one.body);
      assert.deepEqual([kind(error), error.code], [one.error, one.code]);
      assert.deepEqual([error.retryable, error.retryAfter], [one.retry, one.retry_after]);
      for (const [name, fact] of Object.entries(one.facts ?? {})) {
        assert.deepEqual(Reflect.get(error, MEMBERS.get(name) ?? ""), fact, name);
      }
      const script = new Script();
      script.answers = [one];
      const refused = await script
        .api()
        .ask("POST", "/v1/leases/job/42")
        .catch((reason: unknown) => reason);
      assert.equal(kind(refused), one.of_the_api ?? one.error);
    });
  }
  for (const { headers, seconds } of all.retry_after) {
    test(JSON.stringify(headers), () => {
      // Headers cannot carry some of the hostile texts: then no client sees them.
      const given = Object.entries(headers).filter(([, value]) => /^[\x20-\x7e]*$/.test(value));
      assert.equal(retryAfter(new Headers(given)), seconds);
    });
  }
  for (const one of all.pauses) {
    test(`a pause: ${JSON.stringify(one)}`, () => {
      near(pause(one.failures, one.retry_after, one.draw), one.seconds, "seconds");
    });
  }
});

describe("headers of a write", () => {
  const { names, writes } = vectors<{
    names: string[];
    writes: {
      name: string;
      gateway: string;
      api_key: string | null;
      lock: { token: string; resource: string; holder: string; mode: "exclusive" | "shared"; sequencer: string | null };
      url: string;
      given: Record<string, string>;
      sent: Record<string, string>;
    }[];
  }>("writes");
  for (const one of writes) {
    test(one.name, async () => {
      let sent = new Headers();
      const { token, resource, holder, mode, sequencer } = one.lock;
      const api = new Api(
        one.gateway,
        () => Promise.resolve(one.api_key === null ? null : `Bearer ${one.api_key}`),
        (_, init) => {
          sent = new Headers(init?.headers);
          return Promise.resolve(new Response());
        },
        30,
      );
      const grant: Grant = { token: Token.parse(token), lease: "lease", sequencer, validUntil: 60 };
      const leases = new Leases(api, () => 0);
      const { Lock } = await import("../../src/lock.js");
      const lock = new Lock({ resource, holder, mode, ttl: 60, request: "request" }, grant, leases);
      await fencedFetch(lock, api)(one.url, { method: "PUT", headers: one.given });
      const seen = names.flatMap((name) => (sent.has(name) ? [[name, sent.get(name)]] : []));
      assert.deepEqual(Object.fromEntries(seen), one.sent);
      await lock.release();
    });
  }
});

type Then = Readonly<Record<string, unknown>>;
interface Step extends Answer {
  readonly do: "acquire" | "renew" | "look" | "refused";
  readonly sent: number;
  readonly at: number;
  readonly resource: string | null;
  readonly earlier?: Answer;
  readonly renewal?: Answer;
  readonly then: Then;
}

/** One scenario, played with the parts of a lock and without its timers. */
class Played {
  readonly #script = new Script();
  readonly #leases = new Leases(this.#script.api(), this.#script.clock);
  readonly #wanted: Wanted;
  #hold: Hold | null = null;

  constructor(wanted: Omit<Wanted, "request">) {
    this.#wanted = { ...wanted, request: "request" };
  }

  async play(step: Step): Promise<Then> {
    if (step.do === "acquire") return await this.#acquire(step);
    assert.ok(this.#hold !== null);
    if (step.do === "renew") return await this.#renew(step, this.#hold);
    this.#script.at = step.at;
    if (step.do === "refused") this.#hold.overtaken(new TokenStale("", { facts: { resource: step.resource } }));
    return this.#state(this.#hold);
  }

  async #acquire(step: Step): Promise<Then> {
    this.#script.at = step.sent;
    this.#script.answers = [step.earlier, step, step.renewal].filter((answer) => answer !== undefined);
    try {
      const grant = await this.#leases.acquire(this.#wanted, 0);
      this.#hold = new Hold(this.#wanted.resource, grant, this.#wanted.ttl, this.#script.clock, () => undefined);
      return { ...this.#state(this.#hold), renew_in: this.#hold.first() };
    } catch (error) {
      if (this.#script.askedAgain) return { again: true };
      return { error: kind(error), withdrawn: this.#script.asked.at(-1)?.includes("/v1/withdrawals/") };
    }
  }

  async #renew(step: Step, hold: Hold): Promise<Then> {
    this.#script.at = step.sent;
    this.#script.answers = [step];
    let seconds = 0;
    if (hold.loss() === null) {
      const left = hold.left();
      try {
        seconds = hold.renewed(await this.#leases.renew(hold.grant, this.#wanted, hold.attempt()));
      } catch (error) {
        seconds = hold.failed(error, left);
      }
    }
    return { ...this.#state(hold), renew_in: seconds };
  }

  #state(hold: Hold): Then {
    const loss = hold.loss();
    return {
      token: hold.grant.token.toString(),
      sequencer: hold.grant.sequencer,
      state: loss === null ? "held" : "lost",
      why: loss?.reason,
      left: hold.left(),
    };
  }
}

describe("leases", () => {
  const { scenarios } = vectors<{
    scenarios: { name: string; wanted: Omit<Wanted, "request">; steps: Step[] }[];
  }>("leases");
  for (const { name, wanted, steps } of scenarios) {
    test(name, async () => {
      const played = new Played(wanted);
      for (const step of steps) {
        const seen = await played.play(step);
        for (const [what, value] of Object.entries(step.then)) {
          if (typeof value === "number") near(seen[what], value, `${what} after ${step.do}`);
          else assert.deepEqual(seen[what], value, `${what} after ${step.do}`);
        }
      }
    });
  }
});

function near(seen: unknown, wanted: number, what: string): void {
  assert.ok(typeof seen === "number" && Math.abs(seen - wanted) < 1e-6, `${what}: ${String(seen)}, not ${wanted}`);
}
