/** Resource names: their one canonical form, which stands in URLs, headers and JSON as it is. */

const MAX_BYTES = 512;
const LITERAL = /[A-Za-z0-9\-._~!$&'()*+;:@]/;
const NAME = /^(?:%[0-9A-F]{2}|[A-Za-z0-9\-._~!$&'()*+;:@/])*$/;
const FOLDED = /(?:^|\/)\.\.?(?:\/|$)/;

/** Return `name` if it is canonical. Throws a RangeError, with the spelling to use if there is one. */
export function canonical(name: string): string {
  const fault = faultOf(name);
  if (fault === null) return name;
  const spelling = spellingOf(name);
  throw new RangeError(spelling === null ? fault : `${fault} Its canonical spelling is ${spelling}.`);
}

/** Return one value as it stands in a resource name. `.` and `..` end in `~`, because HTTP clients fold them. */
export function escape(value: string): string {
  if (/^\.\.?~*$/.test(value)) return `${value}~`;
  return encoded(new TextEncoder().encode(value));
}

/** Return the text of a value that may span segments, such as an object key: its slashes stay slashes. */
export function escapePath(value: string): string {
  return value.split("/").map(escape).join("/");
}

function faultOf(name: string): string | null {
  if (name === "") return "A resource name must not be empty.";
  if (new TextEncoder().encode(name).length > MAX_BYTES) return `A resource name has at most ${MAX_BYTES} bytes.`;
  if (FOLDED.test(name)) return "A resource name has no segment . or .., because HTTP clients fold them.";
  if (!NAME.test(name)) return "The resource name has characters that must be percent-encoded in upper case.";
  for (const [escaped] of name.matchAll(/%../g)) {
    if (LITERAL.test(String.fromCharCode(parseInt(escaped.slice(1), 16)))) {
      return `${escaped} in the resource name stands for a character that is written plainly.`;
    }
  }
  return null;
}

/** Return the one canonical name that `name` can only mean; null if there is none. */
function spellingOf(name: string): string | null {
  if (name === "" || /%(?![0-9A-Fa-f]{2})/.test(name) || /\p{Surrogate}/u.test(name)) return null;
  const segments = name.split("/").map((segment) => {
    const written = encoded(decoded(segment));
    return written === "." || written === ".." ? `${written}~` : written;
  });
  const spelling = segments.join("/");
  return spelling.length <= MAX_BYTES ? spelling : null;
}

function encoded(bytes: Uint8Array): string {
  const units = Array.from(bytes, (byte) => {
    const character = String.fromCharCode(byte);
    return LITERAL.test(character) ? character : `%${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  });
  return units.join("");
}

function decoded(text: string): Uint8Array {
  const units = text.match(/%[0-9A-Fa-f]{2}|[^%]+/g) ?? [];
  return Uint8Array.from(
    units.flatMap((unit) =>
      unit.startsWith("%") ? [parseInt(unit.slice(1), 16)] : Array.from(new TextEncoder().encode(unit)),
    ),
  );
}
