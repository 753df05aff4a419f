"""Resource names: their one canonical form, and the templates rules build them from.

A name is RFC 3986 path characters; any other byte, and any ``/`` that belongs to a value, is percent-encoded in upper
case. ``,`` and ``=`` are encoded as well, so that lists of ``resource=token`` stay readable by machine.

A name stands in the path of a URL exactly as it is. HTTP clients and proxies fold the segments ``.`` and ``..``, even
percent-encoded ones, and would name another resource then. So no name has such a segment: see ``escape``.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote_to_bytes

from gateway.errors import ConfigurationError, ResourceMalformed

MAX_BYTES = 512

# The SQL functions fencing.escape_v1 and fencing.canonical_v1 must agree with this module to the letter.
_LITERAL = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+;:@")
_ENCODED = tuple(chr(byte) if byte in _LITERAL else f"%{byte:02X}" for byte in range(256))
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9\-._~!$&'()*+;:@]*")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9\-._~!$&'()*+;:@/]{1,512}")
_UNIT = re.compile(r"%([0-9A-F]{2})|([A-Za-z0-9\-._~!$&'()*+;:@/])")
_OTHER = r"[A-Za-z0-9\-_~!$&'()*+;:@]|%([0189A-F][0-9A-F]|2[0235CF]|3[CDEF]|5[BCDE]|60|7[BCDF])"
_SEGMENT = rf"(\.*({_OTHER})({_OTHER}|\.)*|\.{{3,}})"
GRAMMAR = f"(/*{_SEGMENT}(/+{_SEGMENT})*/*|/+)"
"""Names in canonical form, as an expression without its ends, for readers that know no lookahead.

