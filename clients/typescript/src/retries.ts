/** The pause before a request to the API is sent again: doubling, random, and as long as the answer asks for. */

const FIRST = 0.05;
const LONGEST = 1;
/** Seconds of `Retry-After` that are kept to. A queue keeps the place of a client that is away for five. */
const MOST_ASKED = 2;
const MOST_SECONDS = 86_400;

/** Return the seconds to wait after so many failures in a row, from 1 on. `draw` is a random number from 0 to 1. */
export function pause(failures: number, asked: number | null, draw: number = Math.random()): number {
  const doubled = Math.min(FIRST * 2 ** Math.min(failures - 1, 16), LONGEST);
  return Math.max(doubled * (0.5 + draw / 2), Math.min(asked ?? 0, MOST_ASKED));
}

/**
 * Return the seconds of the header `Retry-After`; null without one that can be read.
 *
 * A date counts from the `Date` of the same answer, so that no two clocks are compared.
 */
export function retryAfter(headers: Headers): number | null {
  const asked = headers.get("retry-after") ?? "";
  if (/^[0-9]{1,18}$/.test(asked)) return Math.min(Number(asked), MOST_SECONDS);
  const until = momentOf(asked);
  const now = momentOf(headers.get("date") ?? "");
  if (until === null || now === null) return null;
  return Math.min(Math.max((until - now) / 1000, 0), MOST_SECONDS);
}

/** Return the milliseconds of a date in the one form of HTTP; null for anything else. */
function momentOf(text: string): number | null {
  const moment = new Date(text);
  // Its own text is this very form. A date that does not exist would come back as another one.
  return Number.isNaN(moment.getTime()) || moment.toUTCString() !== text ? null : moment.getTime();
}
