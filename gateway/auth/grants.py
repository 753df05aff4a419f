"""Grants: which caller may do what, before any token is shown to a fence. Pure rules; docs/grants.md explains them.

An access has an action. It is about a place (a table, a function, an object), about resources, or about both. A write
of a row is about its table and its resource, a lock about a resource. Nothing is granted by default.

``Authorisation`` is what the three planes share.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, Self, TypeAlias

from gateway.bounded import Bounded
from gateway.errors import Denied, Unauthenticated
from gateway.fencing.decision import Enforcement
from gateway.fencing.ownership import Owned
from gateway.fencing.record import ANONYMOUS, Attempt
from gateway.fencing.resource import covers, includes

EVERYTHING = "**"
"""The pattern of all resources."""


class Action(StrEnum):
    """An action of a caller. ``CALL`` is about functions, ``BREAK`` ends a lock of another holder."""

    READ = "read"
    WRITE = "write"
    CALL = "call"
    LOCK = "lock"
    BARRIER = "barrier"
    CREDENTIALS = "credentials"
    EPOCH = "epoch"
    BREAK = "break"
    AUDIT = "audit"
    ADMINISTER = "administer"


class PlaceKind(StrEnum):
    """The kinds of places that rows and objects are in."""

    TABLE = "table"
    FUNCTION = "function"
    BUCKET = "bucket"


OF_RESOURCES = frozenset({Action.LOCK, Action.BARRIER, Action.CREDENTIALS, Action.EPOCH, Action.BREAK})
"""Actions that are about resources, and never about a place."""

OF_ALL = frozenset({Action.AUDIT})
"""Actions that are about the whole gateway."""

AT_PLACES = {
    PlaceKind.TABLE: frozenset({Action.READ, Action.WRITE}),
    PlaceKind.FUNCTION: frozenset({Action.CALL}),
    PlaceKind.BUCKET: frozenset({Action.READ, Action.WRITE, Action.ADMINISTER}),
}
"""The actions that each kind of place has."""
IN_A_BUCKET = AT_PLACES[PlaceKind.BUCKET]
"""The actions any of which lets a caller know that a bucket exists."""


@dataclass(frozen=True, slots=True)
class Grant:
    """One grant: ``actions`` within the limits of its patterns, or on ``everything``.

    ``tables`` and ``functions``: ``schema.name``, with ``*`` for either part. ``buckets``: a bucket with all its keys,
    or a pattern of ``bucket/key``. ``resources``: patterns of resources. In patterns a segment ``*`` stands for any one
    segment, and a last ``**`` for all remaining ones. ``number`` is its position in the configuration, from 1.
    """

    actions: frozenset[Action]
    number: int = 0
    everything: bool = False
    tables: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()

    @property
    def patterns(self) -> dict[PlaceKind, tuple[str, ...]]:
        return {PlaceKind.TABLE: self.tables, PlaceKind.FUNCTION: self.functions, PlaceKind.BUCKET: self.buckets}

    @property
    def has_places(self) -> bool:
        return bool(self.tables or self.functions or self.buckets)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an action at one place. ``placed``: a grant names the place itself. ``patterns``: of the resources.

    A read of rows needs ``placed`` alone, because a row's resource is not known before it is read.
    """

    placed: bool = False
    patterns: tuple[str, ...] = ()

    @property
    def unlimited(self) -> bool:
        return EVERYTHING in self.patterns

    def cover(self, resource: str) -> bool:
        """Return whether a resource, named in canonical form, may be claimed here."""
        return EVERYTHING in self.patterns or any(covers(pattern, resource) for pattern in self.patterns)

    def cover_all(self, resources: Iterable[str] | None) -> bool:
        """Return whether all resources may be claimed here. None: they are not known, and only ``unlimited`` helps."""
        if self.unlimited:
            return True
        return bool(self.patterns) and resources is not None and all(map(self.cover, resources))

    def allow(self, action: Action, resource: str | None) -> bool:
        """Return whether ``action`` is granted here under a resource. None: it claims none."""
        if resource is None:
            return self.placed
        return self.cover(resource) or (action is Action.READ and self.placed)


