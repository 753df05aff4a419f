/** Fencing tokens: read, write, compare. */

const GRAMMAR = /^(?:(0|[1-9][0-9]{0,9})\.)?(0|[1-9][0-9]{0,18})$/;
const MAX_EPOCH = 2n ** 31n - 1n;
const MAX_VALUE = 2n ** 63n - 1n;

/** A fencing token, `[epoch "."] value`. It has up to 63 bits, so its parts are no floating-point numbers. */
export class Token {
  private constructor(
    /** It grows when an issuer has lost its counter. */
    readonly epoch: bigint,
    /** It grows with every new holder. */
    readonly value: bigint,
  ) {}

  /** Read the wire form. Throws a RangeError for anything else. */
  static parse(text: string): Token {
    const found = GRAMMAR.exec(text);
    if (found === null) throw new RangeError(`${shown(text)} is not a fencing token.`);
    const epoch = BigInt(found[1] ?? "0");
    const value = BigInt(found[2] ?? "");
    if (epoch > MAX_EPOCH || value > MAX_VALUE) throw new RangeError(`${shown(text)} is out of range.`);
    return new Token(epoch, value);
  }

  /** Return a negative number if `left` is lower, a positive one if it is higher, and 0 for equal tokens. */
  static compare(left: Token, right: Token): number {
    const difference = left.epoch === right.epoch ? left.value - right.value : left.epoch - right.epoch;
    return difference < 0n ? -1 : difference > 0n ? 1 : 0;
  }

  /** Return the canonical wire form: epoch 0 is not written. */
  toString(): string {
    return this.epoch === 0n ? this.value.toString() : `${this.epoch.toString()}.${this.value.toString()}`;
  }

  toJSON(): string {
    return this.toString();
  }
}

function shown(text: string): string {
  return JSON.stringify(text.length <= 64 ? text : `${text.slice(0, 61)}...`);
}
