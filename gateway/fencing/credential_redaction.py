"""Credentials that stand in the text of a request are not repeated: not on record, in the log or in a trace.

One list and one function for all planes, because no plane can know by which of its names a client says a secret.
"""

import re
from urllib.parse import quote, unquote

REDACTED = "[redacted]"

_SECRET = frozenset(
    {
        "access-token",
        "api-key",
        "apikey",
        "authorization",
        "cookie",
        "proxy-authorization",
        "signature",
        "x-api-key",
        "x-amz-copy-source-server-side-encryption-customer-key",
        "x-amz-mfa",
        "x-amz-security-token",
        "x-amz-server-side-encryption-customer-key",
        "x-amz-signature",
        # A sequencer proves its token for any client that shows it, and so does a session token that contains one.
        "fencing-sequencer",
        "x-amz-meta-fencing-sequencer",
    }
)
_CREDENTIAL = "x-amz-credential"
"""It begins with the access key id, which says who it is, and proves nothing."""

_NAMES = (*_SECRET, _CREDENTIAL)
_PIECES = re.compile(r"""([?&;=\s"'<>])""")
_ACCESS_KEY_ID = re.compile(r"^[^/?&;=%\s]*")
_PARTS = re.compile(r"([?&;])")
_ENDS = frozenset("&;\"'<>")
_DEEPEST = 5
"""How often a text may be percent-encoded and still be read. Text encoded more often is left out unread."""
_LONGEST, _MOST_LINES = 2048, 1000
"""Characters and lines that are read of a text that may have a credential. The rest is left out unread.

Strangers choose such texts, and reading them takes the time of all callers.
"""
_SHORTEST = min(map(len, _SECRET))


def redacted(text: str) -> str:
    """Return the text, an address or a message with addresses, without the values of credentials.

    The rest stays unchanged, to the letter. Names match in any case, with ``_`` for ``-``, and percent-encoded. So do
    addresses that are percent-encoded inside others. No value goes beyond its line. Long texts lose what is too much to
    read.
    """
    if not _may_have_any(text):
        return text
    lines, left = text.split("\n", _MOST_LINES), _LONGEST
    for place, line in enumerate(lines[:_MOST_LINES]):
        if _may_have_any(line):
            read = line[:left]
            left -= len(read)
            lines[place] = _redacted(read, _DEEPEST) + (REDACTED if len(read) < len(line) else "")
    lines[_MOST_LINES:] = [REDACTED] * (len(lines) > _MOST_LINES)
    return "\n".join(lines)


def _may_have_any(text: str) -> bool:
    """Return whether a text may have a credential. The answer takes next to no time, even for a long text."""
    if "%" in text:
        return True
    if "=" not in text:
        return False
    plain = text.replace("_", "-").lower()
    for name in _NAMES:  # noqa: SIM110 - a generator would take as long as the search
        if name in plain:
            return True
    return False


def _redacted(text: str, depth: int) -> str:
    if "=" in text:
        text = _without_values(text)
    if "%" not in text:
        return text
    return "".join(_inner(part, depth) for part in _PARTS.split(text))


def _without_values(text: str) -> str:
    """Return the text without the values of the parameters that it contains literally."""
    kept = [""]
    pieces = iter(_PIECES.split(text))
    for piece in pieces:
        name = _name(kept[-1]) if piece == "=" and len(kept[-1]) >= _SHORTEST else ""
        kept.append(piece)
        if name in _SECRET or name == _CREDENTIAL:
            value, end = [], ""
            for part in pieces:
                if part in _ENDS or part.isspace():
                    end = part
                    break
                value.append(part)
            kept += (_ACCESS_KEY_ID.findall(_plain("".join(value)))[0] if name == _CREDENTIAL else REDACTED, end)
    return "".join(kept)


def _inner(part: str, depth: int) -> str:
    """Return the same for the percent-encoded contents of a part of the text."""
    decoded = unquote(part)
    if decoded == part:
        return part
    if not depth:
        return REDACTED
    kept = _redacted(decoded, depth - 1)
    return part if kept == decoded else quote(kept, safe="/:@[]!$'()*,")


def _name(text: str) -> str:
    return _PARTS.split(_plain(text))[-1].replace("+", " ").replace("_", "-").strip().lower()


def _plain(text: str) -> str:
    """Return the text, decoded until nothing is left to decode."""
    for _ in range(_DEEPEST):
        decoded = unquote(text)
        if decoded == text:
            break
        text = decoded
    return text
