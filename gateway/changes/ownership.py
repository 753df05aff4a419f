"""``gateway databases``: what a change of the configured rules of ownership would do, and the change itself."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from uuid import UUID, uuid4

from gateway import wiring
from gateway.changes.orders import (
    CarryOver,
    Close,
    EndSessions,
    FindObstacles,
    Open,
    OwnershipEffect,
    Reopen,
    change_ownership,
)
from gateway.config import Config
from gateway.config.databases import DatabaseConfig
from gateway.config.sections import NO_DATABASE
from gateway.db import ownership
from gateway.db.database import Database, Record
from gateway.driver import drive
from gateway.errors import ConfigurationError, CrossesDatabases, GatewayError, OwnershipDiffers, Unavailable
from gateway.fencing.ownership import (
    Domain,
    Ownership,
    Registered,
    Target,
    owners_in,
    ranges_elsewhere,
    shares_in,
    written,
)
from gateway.fencing.resource import escape
from gateway.journal.trust import Mode

_SHOWN = 5


@dataclass(slots=True)
class Seat:
    """One configured database. ``registered`` is None if it does not answer, and ``problem`` says why.

    ``concerned``: a change has to close it.
    """

    config: DatabaseConfig
    target: Target
    database: Database
    registered: Registered | None = None
    problem: str = ""
    concerned: bool = False

    @property
    def name(self) -> str | None:
        return self.config.name

    @property
    def label(self) -> str:
        """Its name, for people."""
        return self.name or "the database"


class Fleet:
    """All databases of a configuration, with what each says of itself."""

    def __init__(self, domains: Sequence[Domain], seats: Sequence[Seat]) -> None:
        self.seats, self._domains = seats, domains
        self._ownership = Ownership(domains) if domains else None
        self._by_name = {seat.name: seat for seat in seats}

    @property
    def concerned(self) -> list[Seat]:
        """The databases that a change has to close."""
        return [seat for seat in self.seats if seat.concerned]

    @property
    def _answers(self) -> list[Registered]:
        return [seat.registered for seat in self.seats if seat.registered is not None]

    @property
    def is_new(self) -> bool:
        """Whether it has several databases, all of them there and never used."""
        return bool(self._domains) and all(
            one.registered is not None
            and one.registered.name is None
            and one.registered.following is None
            and not one.registered.used
            for one in self.seats
        )

    async def ask(self, *, opens: bool = True) -> None:
        """Ask all databases. Raises ``ConfigurationError`` if two DSNs lead to one, or if they do not belong together.

        A database that does not answer is noted. ``opens``: open each for its run first, because only its journal tells
        whether it was put back.
        """
        await asyncio.gather(*(_ask(seat, opens=opens) for seat in self.seats))
        applied = [shares_in(rules) for rules in self._rules_being_applied()]
        for seat in self.seats:
            shares = [each.get(seat.name or "") for each in applied]
            seat.concerned = seat.registered is not None and not (
                seat.target.is_in_force(seat.registered)
                and all(share == seat.target.share for share in shares)
                # It does not tell any more which names it has given away. So all fences are carried over again.
                and not self._put_back
            )
        known: dict[str, Seat] = {}
        fleets: dict[UUID, Seat] = {}
        for seat in self.seats:
            if seat.registered is None:
                continue
            other = known.setdefault(seat.registered.identity, seat)
            if other is not seat:
                raise ConfigurationError(
                    f"The DSNs of {other.label} and {seat.label} lead to one database",
                    advice="Two databases cannot share their fences. Correct one of the DSNs.",
                )
            if seat.registered.fleet is not None:
                fleets.setdefault(seat.registered.fleet, seat)
        if len(fleets) > 1:
            first, second = list(fleets.values())[:2]
            raise ConfigurationError(
                f"{first.label} and {second.label} are of different fleets: they were never configured together",
                advice="Correct one of the DSNs.",
            )

    @property
    def _put_back(self) -> list[Seat]:
        return [seat for seat in self.seats if seat.registered is not None and seat.registered.is_put_back]

    def differences(self) -> list[OwnershipDiffers]:
        """Return an error for each database in which a gateway with this configuration gets no session now.

        A change that is under way is none.
        """
        found = []
        for seat in self.seats:
            if seat.registered is not None and seat.registered.following is None:
                try:
                    seat.registered.check(seat.config.owner)
                except OwnershipDiffers as error:
                    found.append(error)
        return found

    def check_applicable(self, forget: Collection[str] = ()) -> None:
        """Raise ``ConfigurationError`` if the rules cannot be applied as the databases are now.

        Raise ``Unavailable`` if a database has to be up for it. ``forget``: databases that are lost, with their fences.
        """
        for seat in self.seats:
            found = seat.registered
            if found is not None and seat.name is not None and found.name not in (None, seat.name):
                raise ConfigurationError(
                    f"The DSN of the database {seat.name} leads to the database {found.name}",
                    advice="Correct the DSN, or the name: the name of a database does not change.",
                )
        if self._put_back and not self._domains:
            raise ConfigurationError(
                "The database was put back to before a change of the rules, and may have been one of several",
                advice="Configure [[databases]] with all that belonged together, and apply that first.",
            )
        known = self._known_rules()
        # The databases of the newest rules own names that the new rules may give to others.
        names = {seat.name for seat in self.seats} | {seat.registered.name for seat in self.seats if seat.registered}
        for rules in known:
            if absent := sorted(owners_in(rules) - names - set(forget)):
                raise ConfigurationError(
                    f"The database {absent[0]} has names, and the configuration does not have it",
                    advice=f"Keep it in [[databases]] without schemas, buckets and resources, apply that, and remove "
                    f"it then. If it is lost with its fences: --forget {absent[0]}.",
                )
        if not self.concerned:
            return
        shares = [shares_in(rules) for rules in known]
        for seat in self.seats:
            unchanged = (
                bool(shares)
                and not self._put_back
                and all(each.get(seat.name or "") == seat.target.share for each in shares)
            )
            if seat.registered is None and not unchanged:
                raise Unavailable(
                    f"The database {seat.label} does not answer, and the rules may change what it has: {seat.problem}",
                    advice="Nothing was changed. Run the command again when it is up.",
                )

    def _known_rules(self) -> list[str]:
        """Return the newest rules that are in force in a database, and all that are being applied."""
        newest = max((one.number for one in self._answers), default=0)
        found = [one.rules for one in self._answers if one.rules is not None and one.number == newest]
        return list(dict.fromkeys([*found, *self._rules_being_applied()]))

    def _rules_being_applied(self) -> list[str]:
        targets = [Target.from_json(one.following).rules for one in self._answers if one.following is not None]
        return [rules for rules in targets if rules is not None]

    async def moving(self) -> list[str]:
        """Return how many fences and locks a change would carry over from which database to which, in words."""
        found = []
        for seat in self.concerned:
            counts: dict[str, set[str]] = {}
            async for rows in ownership.tokens_within(seat.database, self._ranges(seat)):
                for row in rows:
                    if (owner := self._moves_to(row["resource"], seat)) is not None:
                        counts.setdefault(owner, set()).add(row["resource"])
            for to, names in sorted(counts.items()):
                found.append(f"{seat.label}: {len(names)} fences and locks move to {to}")
        return found

    async def obstacles(self) -> list[str]:
        """Return what is not over in names that move, in words. It keeps a change from beginning."""
        return [one for seat in self.concerned for one in await self._obstacles(seat)]

    async def apply(self, say: Callable[[str], None]) -> bool:
        """Put the configured rules in force. To begin again after a crash is harmless.

        Return False if something was not over in names that move, and everything is as before: see ``obstacles``.
        """
        concerned = self.concerned
        for seat in concerned:
            await ownership.begin(seat.database)
        number = 1 + max((one.number for one in self._answers), default=0)
        fleet = next((one.fleet for one in self._answers if one.fleet is not None), uuid4())
        applied = await drive(
            change_ownership([seat.name for seat in concerned]),
            lambda effect: self._perform(effect, number, fleet, say),
        )
        if applied:
            await self._note(number)
        return applied

    async def _note(self, number: int) -> None:
        for seat in self.seats:
            if seat.registered is not None and not seat.concerned and seat.name is not None:
                try:
                    await ownership.note(seat.database, seat.target, number)
                except GatewayError:
                    continue  # it is for people, and for the next change, which does with older rules

    async def _perform(
        self, effect: OwnershipEffect, number: int, fleet: UUID, say: Callable[[str], None]
    ) -> bool | None:
        if isinstance(effect, FindObstacles):
            found = await self.obstacles()
            for one in found:
                say(one)
            return bool(found)
        seat = self._by_name[effect.database]
        assert seat.registered is not None
        match effect:
            case Close():
                async with _raising(seat.config) as database:
                    fresh = await ownership.close(database, seat.target, seat.registered)
                say(f"{seat.label}: closed")
                return fresh
            case EndSessions():
                await ownership.end_sessions(seat.database)
            case Reopen():
                say(f"{seat.label}: {await _reopened(seat, seat.registered)}")
            case CarryOver():
                if carried := await self._carry_over(seat):
                    say(f"{seat.label}: {carried} fences and locks carried over to other databases")
            case Open():
                target = seat.target
                kept = None if target.name is None else fleet
                async with _raising(seat.config) as database:
                    await ownership.put_in_force(database, target, seat.registered, number, kept)
                say(f"{seat.label}: open, by the rules of the configuration")
        return None

    async def _carry_over(self, seat: Seat) -> int:
        carried = 0
        async with AsyncExitStack() as stack:
            to: dict[str, Database] = {}
            async for rows in ownership.tokens_within(seat.database, self._ranges(seat)):
                owned: dict[str, list[Record]] = {}
                for row in rows:
                    if (owner := self._moves_to(row["resource"], seat)) is not None:
                        owned.setdefault(owner, []).append(row)
                for owner, each in owned.items():
                    if owner not in to:
                        to[owner] = await stack.enter_async_context(_raising(self._by_name[owner].config))
                    await ownership.carry(to[owner], each)
                    carried += len(each)
        return carried

    async def _obstacles(self, seat: Seat) -> list[str]:
        """Return what is not over in the names that a database gives to others."""
        found = [
            f"{seat.label}: {resource} has {what}, and moves to {to}"
            for resource, what in await ownership.busy(seat.database, self._ranges(seat))
            if (to := self._moves_to(resource, seat)) is not None
        ]
        for bucket in await ownership.busy_buckets(seat.database) if self._ownership is not None else ():
            keys = [""]
            try:
                self._ownership.of_pattern(f"s3/{bucket}/**")  # type: ignore[union-attr]
            except CrossesDatabases:
                keys = await ownership.busy_keys(seat.database, bucket)
            if any(self._moves_to(f"s3/{bucket}/{_escaped(key)}", seat) for key in keys):
                found.append(
                    f"{seat.label}: an object write, upload or tombstone in {bucket} is not over, and it moves"
                )
        more = len(found) - _SHOWN
        return found if more <= 0 else [*found[:_SHOWN], f"{seat.label}: and {more} more"]

    def _ranges(self, seat: Seat) -> list[tuple[str, str | None]]:
        return ranges_elsewhere(seat.name, self._domains) if seat.name is not None else []

    def _moves_to(self, resource: str, seat: Seat) -> str | None:
        """Return the database to which a name of this one moves; None if it stays.

        A fence that an earlier change has left behind stays: its owner is not concerned.
        """
        owner = seat.name if self._ownership is None else self._ownership.of_resource(resource)
        return owner if owner != seat.name and self._by_name[owner].concerned else None


async def _reopened(seat: Seat, was: Registered) -> str:
    """Open a database as it was, and say how that went. An error would hide the one for which the change ends."""
    try:
        await ownership.reopen(seat.database, seat.target, was)
    except GatewayError:
        return "it stays closed. Run the command again."
    return "opened as it was"


async def _ask(seat: Seat, *, opens: bool) -> None:
    seat.registered = None
    try:
        if opens and seat.config.journal.effective_mode is not Mode.OFF:
            async with _storage(seat.config) as storage:
                await storage.journal.ensure_open()
        seat.registered = await ownership.read(seat.database)
    except GatewayError as error:
        seat.problem = error.message
    except ValueError as error:  # the driver's words may repeat the password
        raise ConfigurationError(f"The DSN of {seat.label} {NO_DATABASE}") from error


def _escaped(key: str) -> str:
    return "/".join(escape(segment) for segment in key.split("/"))


@asynccontextmanager
async def _raising(config: DatabaseConfig) -> AsyncIterator[Database]:
    """Connect to a database to raise fences there. At the end its journal has them as well, or an error is raised."""
    async with _storage(config) as storage:
        yield storage.database
        if storage.journal.status is not None:
            await storage.journal.flush()


def _storage(config: DatabaseConfig) -> AbstractAsyncContextManager[wiring.Storage]:
    return wiring.opened(config, owned=False, pool_size=1, statement_timeout=600.0)


@asynccontextmanager
async def fleet(config: Config, *, opens: bool = True) -> AsyncIterator[Fleet]:
    """Connect to all databases of a configuration, and ask them, as ``Fleet.ask`` does.

    A change of databases that were used needs ``opens``.
    """
    domains = config.domains
    rules = written(domains) if domains else None
    async with AsyncExitStack() as stack:
        seats = []
        for part in config.parts:
            dsn, timeout = part.postgres.dsn.get_secret_value(), part.limits.connect_timeout
            database = await stack.enter_async_context(
                Database(dsn, pool_size=1, connect_timeout=timeout, statement_timeout=600.0)
            )
            seats.append(Seat(part, Target(part.name, part.owner.share, rules), database))
        found = Fleet(domains, seats)
        await found.ask(opens=opens)
        yield found


async def claim_if_new(config: Config) -> bool:
    """Put the rules in force if there are several databases, and none was ever used. Return whether it did."""
    async with fleet(config, opens=False) as found:
        return found.is_new and await found.apply(lambda _: None)


async def check_agreement(config: Config, *, claim: bool = False) -> None:
    """Raise ``ConfigurationError`` unless all databases that answer have what the configuration gives them.

    ``claim``: do what ``claim_if_new`` does first. Another gateway may do so at the same time.
    """
    async with fleet(config, opens=False) as found:
        if claim and found.is_new:
            with suppress(Unavailable):
                await found.apply(lambda _: None)
            await found.ask(opens=False)
        differing = found.differences()
    if differing:
        raise ConfigurationError("\n".join(f"{one.message} {one.advice}" for one in differing), advice="")
