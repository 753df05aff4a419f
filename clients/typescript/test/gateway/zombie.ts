/** A program of its own, which a test stops past the end of its lease: url, API key, lock, and the row to write. */

import { createInterface } from "node:readline";

import { Gateway, LockLost, TokenStale, throwForRefusal } from "../../src/index.js";

const [url = "", apiKey = "", resource = "", id = ""] = process.argv.slice(2);
const path = `/v1/tables/accounts?id=eq.${id}`;
const write = { method: "PUT", body: JSON.stringify({ id: Number(id), owner: "zombie" }) };
const type = { "Content-Type": "application/json" };

await using lock = await new Gateway({ url, apiKey }).acquire(resource, { ttl: 3 });
const kept = lock.headers();
console.log("holds");
await new Promise((resolve) => createInterface({ input: process.stdin }).once("line", resolve));
try {
  await lock.fetch(path, { ...write, headers: type });
} catch (error) {
  if (!(error instanceof LockLost)) throw error;
  console.log("LockLost", lock.signal.aborted);
}
try {
  // Past the lock: the storage refuses it.
  const headers = { ...kept, ...type, Authorization: `Bearer ${apiKey}` };
  await throwForRefusal(await fetch(url + path, { ...write, headers }));
} catch (error) {
  if (!(error instanceof TokenStale)) throw error;
  console.log("TokenStale", error.token, error.fence, error.raisedBy);
}
process.exit(0);
