// Deeds of JavaScript clients of tables: a line of JSON on the standard input names one, and the client to do it with.
// The answer is a line with what came of it: the client's error, if any, and by which methods it has asked.
import { createInterface } from "node:readline";
import { PostgrestClient } from "@supabase/postgrest-js";
import { createClient } from "@supabase/supabase-js";

const key = "demo-key";
const headers = { Authorization: `Bearer ${key}` };

const expect = (holds, what) => {
  if (!holds) throw new Error(what);
};
const same = (seen, wanted, what) =>
  expect(JSON.stringify(seen) === JSON.stringify(wanted), `${what}: ${JSON.stringify(seen)}`);
const done = async (query) => {
  const answer = await query;
  if (answer.error) throw new Error(JSON.stringify(answer.error));
  return answer;
};

const deedsOf = ({ client, origin, token, id }, asking) => {
  const watched = (address, options) => {
    asking.push(options.method);
    return fetch(address, options);
  };
  const clients = {
    "postgrest-js": (more) =>
      new PostgrestClient(`${origin}/rest/v1`, { headers: { ...headers, ...more }, fetch: watched }),
    // Node 20 has no WebSocket, which supabase-js insists on; tables need none.
    "supabase-js": (more) =>
      createClient(origin, key, { global: { headers: more, fetch: watched }, realtime: { transport: class {} } }),
  };
  const tables = clients[client]({ "Fencing-Token": token });
  const account = (more = {}) => ({ id, owner: "dee", balance: 1, ...more });
  const accounts = () => tables.from("accounts");

  return {
    async everything() {
      const other = id + 1;
      const inserted = await done(accounts().insert([account(), account({ id: other, note: "second" })]).select());
      same(inserted.data.map((one) => one.id), [id, other], "inserted");
      same((await done(accounts().insert(account({ id: id + 2 })))).data, null, "nothing asked back");
      const upserted = await done(accounts().upsert({ id, owner: "dora", balance: 2 }, { count: "exact" }).select("owner"));
      same([upserted.data, upserted.count], [[{ owner: "dora" }], 1], "upserted");
      same((await done(accounts().upsert(account(), { ignoreDuplicates: true }).select())).data, [], "ignored");
      const updated = await done(accounts().update({ balance: 7 }, { count: "exact" }).in("id", [id, other]).select("balance"));
      same([updated.data, updated.count], [[{ balance: 7 }, { balance: 7 }], 2], "updated");
      const mine = () => accounts().select("id, name:owner", { count: "exact" }).gte("id", id).lte("id", id + 2);
      const page = await done(mine().order("id", { ascending: false }).range(0, 1));
      same([page.data, page.count], [[{ id: id + 2, name: "dee" }, { id: other, name: "dee" }], 3], "a page");
      const either = await done(mine().or(`id.eq.${other},owner.eq.dora`).not("balance", "is", null).order("id"));
      same(either.data.map((one) => one.id), [id, other], "either");
      same((await done(accounts().select("owner").eq("id", id).single())).data, { owner: "dora" }, "single");
      same((await done(accounts().select("owner").eq("id", id + 9).maybeSingle())).data, null, "maybe single");
      same((await accounts().select().gte("id", id).lte("id", other).single()).error.code, "PGRST116", "two are not one");
      same((await done(accounts().select("owner,balance").eq("id", id).csv())).data, "owner,balance\ndora,7", "CSV");
      same((await done(accounts().select("*", { count: "exact", head: true }).eq("id", id))).count, 1, "head");
      const limited = await accounts().update({ note: "x" }).in("id", [id, other]).maxAffected(1);
      same([limited.error.code, limited.status], ["PGRST124", 400], "max affected");
      same((await accounts().select("nothing")).error.code, "42703", "a column there is not");
      const gone = await done(accounts().delete().in("id", [other, id + 2]).select("id").order("id"));
      same(gone.data.map((one) => one.id), [other, id + 2], "deleted");
    },
    insert: () => accounts().insert(account({ id: id + 1 })),
    insertInto: () => accounts().insert(account()),
    upsert: () => accounts().upsert(account({ owner: "zoe" })),
    update: () => accounts().update({ owner: "zoe" }).eq("id", id),
    updateAndSelect: () => accounts().update({ owner: "zoe" }).eq("id", id).select().single(),
    delete: () => accounts().delete().eq("id", id),
    perRequest: () => clients[client]({}).from("accounts").update({ owner: "zoe" }).eq("id", id).setHeader("Fencing-Token", token),
    withoutToken: () => clients[client]({}).from("accounts").update({ owner: "zoe" }).eq("id", id),
  };
};

for await (const line of createInterface({ input: process.stdin })) {
  const { deed, ...what } = JSON.parse(line);
  const asking = [];
  const { status, error } = (await deedsOf(what, asking)[deed]()) ?? {};
  console.log(JSON.stringify({ status, error: error && { ...error, message: error.message }, asking }));
}