_MOST_KNOWN = 1024
NOTHING = Limits()
"""The limits where nothing is granted."""
_ALL = Limits(placed=True, patterns=(EVERYTHING,))


@dataclass(frozen=True, slots=True)
class Rights:
    """All grants of one caller."""

    grants: Sequence[Grant] = ()
    _known: Bounded[tuple[Action, PlaceKind, str], Limits] = field(
        default_factory=lambda: Bounded(_MOST_KNOWN), compare=False, repr=False
    )

    @classmethod
    def all(cls) -> Self:
        return cls((Grant(frozenset(Action), everything=True),))

    def only(self, *actions: Action) -> "Rights":
        """Return the rights without all other actions."""
        kept = [replace(grant, actions=grant.actions.intersection(actions)) for grant in self.grants]
        return Rights(tuple(grant for grant in kept if grant.actions))

    def table(self, action: Action, name: str) -> Limits:
        """Return what is granted at a table. ``name``: ``schema.name``."""
        return self._at_name(action, PlaceKind.TABLE, name)

    def function(self, name: str) -> Limits:
        return self._at_name(Action.CALL, PlaceKind.FUNCTION, name)

    def may_read(self, tables: Iterable[str]) -> bool:
        """Return whether all rows of these tables may be read. ``tables``: ``schema.name`` each."""
        for name in tables:  # noqa: SIM110 - a generator takes twice as long
            if not self._at_name(Action.READ, PlaceKind.TABLE, name).placed:
                return False
        return True

    def may_write_to(self, name: str) -> bool:
        """Return whether any resource may be written to a table. ``name``: ``schema.name``."""
        limits = self._at_name(Action.WRITE, PlaceKind.TABLE, name)
        return limits.placed or bool(limits.patterns)

    def may_write(self, name: str, resource: str, *, shows: bool) -> bool:
        """Return whether rows of a resource may be written to a table. ``shows``: the answer shows them as well."""
        if not self._at_name(Action.WRITE, PlaceKind.TABLE, name).cover(resource):
            return False
        return not shows or self._at_name(Action.READ, PlaceKind.TABLE, name).allow(Action.READ, resource)

    def key(self, action: Action, bucket: str, key: str) -> Limits:
        """Return what is granted at a key of a bucket."""
        return self._at(action, PlaceKind.BUCKET, lambda pattern: _covers_key(pattern, bucket, key))

    def keys(self, action: Action, matches: Callable[[str], bool]) -> Limits:
        return self._at(action, PlaceKind.BUCKET, matches)

    def bucket(self, action: Action, bucket: str) -> bool:
        """Return whether an action is granted on a whole bucket."""
        return self._at(action, PlaceKind.BUCKET, lambda pattern: pattern in (bucket, "*")).placed

    def below(self, action: Action, bucket: str, prefix: str) -> bool:
        """Return whether an action is granted on every key that begins with ``prefix``, character by character."""
        return self._at(action, PlaceKind.BUCKET, lambda pattern: _covers_below(pattern, bucket, prefix)).placed

    def inside(self, bucket: str | None, *actions: Action) -> bool:
        """Return whether one of the actions is granted on anything in a bucket, so that the bucket is no secret.

        None: in any bucket at all.
        """

        def touches(pattern: str) -> bool:
            return bucket is None or pattern.partition("/")[0] in (bucket, "*")

        return any(self._at(action, PlaceKind.BUCKET, touches) != NOTHING for action in actions)

    def on(self, action: Action, resource: str) -> bool:
        """Return whether an action is granted on a resource by itself: a lock, a barrier, a look at its fence."""
        return self._over(action, lambda pattern: covers(pattern, resource)) is not None

    def over(self, action: Action, pattern: str) -> bool:
        """Return whether an action is granted on every resource that a pattern covers."""
        return self._over(action, lambda granted: includes(granted, pattern)) is not None

    def have(self, action: Action) -> bool:
        """Return whether an action is granted on anything at all."""
        return any(action in grant.actions for grant in self.grants)

    def anywhere(self, action: Action) -> bool:
        """Return whether an action is granted on everything."""
        return any(grant.everything and action in grant.actions for grant in self.grants)

    def _at_name(self, action: Action, kind: PlaceKind, name: str) -> Limits:
        found = self._known.get((action, kind, name))
        if found is None:
            found = self._at(action, kind, lambda pattern: covers_name(pattern, name))
            self._known.remember((action, kind, name), found)
        return found

    def _at(self, action: Action, kind: PlaceKind, matches: Callable[[str], bool]) -> Limits:
        placed, patterns = False, list[str]()
        for grant in self.grants:
            if action not in grant.actions:
                continue
            if grant.everything:
                return _ALL
            if not grant.has_places:
                patterns += grant.resources
            elif any(map(matches, grant.patterns[kind])):
                placed = True
                patterns += grant.resources or (EVERYTHING,)
        return Limits(placed, tuple(patterns)) if placed or patterns else NOTHING

    def _over(self, action: Action, matches: Callable[[str], bool]) -> Grant | None:
        for grant in self.grants:
            if action in grant.actions and (grant.everything or any(map(matches, grant.resources))):
                return grant
        return None


