/** A program that ends without a release: the lock keeps no process alive. */

import { Gateway } from "../../src/index.js";

const [url = "", apiKey = "", resource = ""] = process.argv.slice(2);
const lock = await new Gateway({ url, apiKey }).acquire(resource, { ttl: 20 });
console.log(lock.token.toString());
