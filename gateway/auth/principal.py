"""Who is calling, once it is proven, and what a caller with fenced credentials is bound to."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from gateway.errors import ResourceMalformed, StoreError
from gateway.fencing.resource import canonical
from gateway.fencing.token import Token


@dataclass(frozen=True, slots=True)
class Grant:
    """What fenced credentials are bound to: the resources of ``pattern``, written with ``token`` and no other.

    ``pattern`` is a resource name in canonical form, in which a segment ``*`` stands for any one segment and a last
    ``**`` for all the rest; ``ResourceMalformed`` for anything else. ``expires`` is aware; None where nothing ends it.
    """

    pattern: str
    token: Token
    holder: str | None = None
    expires: datetime | None = None

    def __post_init__(self) -> None:
        segments = canonical(self.pattern).split("/")
        for position, segment in enumerate(segments):
            last = position == len(segments) - 1
            if "*" in segment and segment != "*" and not (segment == "**" and last):
                raise ResourceMalformed(
                    f"The segment {segment!r} of the resource pattern must be a name, * or a last **.",
                    advice="Write * in place of a whole segment, or ** in place of everything after a slash.",
                )

    @property
    def plain(self) -> bool:
        """Whether the pattern is the name of one resource."""
        return "*" not in self.pattern

    def covers(self, resource: str) -> bool:
        """Whether the grant is about a resource, named in canonical form."""
        wanted, given = self.pattern.split("/"), resource.split("/")
        if wanted[-1] == "**":
            wanted.pop()
            # All the rest may be empty, but it comes after a slash: job/** is not about job itself.
            if len(given) <= len(wanted):
                return False
        elif len(given) != len(wanted):
            return False
        return all(segment in ("*", name) for segment, name in zip(wanted, given, strict=False))


@dataclass(frozen=True, slots=True)
class Principal:
    """A proven caller. ``name`` is the configured name, ``anonymous`` where anyone is let in.

    ``admin``: may administer buckets. ``grant``: what its writes are bound to; None where it presents tokens itself.
    """

    name: str
    admin: bool = False
    grant: Grant | None = None


ANONYMOUS = Principal("anonymous")

SecretOf: TypeAlias = Callable[[str, str | None], tuple[Principal, str] | None]
"""From an access key id and the session token beside it, if any, to their owner and the secret; None where the id is
not known. Raises ``StoreError`` (InvalidToken) where the two do not belong together."""


def owner(access_key_id: str, session_token: str | None, secret_of: SecretOf, now: datetime) -> tuple[Principal, str]:
    """Whose access key it is, and its secret. ``now`` is aware. Raises ``StoreError`` for keys that are not good."""
    found = secret_of(access_key_id, session_token)
    if found is None:
        raise StoreError("InvalidAccessKeyId", 403, "The access key id is not known here.")
    grant = found[0].grant
    if grant is not None and grant.expires is not None and grant.expires <= now:
        raise StoreError("ExpiredToken", 400, "The fenced credentials have expired. Ask for new ones.")
    return found
