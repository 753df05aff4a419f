/** The client against a real gateway, whose address and keys are in the environment (tests/clients/test_typescript.py). */

import assert from "node:assert/strict";
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { randomInt, randomUUID } from "node:crypto";
import { connect, createServer, type AddressInfo, type Socket } from "node:net";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { setTimeout as after } from "node:timers/promises";
import { fileURLToPath } from "node:url";

import {
  DeleteObjectsCommand,
  GetObjectCommand,
  PutObjectCommand,
  S3Client,
  type S3ClientConfig,
} from "@aws-sdk/client-s3";
import { createClient } from "@supabase/supabase-js";

import {
  Gateway,
  LockLost,
  NotAcquired,
  parseSequencer,
  Refused,
  TokenStale,
  Unavailable,
  throwForRefusal,
} from "../../src/index.js";

function setting(name: string): string {
  const value = process.env[name];
  assert.ok(value !== undefined, `${name} is not set: run tests/clients/test_typescript.py`);
  return value;
}

const url = setting("GATEWAY_URL");
const apiKey = setting("GATEWAY_API_KEY");
const gateway = new Gateway({ url, apiKey });

process.on("unhandledRejection", (error) => {
  throw error;
});

/** A lock that no other test uses. */
const job = (): string => `job/${randomUUID()}`;
/** A row and the objects that no other test uses. */
const account = (): { id: number; resource: string; path: string } => {
  const id = randomInt(10 ** 9, 10 ** 12);
  return { id, resource: `public.accounts/${id}`, path: `/v1/tables/accounts?id=eq.${id}` };
};

