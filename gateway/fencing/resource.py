"""Resource names: their one canonical form, and the templates rules build them from.

A name is RFC 3986 path characters; any other byte, and any ``/`` that belongs to a value, is percent-encoded in upper
case. ``,`` and ``=`` are encoded as well, so that lists of ``resource=token`` stay readable by machine.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from gateway.errors import ConfigurationError, ResourceMalformed

MAX_BYTES = 512

# The SQL function fencing.escape_v1 (migrations) must agree with this set to the letter.
_LITERAL = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+;:@")
_ENCODED = tuple(chr(byte) if byte in _LITERAL else f"%{byte:02X}" for byte in range(256))
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9\-._~!$&'()*+;:@]*")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9\-._~!$&'()*+;:@/]{1,512}")
_UNIT = re.compile(r"%([0-9A-F]{2})|([A-Za-z0-9\-._~!$&'()*+;:@/])")
_FIELD = re.compile(r"\{([^{}/]+)\}")


def escape(value: str) -> str:
    """One value as it stands in a resource name: nothing in it can be taken for the template around it."""
    if _PLAIN_VALUE.fullmatch(value):
        return value
    return "".join(_ENCODED[byte] for byte in value.encode())


def escape_path(value: str) -> str:
    """A value that may span segments, such as an object key at the end of a name: its slashes stay slashes."""
    return "/".join(escape(segment) for segment in value.split("/"))


def canonical(name: str) -> str:
    """``name`` itself if it is in canonical form, else ``ResourceMalformed``."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    if not name:
        raise ResourceMalformed("A resource name must not be empty.")
    if len(name.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ResourceMalformed(f"A resource name has at most {MAX_BYTES} bytes; this one has more.")
    position = 0
    while position < len(name):
        unit = _UNIT.match(name, position)
        if unit is None:
            raise ResourceMalformed(
                f"Character {position + 1} of the resource name must be percent-encoded in upper case."
            )
        if unit[1] is not None and int(unit[1], 16) in _LITERAL:
            raise ResourceMalformed(f"%{unit[1]} in the resource name stands for a character that is written plainly.")
        position = unit.end()
    return name


@dataclass(frozen=True, slots=True)
class Template:
    """A resource template such as ``order/{order_id}``: literal text and named fields.

    A segment holds at most one field, because only ``/`` cannot occur inside a filled-in value: two fields side by
    side would give two rows one name.
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
            raise ConfigurationError("a resource template must not be empty")
        return cls(text, literals, fields)

    def fill(self, values: Mapping[str, str]) -> str:
        """The resource name for these values. ``ResourceMalformed`` if it grows over the limit."""
        return self.join([escape(values[field]) for field in self.fields])

    def join(self, escaped: list[str]) -> str:
        """The resource name for values that are escaped already, in the order of ``fields``."""
        name = self.literals[0]
        for value, literal in zip(escaped, self.literals[1:], strict=True):
            name += value + literal
        # Made of canonical parts, it can only be too long, or nothing at all.
        return name if 0 < len(name) <= MAX_BYTES else canonical(name)
