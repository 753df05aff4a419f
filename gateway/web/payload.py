"""What was kept of a payload, so that a person can look at it without harm. Pure."""

from dataclasses import dataclass

_LINE = 16
_MOST_BINARY = 1024


@dataclass(frozen=True, slots=True)
class Shown:
    """``lines`` of text, or of bytes in hex with their offsets where it is none (``binary``)."""

    lines: list[str]
    binary: bool


def shown(body: bytes) -> Shown:
    """The payload as lines. What is not UTF-8 is shown by its first bytes; a last character cut in two is left out."""
    try:
        return Shown(_text(body).splitlines(), binary=False)
    except UnicodeDecodeError:
        begins = range(0, min(len(body), _MOST_BINARY), _LINE)
        return Shown([_hex(begin, body[begin : begin + _LINE]) for begin in begins], binary=True)


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        if error.start < len(body) - 3 or error.reason != "unexpected end of data":
            raise
        return body[: error.start].decode()


def _hex(offset: int, piece: bytes) -> str:
    printable = "".join(chr(octet) if 32 <= octet < 127 else "." for octet in piece)
    return f"{offset:06x}  {piece.hex(' '):<{3 * _LINE}} {printable}"
