"""Who is calling, once it is proven, and what a caller with fenced credentials is bound to."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from gateway.errors import RequestMalformed, StoreError
from gateway.fencing import record
from gateway.fencing.resource import check_pattern, covers
from gateway.fencing.sequencer import Sequencer
from gateway.fencing.token import Token

EVERYTHING = "**"
"""The pattern of all resources."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What fenced credentials are bound to: the resources of ``pattern``, written with ``token`` and no other.

    They read those resources, and beside them what the patterns ``read`` cover. ``EVERYTHING`` among these opens every
    bucket.

    ``pattern`` is a resource name in canonical form, in which a segment ``*`` stands for any one segment and a last
    ``**`` for all the rest; ``ResourceMalformed`` for anything else. ``expires`` is aware; None where nothing ends it.
    ``sequencer`` proves the token, for the one resource that it names.
    """

    pattern: str
    token: Token
    holder: str | None = None
    expires: datetime | None = None
    sequencer: Sequencer | None = None
    read: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_pattern(self.pattern)
        for pattern in self.read:
            check_pattern(pattern)
        if self.sequencer is not None and self.sequencer.token != self.token:
            raise RequestMalformed(
                "The sequencer is for another token than the credentials are.",
                advice="Ask with the token that the sequencer names.",
            )

    @property
    def plain(self) -> bool:
        """Whether the pattern is the name of one resource."""
        return "*" not in self.pattern

    def covers(self, resource: str) -> bool:
        """Whether the grant is about a resource, named in canonical form."""
        return covers(self.pattern, resource)

    @property
    def reads_everything(self) -> bool:
        """Return whether nothing is left to compare: all resources of all buckets may be read."""
        return EVERYTHING in self.readable

    @property
    def readable(self) -> tuple[str, ...]:
        """Return the patterns of what may be read."""
        return (self.pattern, *self.read)


@dataclass(frozen=True, slots=True)
class Principal:
    """A proven caller. ``name`` is the configured name, ``anonymous`` where anyone is let in.

    ``admin``: may administer buckets. ``grant``: what its writes are bound to; None where it presents tokens itself.
    ``audit``: may read the whole record; others are shown what they have done themselves.
    """

    name: str
    admin: bool = False
    grant: Grant | None = None
    audit: bool = False


ANONYMOUS = Principal(record.ANONYMOUS, audit=True)

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


def shown_to(principal: Principal) -> str | None:
    """The one caller whose entries this principal is shown (``Filters.shown_to``); None: it is shown all of them.

    Who has fenced credentials has them for writing, and is shown what its caller has done at the most.
    """
    return None if principal.audit and principal.grant is None else principal.name
