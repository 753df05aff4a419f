"""Authorisation: what each plane asks before it serves a caller, and how it denies. The planes add what they are about.

A write under a rule that observes needs a grant that names its place: the gateway would lend its own rights there.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias

from gateway.auth.grants import Limits, Missing
from gateway.db.spelling import Spellings
from gateway.errors import Denied, Unauthenticated
from gateway.fencing.decision import Enforcement
from gateway.fencing.ownership import Owned
from gateway.fencing.record import ANONYMOUS, Attempt

Refuse: TypeAlias = Callable[[Missing, Attempt], Awaitable[Denied | Unauthenticated]]
"""Puts a denial on record, and returns its error. Raises ``Unavailable`` if it cannot be recorded."""


class Authorisation:
    """The checks of one database. They raise ``Denied``, once the denial is on record, or what ``Refuse`` raises.

    ``owned``: the resources whose fences are in this database, None for all. Another database's raise
    ``CrossesDatabases``. A name that may stand for another one raises ``ResourceMalformed``.
    """

    def __init__(self, refuse: Refuse, owned: Owned | None = None, spellings: Spellings | None = None) -> None:
        self._refuse, self._owned, self._spellings = refuse, owned, spellings

    def owns(self, resources: Iterable[str]) -> None:
        """Check that the fences of these resources are in this database. They are named in canonical form."""
        if self._owned is not None:
            self._owned.check(resources)

    async def owns_all(self, pattern: str) -> None:
        """Check that the fences of all resources that a checked pattern covers are in this database."""
        if self._owned is not None:
            self._owned.check_pattern(pattern)
        await self.check_spelling([pattern])

    async def check_spelling(self, names: Sequence[str]) -> None:
        """Check that names which a request makes up stand for no other ones."""
        if self._spellings is not None:
            await self._spellings.check(names)

    @staticmethod
    def covered(
        limits: Limits, resources: Sequence[str] | None, mode: Enforcement, caller: str
    ) -> Sequence[str] | None:
        """Return the resources of a write that grants cover; None if it is denied. ``resources`` None: not known.

        If a rule enforces, all of them have to be covered.
        """
        if limits.cover_all(resources):
            return resources or ()
        if mode is Enforcement.OBSERVE and limits.placed and caller != ANONYMOUS:
            return [one for one in resources or () if limits.cover(one)]
        return None
