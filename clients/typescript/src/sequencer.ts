/** Sequencers: a token with the proof that it was issued. A client passes the text on unchanged. */

import { canonical } from "./resource.js";
import { Token } from "./token.js";

export type Mode = "exclusive" | "shared";

export interface Sequencer {
  readonly resource: string;
  readonly mode: Mode;
  readonly token: Token;
  readonly signature: string;
}

const MAX_CHARACTERS = 512 + ":exclusive:2147483647.9223372036854775807:".length + 43;
const FORM = /^(.*):(exclusive|shared):([^:]*):([\x00-\x7f]+)$/s; // eslint-disable-line no-control-regex

/** Read `resource:mode:token:signature`. Throws a RangeError, which repeats nothing of it: it is as good as a token. */
export function parseSequencer(text: string): Sequencer {
  const parts = text.length <= MAX_CHARACTERS ? FORM.exec(text) : null;
  if (parts?.[4]?.includes(":") !== false) throw new RangeError("The sequencer cannot be read.");
  try {
    const [, resource = "", mode, token = "", signature] = parts;
    return { resource: canonical(resource), mode: mode as Mode, token: Token.parse(token), signature };
  } catch {
    throw new RangeError("The sequencer cannot be read.");
  }
}
