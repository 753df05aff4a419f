// The story of a takeover, by openapi-fetch with the types that openapi-typescript makes of /v1/openapi.json.
import createClient from "openapi-fetch";
import type { paths } from "./schema.d.ts";

declare const process: { argv: string[] };
const [origin, key, job, row] = process.argv.slice(2) as [string, string, string, string];
const headers = { Authorization: `Bearer ${key}` };
const client = createClient<paths>({ baseUrl: origin, headers });

function check(holds: boolean, told: unknown): void {
  if (!holds) throw new Error(JSON.stringify(told));
}

const lease = await client.POST("/v1/lease", { params: { query: { resource: job } }, body: { holder: "made" } });
check(lease.data?.resource === job, lease);
const fence = await client.POST("/v1/fence/barrier", { params: { query: { resource: row } }, body: { token: "34" } });
check(fence.data?.resource === row && fence.data.token === "34", fence);
const stale = await fetch(`${origin}/v1/tables/accounts?id=eq.${row.split("/")[1]}`, {
  method: "PATCH",
  headers: { ...headers, "Fencing-Token": "33", "Content-Type": "application/json" },
  body: JSON.stringify({ owner: "late" }),
});
check(stale.status === 412, await stale.text());
