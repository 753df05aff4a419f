/** A server that is no gateway, or a bad one: it answers as it is told, and remembers what it was asked. */

import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";

export interface Asked {
  readonly method: string;
  readonly path: string;
  readonly headers: IncomingMessage["headers"];
  readonly body: string;
}

/** Answers a request, or leaves it without an answer. */
export type Answer = (asked: Asked, response: ServerResponse) => void;

export interface Hostile extends AsyncDisposable {
  readonly url: string;
  readonly asked: Asked[];
  answer: Answer;
}

export async function hostile(answer: Answer): Promise<Hostile> {
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (chunk: Buffer) => {
      body += chunk.toString();
    });
    request.on("end", () => {
      const { method = "", url = "", headers } = request;
      const asked = { method, path: url, headers, body };
      one.asked.push(asked);
      one.answer(asked, response);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const one: Hostile = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    asked: [],
    answer,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
  return one;
}

export function json(response: ServerResponse, status: number, content: object, headers = {}): void {
  response.writeHead(status, { "Content-Type": "application/json", ...headers }).end(JSON.stringify(content));
}

const LEASE = "0f8fad5b-d9cb-469f-a165-70867728950e";

/** A good gateway with one lock that is always free. Its renewals and writes are answered by `others`. */
export function granting(others: Answer, seconds = 30): Answer {
  return (asked, response) => {
    const [resource = ""] = /job\/\d+/.exec(asked.path) ?? [];
    const lease = { resource, lease: LEASE, holder: "x", token: "7", sequencer: null, expires_in: seconds };
    if (asked.method === "POST" && asked.path.startsWith("/v1/leases/")) json(response, 201, lease);
    else if (asked.path.startsWith("/v1/fences/")) json(response, 200, { resource, token: "7" });
    else if (asked.method === "DELETE" || asked.path.startsWith("/v1/withdrawals/")) response.writeHead(204).end();
    else others(asked, response);
  };
}

/** Renews like a good gateway. */
export function renewing(response: ServerResponse, asked: Asked, seconds = 30): void {
  const [resource = ""] = /job\/\d+/.exec(asked.path) ?? [];
  json(response, 200, { resource, lease: LEASE, token: "7", sequencer: null, expires_in: seconds });
}
