// An OpenID provider with its own pages for login and consent. Any name is an account; "ann" is on call.
// Its argument is JSON: the client, and the address to which people come back. It prints its issuer, and ends with stdin.
import { generateKeyPairSync } from "node:crypto";
import { createServer } from "node:http";

import Provider from "oidc-provider";

const { client_id, client_secret, redirect_uri } = JSON.parse(process.argv[2]);

function key(type, options, alg) {
  const { privateKey } = generateKeyPairSync(type, options);
  return { ...privateKey.export({ format: "jwk" }), kid: alg, alg, use: "sig" };
}

const server = createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://localhost:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{ client_id, client_secret, redirect_uris: [redirect_uri], response_types: ["code"] }],
    jwks: { keys: [key("rsa", { modulusLength: 2048 }, "RS256"), key("ec", { namedCurve: "P-256" }, "ES256")] },
    cookies: { keys: ["a key for tests"] },
    pkce: { required: () => true },
    claims: { openid: ["sub", "groups"] },
    conformIdTokenClaims: false,
    findAccount: (_, id) => ({
      accountId: id,
      claims: () => ({ sub: id, groups: id === "ann" ? ["on-call"] : ["staff"] }),
    }),
  });
  provider.use(async (ctx, next) => {
    await next();
    if (ctx.path === "/favicon.ico") ctx.status = 204;
    // Its pages ask another host for a font.
    if (typeof ctx.body === "string") ctx.body = ctx.body.replace(/@import url\([^)]*\);/, "");
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
process.stdin.on("end", () => process.exit()).resume();
