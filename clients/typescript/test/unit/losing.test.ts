/** Every way to lose a lock, against a server that answers slowly, wrongly or not at all. */

import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { setTimeout as after } from "node:timers/promises";

import {
  Gateway,
  type Lock,
  LockLost,
  NotAcquired,
  OutcomeUnknown,
  Refused,
  TokenStale,
  Unavailable,
  throwForRefusal,
} from "../../src/index.js";
import { withSleep } from "../../src/clock.js";
import { granting, hostile, json, renewing, type Answer, type Hostile } from "../hostile.js";

const SOON = { ttl: 0.9, barrier: false };
const good = granting((asked, response) => {
  renewing(response, asked);
});

/** Acquire a lock that is soon over, of a gateway that answers as `others` says from then on. */
async function locked(server: Hostile, others: Answer, gateway = new Gateway({ url: server.url })): Promise<Lock> {
  server.answer = good; // a lock that took long to acquire is renewed at once
  const lock = await gateway.acquire("job/1", SOON);
  server.answer = granting(others);
  return lock;
}

process.on("unhandledRejection", (error) => {
  throw error;
});

/** Wait until the lock is lost, and return why. */
async function lossOf(signal: AbortSignal): Promise<LockLost> {
  if (!signal.aborted)
    await new Promise((resolve) => {
      signal.addEventListener("abort", resolve);
    });
  assert.ok(signal.reason instanceof LockLost);
  return signal.reason;
}

const OTHER_ANSWERS: Record<string, Answer> = {
  "no answer": () => undefined,
  "a broken connection": (_, response) => response.destroy(),
  HTML: (_, response) => response.end("<html>Welcome</html>"),
  "half an answer": (_, response) => {
    response.writeHead(200, { "Content-Length": "100" }).write("{");
  },
  "500": (_, response) => response.writeHead(500).end(),
  "401": (_, response) => {
    json(response, 401, { code: "unauthenticated", detail: "x" });
  },
  "403": (_, response) => {
    json(response, 403, { code: "denied", detail: "x" });
  },
  "a redirect": (_, response) => response.writeHead(307, { Location: "http://127.0.0.1:1/" }).end(),
  "NaN as time": (_, response) => response.end('{"resource": "job/1", "token": "7", "expires_in": NaN}'),
};

describe("renewals that are not answered as they should be", { concurrency: true }, () => {
  for (const [name, answer] of Object.entries(OTHER_ANSWERS)) {
    test(`renewals are answered with ${name}: repeated, then late`, async () => {
      await using server = await hostile(good);
      await using lock = await locked(server, answer, new Gateway({ url: server.url, apiKey: "a secret" }));
      const loss = await lossOf(lock.signal);
      assert.equal(loss.reason, "late");
      assert.ok(server.asked.filter(({ method }) => method === "PUT").length >= 2, "it was repeated");
      assert.notEqual(loss.cause, undefined, "the trouble is its cause");
      await assert.rejects(lock.fetch("/v1/tables/accounts", { method: "POST" }), LockLost);
      assert.ok(
        server.asked.every(({ path }) => !path.includes("tables")),
        "nothing is sent any more",
      );
    });
  }
});

test("trouble that passes in time", async () => {
  let failures = 0;
  await using server = await hostile(good);
  const gateway = new Gateway({ url: server.url });
  await using lock = await gateway.acquire("job/1", { ...SOON, ttl: 2 });
  server.answer = granting((asked, response) => {
    failures += 1;
    if (failures > 2) renewing(response, asked);
    else response.destroy();
  });
  await after(2500);
  lock.check();
  assert.ok(failures > 2);
});

test("a renewal that is refused", async () => {
  await using server = await hostile(good);
  await using lock = await locked(server, (_, response) => {
    json(response, 410, { code: "lease-lost", detail: "It was broken." });
  });
  const loss = await lossOf(lock.signal);
  assert.deepEqual([loss.reason, loss.code], ["refused", "lease-lost"]);
  assert.ok(loss.cause instanceof LockLost);
});

test("a renewal with another token", async () => {
  await using server = await hostile(good);
  await using lock = await locked(server, (asked, response) => {
    const lease = asked.path.split("/").at(-1);
    json(response, 200, { resource: "job/1", lease, token: "8", sequencer: null, expires_in: 30 });
  });
  assert.equal((await lossOf(lock.signal)).reason, "token");
});

test("a machine that was suspended: timers stood still, the clock went on", async () => {
  let now = 1000;
  await using server = await hostile(granting(() => undefined, 3600));
  const gateway = new Gateway({ url: server.url, clock: () => now });
  await using lock = await gateway.acquire("job/1", { ttl: 3600, barrier: false });
  assert.equal(Math.round(lock.expiresIn), 3564);
  now += 3570;
  await assert.rejects(lock.fetch("/v1/tables/accounts", { method: "PUT", body: "{}" }), LockLost);
  assert.equal(lock.signal.aborted, true);
  await using other = await gateway.acquire("job/2", { ttl: 3600, barrier: false });
  now += 3600;
  assert.equal((await lossOf(other.signal)).reason, "late", "and soon by itself");
});