def deciding(rights: Rights, granted: Callable[[Rights], bool]) -> Grant | None:
    """Return the first grant that allows something by itself; None if none does."""
    return next((grant for grant in rights.grants if granted(Rights((grant,)))), None)


NO_RIGHTS = Rights()
"""The rights of a caller that no grant names."""


def covers_name(pattern: str, name: str) -> bool:
    """Return whether a pattern of tables or functions covers a name, or all that another pattern covers."""
    if pattern in (name, "*"):
        return True
    schema, _, wanted = pattern.partition(".")
    given, _, table = name.partition(".")
    return (schema in (given, "*")) and wanted in (table, "*")


def _covers_key(pattern: str, bucket: str, key: str) -> bool:
    return pattern in (bucket, "*") if "/" not in pattern else covers(pattern, f"{bucket}/{key}")


def _covers_below(pattern: str, bucket: str, prefix: str) -> bool:
    if "/" not in pattern:
        return pattern in (bucket, "*")
    # The last segment of the prefix may be the beginning of many, so only a pattern with an open end covers it.
    wanted, given = pattern.split("/"), f"{bucket}/{prefix}".split("/")[:-1]
    if wanted.pop() != EVERYTHING or len(given) < len(wanted):
        return False
    return all(segment in ("*", name) for segment, name in zip(wanted, given, strict=False))


@dataclass(frozen=True, slots=True)
class Place:
    """A table or function, named ``schema.name``; an object, named ``bucket/key``; or a whole bucket."""

    kind: PlaceKind
    name: str

    def __str__(self) -> str:
        return f"{'object' if self.kind is PlaceKind.BUCKET and '/' in self.name else self.kind} {self.name}"

    def under(self, resource: str | None) -> str:
        """Return a resource here, as people write it. None: it is not known."""
        return f"{'any resource' if resource is None else f'resource {resource}'} at {self}"

    def is_in(self, grant: Grant) -> bool:
        """Return whether a grant names the place itself."""
        return any(map(self._is_covered, grant.patterns[self.kind]))

    def _is_covered(self, pattern: str) -> bool:
        if self.kind is not PlaceKind.BUCKET:
            return covers_name(pattern, self.name)
        bucket, slash, key = self.name.partition("/")
        return _covers_key(pattern, bucket, key) if slash else pattern in (bucket, "*")

    def limits(self, rights: Rights, action: Action) -> Limits:
        if self.kind is PlaceKind.BUCKET:
            bucket, slash, key = self.name.partition("/")
            return rights.key(action, bucket, key) if slash else Limits(rights.bucket(action, bucket))
        return rights.table(action, self.name) if self.kind is PlaceKind.TABLE else rights.function(self.name)


@dataclass(frozen=True, slots=True)
class Missing:
    """A right that a caller lacks. ``on``: what it is about, as people write it: ``table public.orders``.

    ``resource``: where the record files the denial. ``nearest``: a sentence about the grant that comes nearest.
    """

    action: Action
    on: str
    resource: str
    nearest: str = ""

    @classmethod
    def at(cls, rights: Rights, action: Action, place: Place, resources: Sequence[str] | None, filed: str) -> "Missing":
        """Return the missing half of an access to a place under resources. None: they are not known.

        That is the place if no grant names it. Otherwise it is the first resource that no grant covers there.
        """
        limits = place.limits(rights, action)
        resource = next((one for one in resources or () if not limits.cover(one)), None)
        on = place.under(resource) if limits.placed else str(place)
        return cls(action, on, resource or filed, nearest(rights, action, place, resource))


