// Deeds of a user with a token of its own, under row-level security: a line of JSON on the standard input names one, the
// client to do it with, and the token. The answer is a line with the rows, the status and the error.
import { createInterface } from "node:readline";
import { PostgrestClient } from "@supabase/postgrest-js";
import { createClient } from "@supabase/supabase-js";

const clients = {
  "postgrest-js": ({ origin, jwt, headers }) =>
    new PostgrestClient(`${origin}/rest/v1`, { headers: { Authorization: `Bearer ${jwt}`, ...headers } }),
  // A Supabase client sends its public token as apikey, and that of its user as Authorization.
  "supabase-js": ({ origin, jwt, anon, headers }) =>
    createClient(origin, anon, {
      global: { headers: { Authorization: `Bearer ${jwt}`, ...headers } },
      auth: { persistSession: false },
      realtime: { transport: class {} },
    }),
};

const deeds = {
  see: (notes) => notes.select("id,owner,text").order("id"),
  add: (notes, { id, owner, text }) => notes.insert({ id, owner, text }).select("id"),
  change: (notes, { id, text }) => notes.update({ text }).eq("id", id).select("id,text"),
  remove: (notes, { id }) => notes.delete().eq("id", id).select("id"),
};

for await (const line of createInterface({ input: process.stdin })) {
  const { client, deed, token, ...what } = JSON.parse(line);
  const headers = token === undefined ? {} : { "Fencing-Token": token };
  const notes = clients[client]({ ...what, headers }).from("notes");
  const { data, status, error } = await deeds[deed](notes, what);
  console.log(JSON.stringify({ data, status, code: error && error.code }));
}
