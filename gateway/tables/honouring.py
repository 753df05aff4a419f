"""Settles what of a request can be honoured, once its table is known to exist: preferences, and the form of answer."""

from collections.abc import Mapping

from gateway.store import settings
from gateway.store.database import Database
from gateway.tables import request
from gateway.tables.request import Request


class Honouring:
    """``tx_override``: callers may have their writes rolled back."""

    def __init__(self, database: Database, *, tx_override: bool) -> None:
        self._database, self._tx_override = database, tx_override
        self._zones: frozenset[str] | None = None

    async def settled(self, wanted: Request, headers: Mapping[bytes, str]) -> Request:
        """The request with what can be honoured of its preferences. ``headers`` by lower-case name.

        Raises PGRST122 for preferences that strict handling refuses, PGRST107 where no form of answer is acceptable.
        """
        zones: frozenset[str] = frozenset()
        if wanted.preferences.timezone is not None:
            zones = await self._known_zones()
        return request.settled(wanted, headers, tx_override=self._tx_override, zones=zones)

    async def _known_zones(self) -> frozenset[str]:
        """Asked for once: they come with the server's software, and asking takes it a while."""
        if self._zones is None:
            self._zones = await settings.zones(self._database)
        return self._zones
