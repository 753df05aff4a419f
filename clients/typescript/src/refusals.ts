/** Answers from 400 on as typed errors: the one place that knows the gateway's codes. */

import {
  type Details,
  type Facts,
  FencingError,
  LockLost,
  NotAcquired,
  OutcomeUnknown,
  Refused,
  TokenImplausible,
  TokenStale,
  Unavailable,
  textOf,
} from "./errors.js";
import { retryAfter } from "./retries.js";

type Kind = new (message: string, details: Details) => FencingError;

const KINDS = new Map<string, readonly [string, Kind]>([
  ["token-stale", ["token-stale", TokenStale]],
  ["token-duplicate", ["token-duplicate", TokenStale]],
  ["token-implausible", ["token-implausible", TokenImplausible]],
  ["lease-lost", ["lease-lost", LockLost]],
  ["outcome-unknown", ["outcome-unknown", OutcomeUnknown]],
  ["unavailable", ["unavailable", Unavailable]],
  ["database-closed", ["database-closed", Unavailable]],
  ["journal-unusable", ["journal-unusable", Unavailable]],
  ["naming-changed", ["naming-changed", Unavailable]],
  ["sessions-shared", ["sessions-shared", Unavailable]],
  // Buckets have codes of their own.
  ["StaleFencingToken", ["token-stale", TokenStale]],
  ["DuplicateFencingToken", ["token-duplicate", TokenStale]],
  ["ImplausibleFencingToken", ["token-implausible", TokenImplausible]],
  ["FencingOutcomeUnknown", ["outcome-unknown", OutcomeUnknown]],
  ["ServiceUnavailable", ["unavailable", Unavailable]],
]);
const USED = new Set(["token-used", "UsedFencingToken"]);

const STANDARD = new Set(["type", "title", "status", "detail", "code", "advice"]);
/** Facts that PostgREST's keys and S3's elements contain only as words. */
const SENTENCES = [
  /Resource (?<resource>\S+): the write presented token (?<token>\S+), the fence is (?<fence>\S+), raised by (?<raised_by>.*) at (?<raised_at>\S+); rejection (?<rejection>\S+)\./,
  /The fencing token (?<token>\S+) of (?<resource>\S+) has been overtaken by (?<fence>[0-9.]*[0-9])\./,
  /Another holder, (?<raised_by>.*), uses the fencing token (?<token>\S+) of (?<resource>\S+)\./,
];
const ELEMENT = /<([A-Za-z][A-Za-z0-9]*)>([^<]*)<\/\1>/g;
const ENTITIES = new Map([
  ["lt", "<"],
  ["gt", ">"],
  ["amp", "&"],
  ["quot", '"'],
  ["apos", "'"],
]);

/** Return the typed error that a response means; null if it is not an error. The body of `response` stays unread. */
export async function refusalOf(response: Response): Promise<FencingError | null> {
  if (response.status < 400) return null;
  return refusalFrom(response.status, response.headers, await response.clone().text());
}

/** Throw the typed error that a response means, or return the response. */
export async function throwForRefusal(response: Response): Promise<Response> {
  const refusal = await refusalOf(response);
  if (refusal !== null) throw refusal;
  return response;
}

/** Return the error that an answer with a status from 400 on means. */
export function refusalFrom(status: number, headers: Headers, body: string): FencingError {
  const asked = retryAfter(headers);
  const document = objectIn(body);
  const code = document !== null && "code" in document ? (textOf(document["code"]) ?? "") : null;
  if (document !== null && code !== null && "detail" in document) {
    const facts = Object.fromEntries(Object.entries(document).filter(([name]) => !STANDARD.has(name)));
    return make(status, code, worded(document["detail"]), textOf(document["advice"]), facts, asked);
  }
  if (document !== null && code !== null && "message" in document) {
    const message = worded(document["message"]);
    const facts = factsIn(message, worded(document["details"]));
    return make(status, code, message, textOf(document["hint"]), facts, asked);
  }
  if (body.includes("<Error>")) {
    const elements = Object.fromEntries(
      Array.from(body.matchAll(ELEMENT), ([, name = "", value = ""]) => [name, unescaped(value)]),
    );
    return refusalOfElements(status, elements, asked);
  }
  const shown = /\berror=([\w.-]+)/.exec(headers.get("proxy-status") ?? "");
  return make(status, shown?.[1] ?? "", `The answer was ${status}.`, null, {}, asked);
}

/** Return the same from the elements of S3's error document. */
export function refusalOfElements(status: number, elements: Facts, asked: number | null = null): FencingError {
  const message = textOf(elements["Message"]) ?? "";
  const others = Object.entries(elements)
    .filter(([name]) => !["Code", "Message", "Resource"].includes(name))
    .map(([name, value]) => [name.replace(/([a-z0-9])([A-Z])/g, "$1_$2").toLowerCase(), value] as const);
  const facts = { ...factsIn(message), ...Object.fromEntries(others) };
  return make(status, textOf(elements["Code"]) ?? "", message, null, facts, asked);
}

/** Whether an error must not be overlooked, even by programs that check a status: the fence has refused a write. */
export function isOfTheFence(error: FencingError): boolean {
  return error instanceof TokenStale || USED.has(error.code);
}

/** The status decides for a foreign code: only a 4xx means that nothing was done. */
function make(
  status: number,
  code: string,
  message: string,
  advice: string | null,
  facts: Facts,
  asked: number | null,
): FencingError {
  const details: Details = { code, advice, facts, retryAfter: asked };
  if (code === "lock-held") {
    const holder = textOf(facts["holder"]);
    const by = holder === null ? "was not to be had" : `is held by ${holder}`;
    return new NotAcquired(`The lock ${textOf(facts["resource"]) ?? ""} ${by}.`, { ...details, advice: null });
  }
  const known = KINDS.get(code);
  if (known !== undefined) {
    const [own, Known] = known;
    return new Known(message, { ...details, code: own });
  }
  if (status === 429) return new Unavailable(message, details);
  if (status >= 500 && status !== 501) return new OutcomeUnknown(message, { ...details, advice: null });
  return new Refused(message, status, details);
}

function objectIn(body: string): Readonly<Record<string, unknown>> | null {
  try {
    const document: unknown = JSON.parse(body);
    const isObject = typeof document === "object" && document !== null && !Array.isArray(document);
    return isObject ? (document as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

function factsIn(...sentences: string[]): Facts {
  const found = sentences.flatMap((sentence) => SENTENCES.map((pattern) => pattern.exec(sentence)?.groups ?? {}));
  return Object.assign({}, ...found) as Facts;
}

function worded(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function unescaped(text: string): string {
  return text.replace(/&(?:#(\d{1,7})|#x([0-9A-Fa-f]{1,6})|(\w+));/g, (whole, decimal, hexadecimal, name) => {
    if (typeof name === "string") return ENTITIES.get(name) ?? whole;
    const point = typeof decimal === "string" ? Number(decimal) : parseInt(String(hexadecimal), 16);
    return point <= 0x10ffff ? String.fromCodePoint(point) : whole;
  });
}
