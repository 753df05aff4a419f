"""Cross-origin checks: which page of a browser sends a request, and whether it may change anything here. Pure.

A browser sends requests for pages of any site. The sender needs no key where anonymous callers are let in, and a
session cookie travels by itself. So each request that can change something is held against the origin of its page.
Browsers name it in ``Sec-Fetch-Site`` or ``Origin``, which scripts cannot set. Programs send neither.
"""

from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import TypeAlias

from gateway.errors import Forbidden

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
"""Methods that change nothing; every other one is checked."""

_OF_PAGES = frozenset((b"origin", b"sec-fetch-site"))
# "none": the user started the request, not a page.
_OWN_SITES = frozenset((b"same-origin", b"none"))


class Sender(Enum):
    """The page that sends a request, as its headers tell."""

    PROGRAM = auto()
    """No page is named."""
    OWN = auto()
    """A page of this gateway's own origin."""
    FOREIGN = auto()
    """A page of another origin, or of one that cannot be told."""


def sender(headers: Headers) -> Sender:
    """Return the sender according to the headers, whose names are in lower case. ``Sec-Fetch-Site`` counts first.

    Browsers send it to https and to this machine only. ``Origin`` is compared with ``Host`` without its scheme, because
    a proxy in front may end TLS.
    """
    if not [name for name, _ in headers if name in _OF_PAGES]:
        return Sender.PROGRAM
    sites = {value for name, value in headers if name == b"sec-fetch-site"}
    if sites:
        return Sender.OWN if sites <= _OWN_SITES else Sender.FOREIGN
    origins = {value.partition(b"://")[2].lower() for name, value in headers if name == b"origin"}
    hosts = {value.strip().lower() for name, value in headers if name == b"host"}
    return Sender.OWN if origins == hosts and b"" not in hosts else Sender.FOREIGN


def origin_of(headers: Headers) -> bytes | None:
    """Return the origin of the page that sends a request; None if no origin is named, or more than one."""
    origins = [value for name, value in headers if name == b"origin"]
    return origins[0] if len(origins) == 1 else None


def admits(allowed: Collection[str], origin: bytes) -> bool:
    """Return whether ``origin`` is among the allowed ones, or all are by ``*``.

    The comparison is exact: browsers write an origin in one way only, and no list can name ``null``.
    """
    return "*" in allowed or origin.decode("latin-1") in allowed


def check(method: str, headers: Headers, allowed: Collection[str] = ()) -> None:
    """Raise ``Forbidden`` for a request that may change something and comes from a page of an origin not allowed."""
    if method in SAFE or sender(headers) is not Sender.FOREIGN:
        return
    if not admits(allowed, origin_of(headers) or b"null"):
        raise Forbidden(
            "A page of another origin must not change anything here.",
            advice="Use a program, or a page of this gateway. A proxy in front must pass on the "
            "Host that the browser sent. For a page that uses tables, ask the operator to add its origin to "
            "server.cors_origins.",
        )