test("the clock counts suspended time, and a time of day that is set back takes nothing from it", () => {
  let awake = 0;
  let other = 500;
  const clock = withSleep(
    () => awake,
    () => other,
    0.5,
  );
  const advance = (seconds: number, otherSeconds: number): number => {
    awake += seconds;
    other += otherSeconds;
    return clock();
  };
  assert.equal(advance(10, 10.3), 10, "what may be rounding does not count");
  assert.equal(advance(1, 3601), 3611.3);
  assert.equal(advance(1, -7200), 3612.3, "set back");
  assert.equal(Math.round(advance(1, 61)), 3673, "suspended again");
});

test("the work is told, and its success does not count", async () => {
  await using server = await hostile(good);
  const gateway = new Gateway({ url: server.url });
  const refuse = (): void => {
    server.answer = granting((_, response) => {
      json(response, 410, { code: "lease-lost", detail: "x" });
    });
  };
  await assert.rejects(
    gateway.lock("job/1", SOON, async (lock) => {
      refuse();
      await lossOf(lock.signal);
      return "done";
    }),
    LockLost,
  );
  server.answer = good;
  await assert.rejects(
    gateway.lock("job/1", SOON, ({ signal }) => {
      refuse();
      return after(20_000, undefined, { signal });
    }),
    LockLost,
    "an AbortError of a library is the loss",
  );
  server.answer = good;
  await assert.rejects(
    gateway.lock("job/1", SOON, () => Promise.reject(new RangeError("mine"))),
    RangeError,
  );
  assert.equal(await gateway.lock("job/1", SOON, () => "done"), "done");
  assert.equal(server.asked.filter(({ method }) => method === "DELETE").length, 4, "each was released");
});

test("a write that is refused by the fence", async () => {
  await using server = await hostile(
    granting((_, response) => {
      json(response, 412, { code: "token-stale", detail: "Overtaken.", resource: "job/1", token: "7", fence: "8" });
    }),
  );
  await using lock = await new Gateway({ url: server.url }).acquire("job/1");
  await assert.rejects(lock.fetch("/v1/tables/x", { method: "POST" }), (error: unknown) => {
    assert.ok(error instanceof TokenStale);
    return error.fence === "8";
  });
  const loss = await lossOf(lock.signal);
  assert.equal(loss.reason, "stale");
  assert.ok(loss.cause instanceof TokenStale);
});

test("another fence is no loss of this lock, and an ordinary 412 is the program's own", async () => {
  let resource = "job/2";
  await using server = await hostile(
    granting((_, response) => {
      json(response, 412, { code: resource === "" ? "row-changed" : "token-stale", detail: "x", resource });
    }),
  );
  await using lock = await new Gateway({ url: server.url }).acquire("job/1");
  await assert.rejects(lock.fetch("/v1/tables/x", { method: "POST" }), TokenStale);
  lock.check();
  resource = "";
  const response = await lock.fetch("/v1/tables/x", { method: "POST" });
  await assert.rejects(throwForRefusal(response), Refused);
  assert.equal(((await response.json()) as { code: string }).code, "row-changed", "its body is still there");
});

test("a write without an answer is unknown, and not sent again; one under way ends with the lock", async () => {
  await using server = await hostile(granting((_, response) => response.destroy()));
  const gateway = new Gateway({ url: server.url });
  await using lock = await gateway.acquire("job/1");
  await assert.rejects(lock.fetch("/v1/tables/x", { method: "POST" }), OutcomeUnknown);
  await assert.rejects(lock.fetch("/v1/tables/x"), Unavailable);
  assert.equal(server.asked.filter(({ path }) => path.includes("tables")).length, 2);
  await using short = await locked(server, () => undefined, gateway);
  await assert.rejects(short.fetch("/v1/tables/x", { method: "POST" }), LockLost);
});

test("a lock is shown to no other host", async () => {
  await using elsewhere = await hostile((_, response) => response.end("{}"));
  await using server = await hostile(
    granting((_, response) => response.writeHead(307, { Location: `${elsewhere.url}/caught` }).end()),
  );
  await using lock = await new Gateway({ url: server.url, apiKey: "a secret" }).acquire("job/1");
  await assert.rejects(lock.fetch("/away", { method: "PUT", body: "x" }), Refused);
  assert.equal((await lock.fetch("/away", { redirect: "manual" })).status, 307);
  assert.equal(elsewhere.asked.length, 0);
  await lock.fetch(elsewhere.url, { headers: { "Fencing-Token": "7" } });
  const shown = Object.keys(elsewhere.asked[0]?.headers ?? {});
  assert.ok(!shown.some((name) => name.startsWith("fencing-") || name === "authorization"));
});