def nearest(rights: Rights, action: Action, place: Place | None = None, resource: str | None = None) -> str:
    """Return a sentence on the grant that comes nearest to a missing right, and what it lacks; empty for none.

    ``place`` None: the action is about a resource alone.
    """
    if not rights.grants:
        return "No grant names this caller."
    own = [grant for grant in rights.grants if action in grant.actions]
    others = [grant for grant in rights.grants if action not in grant.actions]
    if place is not None:
        return _nearest_at(own, others, action, place, resource)
    if resource is None:
        return ""
    if limited := [grant for grant in own if grant.resources]:
        grant = _closest(limited, lambda one: one.resources, resource)
        return _said(grant, f"covers {_few(grant.resources)}, but not {resource}")
    for grant in others:
        if any(includes(pattern, resource) for pattern in grant.resources):
            return _said(grant, f"covers {resource}, but only with {', '.join(sorted(grant.actions))}")
    return ""


def _nearest_at(
    own: Sequence[Grant], others: Iterable[Grant], action: Action, place: Place, resource: str | None
) -> str:
    """Return the sentence on a place. ``own`` are the grants of the action."""
    if here := [grant for grant in own if grant.resources and place.is_in(grant)]:
        grant = _closest(here, lambda one: one.resources, resource or "")
        return _said(grant, f"covers {place}, but only under {_few(grant.resources)}")
    for grant in filter(place.is_in, others):
        return _said(grant, f"covers {place}, but only with {', '.join(sorted(grant.actions))}")
    # Reads of rows go by the table alone.
    anywhere = [grant for grant in own if grant.resources and not grant.has_places]
    if anywhere and not (action is Action.READ and place.kind is PlaceKind.TABLE):
        grant = _closest(anywhere, lambda one: one.resources, resource or "")
        lacking = f"not {resource}" if resource else "the request names no resource"
        return _said(grant, f"covers {_few(grant.resources)} at any place, but {lacking}")
    if named := [grant for grant in own if grant.patterns[place.kind]]:
        grant = _closest(named, lambda one: one.patterns[place.kind], place.name)
        return _said(grant, f"covers {place.kind} {_few(grant.patterns[place.kind])}, but not {place}")
    return ""


def _closest(grants: Iterable[Grant], patterns: Callable[[Grant], Sequence[str]], name: str) -> Grant:
    """Return the grant with the pattern that has the longest beginning in common with a name."""

    def in_common(pattern: str) -> int:
        pairs = enumerate(zip(pattern, name, strict=False))
        return next((position for position, (one, other) in pairs if one != other), min(len(pattern), len(name)))

    return max(grants, key=lambda grant: max(map(in_common, patterns(grant))))


def _said(grant: Grant, what: str) -> str:
    return f"[[grants]] number {grant.number} {what}."


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")


Refuse: TypeAlias = Callable[[Missing, Attempt], Awaitable[Denied | Unauthenticated]]
"""Puts a denial on record, and returns its error. Raises ``Unavailable`` if it cannot be recorded."""


class Spellings(Protocol):
    """The names in use in a database."""

    async def check(self, names: Iterable[str]) -> None:
        """Raise ``ResourceMalformed`` for a name that may stand for another one."""


class Authorisation:
    """The checks that all planes share, in one database. A plane's own class adds what it is about.

    Checks raise ``Denied``, once the denial is on record, or what ``Refuse`` raises.

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

        If a rule enforces, all of them have to be covered. If it observes, a grant has to name the place, since the
        gateway would lend its own rights there.
        """
        if limits.cover_all(resources):
            return resources or ()
        if mode is Enforcement.OBSERVE and limits.placed and caller != ANONYMOUS:
            return [one for one in resources or () if limits.cover(one)]
        return None