async function ask<T>(method: string, path: string, body?: object, key = apiKey): Promise<T> {
  const response = await fetch(url + path, {
    method,
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  await throwForRefusal(response);
  return (await response.json()) as T;
}

interface Standing {
  readonly token: string | null;
  readonly holders: { readonly holder: string; readonly expires_at: string }[];
  readonly waiters: number;
}
const standing = (resource: string): Promise<Standing> => ask("GET", `/v1/leases/${resource}`);
const takeOver = (resource: string): Promise<unknown> =>
  ask("POST", `/v1/fences/${resource}/barrier`, { token: "1000", holder: "successor" });
const owner = async (path: string): Promise<unknown> => (await ask<{ owner: string }[]>("GET", path))[0]?.owner;

async function until(holds: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; !(await holds()); tries += 1) {
    assert.ok(tries < 600, "it has not happened");
    await after(50);
  }
}

/** Wait until the lock is lost, and return why. Its own timers keep no process alive. */
async function lossOf(signal: AbortSignal): Promise<LockLost> {
  await after(60_000, undefined, { signal }).catch(() => undefined);
  assert.ok(signal.reason instanceof LockLost);
  return signal.reason;
}

test("a lock is held by one, and its token grows", async () => {
  const name = job();
  {
    await using lock = await gateway.acquire(name, { ttl: 20 });
    assert.equal(lock.token.toString(), "1");
    assert.deepEqual(
      (await standing(name)).holders.map(({ holder }) => holder),
      [lock.holder],
    );
    await assert.rejects(
      gateway.acquire(name, { wait: 0 }),
      (error: unknown) => error instanceof NotAcquired && error.holder === lock.holder,
    );
    await lock.barrier();
  }
  assert.deepEqual((await standing(name)).holders, []);
  await gateway.lock(name, { wait: 0 }, (lock) => {
    assert.equal(lock.token.value, 2n);
  });
});

test("it is renewed", async () => {
  const name = job();
  await using lock = await gateway.acquire(name, { ttl: 1.5 });
  await after(3000);
  lock.check();
  assert.equal((await standing(name)).holders.length, 1);
});

test("sharing, and proof of a token", async () => {
  const name = `signed/${randomUUID()}`;
  await using one = await gateway.acquire(name, { mode: "shared" });
  await using other = await gateway.acquire(name, { mode: "shared", wait: 0 });
  assert.equal(one.token.toString(), other.token.toString());
  assert.equal("Fencing-Holder" in one.headers(), false);
  assert.equal(parseSequencer(one.sequencer ?? "").resource, name);
});

test("a lock that an operator breaks", async () => {
  const name = job();
  await assert.rejects(
    gateway.lock(name, { ttl: 1.5 }, async (lock) => {
      await ask(
        "POST",
        `/v1/breaks/${name}`,
        { expected: lock.token.toString(), reason: "a test" },
        setting("GATEWAY_OPERATOR_KEY"),
      );
      await after(20_000, undefined, { signal: lock.signal });
    }),
    (error: unknown) => error instanceof LockLost && error.reason === "refused" && error.code === "lease-lost",
  );
});

test("a hold that is released elsewhere, under the same name", async () => {
  const name = job();
  await using lock = await gateway.acquire(name, { ttl: 1.5, holder: "night shift" });
  await (await gateway.acquire(name, { holder: "night shift", wait: 0 })).release();
  assert.equal((await lossOf(lock.signal)).reason, "refused");
});

test("a caller that is not known", async () => {
  await assert.rejects(
    new Gateway({ url, apiKey: "another" }).acquire(job()),
    (error: unknown) => error instanceof Refused && error.status === 401,
  );
  let valid = true;
  let renewals = 0;
  const changing = new Gateway({
    url,
    token: () => {
      if (valid) return apiKey;
      renewals += 1;
      return "another";
    },
  });
  await using lock = await changing.acquire(job(), { ttl: 4 });
  valid = false;
  const loss = await lossOf(lock.signal);
  assert.equal(loss.reason, "late");
  assert.ok(renewals > 1, "a renewal that is not authorised is repeated while there is time");
  // On a busy machine the last renewal may have no answer in time.
  assert.ok(loss.cause instanceof Refused || loss.cause instanceof Unavailable);
});

test("waiting takes many requests, and keeps the place in the queue", async () => {
  const name = job();
  const order: string[] = [];
  const holding = await gateway.acquire(name);
  const waiting: Promise<void>[] = [];
  for (const [index, holder] of ["first", "second"].entries()) {
    waiting.push(
      gateway.lock(name, { holder }, () => {
        order.push(holder);
      }),
    );
    await until(async () => (await standing(name)).waiters === index + 1);
  }
  await after(1500);
  await holding.release();
  await Promise.all(waiting);
  assert.deepEqual(order, ["first", "second"]);
});

test("waiting for too long, and waiting that is cancelled: the place is given back", async () => {
  const name = job();
  await using lock = await gateway.acquire(name);
  await assert.rejects(gateway.acquire(name, { wait: 0.3 }), NotAcquired);
  assert.equal((await standing(name)).waiters, 0);
  const cancelling = new AbortController();
  const acquiring = gateway.acquire(name, { signal: cancelling.signal });
  await until(async () => (await standing(name)).waiters === 1);
  cancelling.abort(new RangeError("enough"));
  await assert.rejects(acquiring, RangeError);
  assert.equal((await standing(name)).waiters, 0);
  await lock.release();
  assert.deepEqual((await standing(name)).holders, []);
});

test("a gateway that is gone", async () => {
  const sockets = new Set<Socket>();
  const { hostname, port } = new URL(url);
  const relay = createServer((socket) => {
    const onward = connect(Number(port), hostname);
    for (const one of [socket, onward]) {
      sockets.add(one);
      one.on("error", () => undefined).on("close", () => sockets.delete(one));
    }
    socket.pipe(onward).pipe(socket);
  });
  await new Promise<void>((resolve) => relay.listen(0, "127.0.0.1", resolve));
  const far = new Gateway({ url: `http://127.0.0.1:${(relay.address() as AddressInfo).port}`, apiKey });
  const name = job();
  await using lock = await far.acquire(name, { ttl: 1.5 });
  relay.close();
  for (const socket of sockets) socket.destroy();
  const loss = await lossOf(lock.signal);
  assert.equal(loss.reason, "late");
  assert.ok(loss.cause instanceof Unavailable);
  await assert.rejects(far.acquire(name, { wait: 0 }), Unavailable);
  await using next = await gateway.acquire(name);
  assert.equal(next.token.value, 2n);
});

/** Start a compiled program of this folder. */
function program(
  name: string,
  ...args: string[]
): { child: ChildProcessWithoutNullStreams; line: () => Promise<string> } {
  const path = fileURLToPath(new URL(`./${name}.js`, import.meta.url));
  const child = spawn(process.execPath, [path, url, apiKey, ...args]);
  child.stderr.pipe(process.stderr);
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return { child, line: async () => String((await lines.next()).value) };
}

test("a process that was stopped past the end of its lease", async () => {
  const { id, resource, path } = account();
  const { child, line } = program("zombie", resource, String(id));
  try {
    assert.equal(await line(), "holds");
    child.kill("SIGSTOP");
    await using newer = await gateway.acquire(resource, { wait: 30 });
    const headers = { "Content-Type": "application/json" };
    const body = JSON.stringify({ id, owner: "successor" });
    await throwForRefusal(await newer.fetch(path, { method: "PUT", headers, body }));
    child.stdin.write("write\n");
    child.kill("SIGCONT");
    assert.equal(await line(), "LockLost true");
    assert.equal(await line(), `TokenStale 1 2 ${newer.holder}`);
    assert.equal(await owner(path), "successor");
    const { rejections } = await ask<{ rejections: unknown[] }>("GET", `/v1/rejections?resource=${resource}`);
    assert.equal(rejections.length, 1, "the other one was never sent");
  } finally {
    child.kill("SIGKILL");
  }
});

test("a lock keeps no process alive", async () => {
  const { child, line } = program("forgetful", job());
  assert.equal(await line(), "1");
  const began = performance.now();
  assert.equal(await new Promise((resolve) => child.once("exit", resolve)), 0);
  assert.ok(performance.now() - began < 10_000);
});

test("supabase-js writes under a lock, and cannot after a takeover", async () => {
  const { id, resource, path } = account();
  await using lock = await gateway.acquire(resource);
  const supabase = createClient(url, apiKey, {
    global: { fetch: lock.fetch },
    // Node has no WebSocket before 22; tables need none.
    realtime: { transport: Object as never },
  });
  const row = { id, owner: "dora", balance: 120 };
  await supabase.from("accounts").upsert(row).throwOnError();
  assert.equal(await owner(path), "dora");
  const other = await supabase.from("accounts").upsert({ id: id + 1, owner: "x" });
  assert.equal(other.error?.code, "resource-mismatch", "another resource is not touched");
  lock.check();
  await takeOver(resource);
  const { error } = await supabase.from("accounts").upsert({ ...row, owner: "late" });
  assert.match(error?.message ?? "", /has been overtaken by 1000/);
  assert.equal((await lossOf(lock.signal)).reason, "stale");
  await assert.rejects(async () => supabase.from("accounts").upsert(row).throwOnError(), /LockLost|taken over/);
  assert.equal(await owner(path), "dora");
});

const s3Settings: S3ClientConfig = {
  endpoint: url,
  region: "us-east-1",
  forcePathStyle: true,
  credentials: { accessKeyId: setting("GATEWAY_ACCESS_KEY"), secretAccessKey: setting("GATEWAY_SECRET_KEY") },
};
const at = (id: number, name = "file"): { Bucket: string; Key: string } => ({
  Bucket: "reports",
  Key: `accounts/${id}/${name}`,
});

test("S3 clients of the AWS SDK write under a lock, and cannot after a takeover", async () => {
  const { id, resource } = account();
  await using lock = await gateway.acquire(resource);
  const s3 = new S3Client(s3Settings);
  s3.middlewareStack.use(lock.s3Plugin());
  await s3.send(new PutObjectCommand({ ...at(id), Body: "120" }), { abortSignal: lock.signal });
  await assert.rejects(s3.send(new PutObjectCommand({ ...at(id + 1), Body: "x" })), {
    name: "FencingResourceMismatch",
  });
  await assert.rejects(s3.send(new PutObjectCommand({ ...at(id), Body: "x", IfMatch: '"none"' })), {
    name: "PreconditionFailed",
  });
  lock.check();
  await takeOver(resource);
  const remove = new DeleteObjectsCommand({ Bucket: "reports", Delete: { Objects: [{ Key: at(id).Key }] } });
  await assert.rejects(s3.send(remove), (error: unknown) => {
    assert.ok(error instanceof TokenStale);
    return error.fence === "1000" && error.resource === resource;
  });
  assert.equal((await lossOf(lock.signal)).reason, "stale");
  await assert.rejects(s3.send(new PutObjectCommand({ ...at(id), Body: "late" })), LockLost);
  const reader = new S3Client(s3Settings);
  const kept = await reader.send(new GetObjectCommand(at(id)));
  assert.equal(await kept.Body?.transformToString(), "120");
});

test("a single object that is refused, and another server that sees no lock", async () => {
  const { id, resource } = account();
  await using lock = await gateway.acquire(resource);
  const s3 = new S3Client(s3Settings);
  s3.middlewareStack.use(lock.s3Plugin());
  await takeOver(resource);
  await assert.rejects(s3.send(new PutObjectCommand({ ...at(id), Body: "late" })), TokenStale);
});

test("temporary keys write under the lock", async () => {
  const { id, resource } = account();
  await using lock = await gateway.acquire(resource);
  const s3 = new S3Client({ ...s3Settings, credentials: await lock.credentials({ ttl: 60 }) });
  await s3.send(new PutObjectCommand({ ...at(id), Body: "by a child" }));
  await assert.rejects(s3.send(new PutObjectCommand({ ...at(id + 1), Body: "x" })));
});