test("after the release nothing is sent, and nothing is left behind", async () => {
  await using server = await hostile(
    granting((asked, response) => {
      renewing(response, asked);
    }),
  );
  const lock = await new Gateway({ url: server.url }).acquire("job/1", { ttl: 0.3 });
  await lock.release();
  await lock.release();
  const asked = server.asked.length;
  await assert.rejects(lock.fetch("/x"), (error: unknown) => error instanceof LockLost && error.reason === "released");
  await after(400);
  assert.equal(server.asked.length, asked);
  assert.equal(lock.signal.aborted, false, "a release is no loss");
});

test("a release that gets no answer, and a token that never comes", async () => {
  await using server = await hostile(granting(() => undefined));
  let never = false;
  const token = (): Promise<string> => (never ? new Promise<string>(() => undefined) : Promise.resolve("identity"));
  const lock = await new Gateway({ url: server.url, token }).acquire("job/1", { ttl: 0.3 });
  never = true;
  const began = performance.now();
  await lossOf(lock.signal);
  await lock.release();
  assert.ok(performance.now() - began < 8000);
});

test("an acquire that is answered wrongly is withdrawn", async () => {
  await using server = await hostile((asked, response) => {
    if (asked.path.startsWith("/v1/leases/")) response.end("<html>");
    else response.writeHead(204).end();
  });
  await assert.rejects(new Gateway({ url: server.url }).acquire("job/1"), Refused);
  const [acquired, withdrawn] = server.asked;
  assert.equal(withdrawn?.path, "/v1/withdrawals/job/1");
  const { holder, request } = JSON.parse(acquired?.body ?? "") as { holder: string; request: string };
  assert.deepEqual(JSON.parse(withdrawn.body), { holder, request });
  assert.match(holder, /^losing\.test\.[jt]s@[!-~]+:\d+-[0-9a-f]{12}$/);
});

test("an answer that was lost: the same request again", async () => {
  let lost = 0;
  const good = granting(() => undefined);
  await using server = await hostile((asked, response) => {
    if (asked.method === "POST" && lost++ === 0) response.destroy();
    else good(asked, response);
  });
  await using lock = await new Gateway({ url: server.url }).acquire("job/1", { barrier: false, wait: 0 });
  lock.check();
  const [first, second] = server.asked;
  assert.equal(first?.body, second?.body);
});

test("a gateway that is not there", async () => {
  const server = await hostile(() => undefined);
  await server[Symbol.asyncDispose]();
  await assert.rejects(new Gateway({ url: server.url }).acquire("job/1", { wait: 0 }), Unavailable);
});

test("a barrier that is refused although the lock is held: the counter of the issuer went back", async () => {
  const good = granting((asked, response) => {
    const { holder } = JSON.parse(server.asked[0]?.body ?? "") as { holder: string };
    assert.equal(asked.method, "GET");
    json(response, 200, { resource: "job/1", holders: [{ holder, token: "7" }] });
  });
  await using server = await hostile((asked, response) => {
    if (asked.path.endsWith("/barrier")) json(response, 412, { code: "token-stale", detail: "x", fence: "8" });
    else good(asked, response);
  });
  await assert.rejects(new Gateway({ url: server.url }).acquire("job/1"), { name: "IssuerWentBackwards" });
  assert.equal(server.asked.at(-1)?.method, "DELETE", "it was given back");
});

test("a lock that is held by another", async () => {
  await using server = await hostile((_, response) => {
    json(response, 409, { code: "lock-held", detail: "x", resource: "job/1", holder: "other", expires_in: 3 });
  });
  const refused = await new Gateway({ url: server.url }).acquire("job/1", { wait: 0 }).catch((error: unknown) => error);
  assert.ok(refused instanceof NotAcquired);
  assert.deepEqual([refused.holder, refused.expiresIn], ["other", 3]);
});

test("wrong arguments are refused before any request", async () => {
  const gateway = new Gateway({ url: "http://127.0.0.1:1" });
  await assert.rejects(gateway.acquire("a b"), RangeError);
  await assert.rejects(gateway.acquire("job/1", { ttl: NaN }), RangeError);
  await assert.rejects(gateway.acquire("job/1", { wait: -1 }), RangeError);
  await assert.rejects(gateway.acquire("job/1", { holder: " x" }), RangeError);
  await assert.rejects(gateway.acquire("job/1", { signal: AbortSignal.abort() }), { name: "AbortError" });
  assert.throws(() => new Gateway({ url: "ftp://x" }), TypeError);
});