It takes names that are too long, too.
"""
_WHOLE = rf"({_SEGMENT.replace('()*', '()')}|\*)"
PATTERN_GRAMMAR = rf"(/*{_WHOLE}(/+{_WHOLE})*(/+(\*\*)?)?|/+(\*\*)?|\*\*)"
"""The same for patterns of names."""
_FOLDED = re.compile(r"(?:^|/)\.\.?(?:/|$)")
_DOTS = re.compile(r"\.\.?~*")
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_FIELD = re.compile(r"\{([^{}/]+)\}")


def escape(value: str) -> str:
    """Return one value as it stands in a resource name: nothing in it can be taken for the template around it.

    The values ``.`` and ``..`` end in ``~``. So that two values never share a name, ``.~`` ends in one more, and so on.
    """
    if _PLAIN_VALUE.fullmatch(value):
        return f"{value}~" if value.startswith(".") and _DOTS.fullmatch(value) else value
    return "".join(_ENCODED[byte] for byte in value.encode())


def escape_path(value: str) -> str:
    """Return the text of a value that may span segments, such as an object key: its slashes stay slashes."""
    return "/".join(escape(segment) for segment in value.split("/"))


def canonical(name: str) -> str:
    """Return ``name`` if it is in canonical form. Raise ``ResourceMalformed``, with the spelling to use, if not."""
    if _PLAIN_NAME.fullmatch(name) and not name.startswith(".") and "/." not in name:
        return name
    fault = _fault(name)
    if fault is None:
        return name
    known = spelling(name)
    usage = "which stands in headers, in JSON and in the path of a URL as it is"
    raise ResourceMalformed(fault, advice=known and f"Its canonical spelling is {known}, {usage}.")


def _fault(name: str) -> str | None:
    if not name:
        return "A resource name must not be empty."
    if len(name.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        return f"A resource name has at most {MAX_BYTES} bytes; this one has more."
    if _FOLDED.search(name):
        return "A resource name has no segment . or .., because HTTP clients fold them."
    position = 0
    while position < len(name):
        unit = _UNIT.match(name, position)
        if unit is None:
            return f"Character {position + 1} of the resource name must be percent-encoded in upper case."
        if unit[1] is not None and int(unit[1], 16) in _LITERAL:
            return f"%{unit[1]} in the resource name stands for a character that is written plainly."
        position = unit.end()
    return None


def spelling(name: str) -> str | None:
    """Return the one canonical name that ``name`` can only mean; None where there is none."""
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        return None
    # An encoded byte has three characters. A longer name has too many bytes, and need not be read.
    if not 0 < len(raw) <= 3 * MAX_BYTES or _BROKEN_ESCAPE.search(raw):
        return None
    segments = ("".join(_ENCODED[byte] for byte in unquote_to_bytes(segment)) for segment in raw.split(b"/"))
    known = "/".join(f"{segment}~" if segment in (".", "..") else segment for segment in segments)
    return known if len(known) <= MAX_BYTES else None


@dataclass(frozen=True, slots=True)
class Template:
    """A resource template such as ``order/{order_id}``: literal text and named fields.

    A segment holds at most one field, because only ``/`` cannot occur inside a value. Two fields side by side would
    give two rows one name.
    """

    text: str
    literals: tuple[str, ...]
    fields: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a template. Raises ``ConfigurationError`` if names built from it could be ambiguous or malformed."""
        pieces = _FIELD.split(text)
        literals, fields = tuple(pieces[::2]), tuple(pieces[1::2])
        for segment in text.split("/"):
            if len(_FIELD.findall(segment)) > 1:
                raise ConfigurationError(f"resource template {text!r}: at most one field between two slashes")
        try:
            canonical("".join(literals) or "x")
        except ResourceMalformed as error:
            raise ConfigurationError(f"resource template {text!r}: {error.message}") from error
        if not text:
            raise ConfigurationError("a resource template must not be empty; remove the key for the default")
        return cls(text, literals, fields)

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the resource name for these values. Raise ``ResourceMalformed`` if it exceeds the limit."""
        return self.join([escape(values[field]) for field in self.fields])

    def join(self, escaped: list[str]) -> str:
        """Return the resource name for values that are escaped already, in the order of ``fields``."""
        name = self.literals[0]
        for value, literal in zip(escaped, self.literals[1:], strict=True):
            name += value + literal
        # Made of canonical parts, it can only be too long, or nothing at all.
        return name if 0 < len(name) <= MAX_BYTES else canonical(name)


def check_pattern(pattern: str) -> None:
    """Raise ``ResourceMalformed`` for what is no name in canonical form with such segments in it."""
    segments = canonical(pattern).split("/")
    for position, segment in enumerate(segments):
        last = position == len(segments) - 1
        if "*" in segment and segment != "*" and not (segment == "**" and last):
            raise ResourceMalformed(
                f"The segment {segment!r} of the resource pattern must be a name, * or a last **.",
                advice="Write * in place of a whole segment, or ** in place of everything after a slash.",
            )


def covers(pattern: str, resource: str) -> bool:
    """Whether a checked pattern is about a resource, named in canonical form."""
    wanted, given = pattern.split("/"), resource.split("/")
    if wanted[-1] == "**":
        wanted.pop()
        # All the rest may be empty, but it comes after a slash: job/** is not about job itself.
        if len(given) <= len(wanted):
            return False
    elif len(given) != len(wanted):
        return False
    return all(segment in ("*", name) for segment, name in zip(wanted, given, strict=False))


def as_expression(pattern: str) -> str:
    """Return a checked pattern as a regular expression without its ends, for Python and for PostgreSQL."""
    segments = (".*" if one == "**" else "[^/]*" if one == "*" else re.escape(one) for one in pattern.split("/"))
    return "/".join(segments)


def includes(pattern: str, other: str) -> bool:
    """Return whether ``pattern``, a checked one, is about every resource that ``other`` is about.

    ``other`` may have literal asterisks for wildcards: that only widens it.
    """
    wanted, given = pattern.split("/"), other.split("/")
    if wanted[-1] == "**":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
    elif given[-1] == "**" or len(given) != len(wanted):
        return False
    return all(segment in ("*", name) for segment, name in zip(wanted, given, strict=False))


def overlap(one: str, other: str) -> bool:
    """Return whether there can be a resource that both patterns are about."""
    left, right = one.split("/"), other.split("/")
    open_left, open_right = left[-1] == "**", right[-1] == "**"
    left, right = left[: len(left) - open_left], right[: len(right) - open_right]
    if (not open_left and len(left) < len(right) + open_right) or (
        not open_right and len(right) < len(left) + open_left
    ):
        return False
    return all(a == b or "*" in (a, b) for a, b in zip(left, right, strict=False))


_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# No bucket has a name that ends like this. AWS makes such names for access points: other names of a bucket, and so of
# every object in it.
_ALIASES = ("-s3alias", "--op-s3", "--ol-s3", "--xa-s3", ".mrap")


def is_bucket_alias(name: str) -> bool:
    """Return whether a name is that of an access point, not of a bucket."""
    return name.endswith(_ALIASES)


def is_bucket_name(name: str) -> bool:
    if is_bucket_alias(name) or not _BUCKET.fullmatch(name) or ".." in name:
        return False
    if not name.replace(".", "").isdecimal():
        return True
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return True
    return False
