"""Media types: which form of an answer the caller accepts, and which form its body has."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gateway.errors import DialectError
from gateway.tables.dialect.grammar import kept_if_short

Form: TypeAlias = Literal["json", "stripped", "csv"]
BodyType: TypeAlias = Literal["json", "csv", "urlencoded", "text", "binary"]


@dataclass(frozen=True, slots=True)
class Media:
    """A form of answers. ``singular``: one object in place of an array; ``form`` stripped: JSON without its nulls."""

    name: str
    form: Form = "json"
    singular: bool = False

    @property
    def content_type(self) -> tuple[bytes, bytes]:
        return b"content-type", f"{self.name}; charset=utf-8".encode()


JSON = Media("application/json")
CSV = Media("text/csv", "csv")
OBJECT = Media("application/vnd.pgrst.object+json", singular=True)
OBJECT_STRIPPED = Media("application/vnd.pgrst.object+json;nulls=stripped", "stripped", singular=True)
ARRAY_STRIPPED = Media("application/vnd.pgrst.array+json;nulls=stripped", "stripped")
OPENAPI = Media("application/openapi+json")

_ROWS = {
    "application/json": JSON, "application/*": JSON, "*/*": JSON, "text/csv": CSV,
    "application/vnd.pgrst.object+json": OBJECT, "application/vnd.pgrst.object": OBJECT,
    "application/vnd.pgrst.array+json": JSON, "application/vnd.pgrst.array": JSON,
}  # fmt: skip
_STRIPPED = {OBJECT: OBJECT_STRIPPED}
_ARRAYS = frozenset(("application/vnd.pgrst.array+json", "application/vnd.pgrst.array"))
_ROOT = {"application/openapi+json": OPENAPI, "application/json": OPENAPI, "application/*": OPENAPI, "*/*": OPENAPI}
_BODIES: dict[str, BodyType] = {
    "": "json", "application/json": "json", "text/csv": "csv", "application/x-www-form-urlencoded": "urlencoded",
    "text/plain": "text", "application/octet-stream": "binary",
}  # fmt: skip
_QUALITY = re.compile(r"q=([01](?:\.[0-9]{0,3})?)")


@kept_if_short
def accepted(accept: str) -> Media | None:
    """Return the best form of rows that the caller accepts, by its ``q``, then by its order; None if there is none."""
    return JSON if not accept else _best(accept, _ROWS)


@kept_if_short
def root_accepted(accept: str) -> Media | None:
    return OPENAPI if not accept else _best(accept, _ROOT)


def not_acceptable(accept: str) -> DialectError:
    """PGRST107: nothing the caller accepts is served."""
    return DialectError("PGRST107", 406, f"None of these media types are available: {accept[:200]}")


def body_type(headers: Mapping[bytes, str]) -> BodyType:
    """Return the form of the body. Raise PGRST102 for an unsupported one."""
    name = headers.get(b"content-type", "").partition(";")[0].strip().lower()
    if name not in _BODIES:
        raise type_not_acceptable(name)
    return _BODIES[name]


def type_not_acceptable(name: str) -> DialectError:
    """PGRST102: bodies of this type are not read here."""
    return DialectError("PGRST102", 400, f"Content-Type not acceptable: {name[:100]}")


def _best(accept: str, served: Mapping[str, Media]) -> Media | None:
    offers: list[tuple[float, int, Media]] = []
    for position, item in enumerate(accept.split(",")):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        media, quality = served.get(name), _quality(parameters)
        if media is None or not quality:
            continue
        if "nulls=stripped" in parameters:
            media = ARRAY_STRIPPED if name in _ARRAYS else _STRIPPED.get(media, media)
        offers.append((-quality, position, media))
    return min(offers, key=lambda offer: offer[:2])[2] if offers else None


def _quality(parameters: list[str]) -> float:
    for parameter in parameters:
        match = _QUALITY.fullmatch(parameter)
        if match:
            return float(match[1])
    return 1.0
