"""The database that each resource, schema and bucket belongs to, if a gateway serves several of them.

Each name has exactly one owner, and its fence, its lease and its record are there. The rules are checked before they
are used. Two databases never claim one name, and no rule of a table or of keys makes names of another database.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.errors import CrossesDatabases
from gateway.fencing.resource import escape, includes, overlap

_FIELD = re.compile(r"\{[^{}/]+\}")
_OBJECTS = "s3"
"""The first segment of the default names of keys. The second one is their bucket."""


@dataclass(frozen=True, slots=True)
class Domain:
    """All that belongs to one database by rule. ``resources``: checked patterns. A default one owns the rest, too."""

    name: str
    schemas: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    default: bool = False


class Ownership:
    """The owners of all names. One of the domains must be the default one."""

    def __init__(self, domains: Sequence[Domain]) -> None:
        self.default = next(one.name for one in domains if one.default)
        self._schemas = {schema: one.name for one in domains for schema in one.schemas}
        self._buckets = {bucket: one.name for one in domains for bucket in one.buckets}
        # The first segments of the default names of rows. A name in canonical form is escaped.
        self._heads = {escape(schema): owner for schema, owner in self._schemas.items()}
        # By their first segment, which is never a wildcard: each as an expression and as text, with its owner.
        self._patterns: dict[str, list[tuple[re.Pattern[str], str, str]]] = {}
        for one in domains:
            for pattern in one.resources:
                compiled = (_expression(pattern), pattern, one.name)
                self._patterns.setdefault(pattern.partition("/")[0], []).append(compiled)

    def of_resource(self, resource: str) -> str:
        """Return the owner of a resource, whose name is in canonical form."""
        head, _, rest = resource.partition("/")
        for expression, _, owner in self._patterns.get(head, ()):
            if expression.match(resource):
                return owner
        if head == _OBJECTS:
            return self._buckets.get(rest.partition("/")[0], self.default)
        return self._heads.get(head.partition(".")[0], self.default) if "." in head else self.default

    def of_schema(self, schema: str | None) -> str:
        """Return the owner of the tables in a schema, by default that of requests that name none."""
        return self.default if schema is None else self._schemas.get(schema, self.default)

    def of_bucket(self, bucket: str) -> str:
        """Return the owner of the keys in a bucket."""
        return self._buckets.get(bucket, self.default)

    def of_pattern(self, pattern: str) -> str:
        """Return the owner of all that a checked pattern is about. Raise ``CrossesDatabases`` if it has several."""
        if "*" not in pattern:
            return self.of_resource(pattern)
        for _, known, owner in (one for patterns in self._patterns.values() for one in patterns):
            if includes(known, pattern):
                return owner
            if owner != self.default and overlap(known, pattern):
                raise _crosses(pattern, owner, self.default)
        segments = pattern.split("/")
        head = segments[0]
        if head == _OBJECTS and len(segments) > 1 and "*" not in segments[1]:
            return self.of_bucket(segments[1])
        if "*" not in head and head != _OBJECTS:
            return self.of_resource(head + "/-") if "." in head else self.default
        others = sorted({*self._schemas.values(), *self._buckets.values()} - {self.default})
        if others:
            raise _crosses(pattern, others[0], self.default)
        return self.default


@dataclass(frozen=True, slots=True)
class Owned:
    """The names that one database owns. Each method raises ``CrossesDatabases`` for what another one owns."""

    ownership: Ownership
    database: str

    def check(self, resources: Iterable[str]) -> None:
        """Check resources, named in canonical form."""
        for resource in resources:
            owner = self.ownership.of_resource(resource)
            if owner != self.database:
                raise _crosses(resource, owner, self.database)

    def check_pattern(self, pattern: str) -> None:
        """Check all resources that a checked pattern is about."""
        owner = self.ownership.of_pattern(pattern)
        if owner != self.database:
            raise _crosses(pattern, owner, self.database)


def _crosses(resource: str, owner: str, database: str) -> CrossesDatabases:
    return CrossesDatabases(
        f"The request is served by the database {database}, and {resource} belongs to {owner}, at least in part.",
        facts={"resource": resource, "database": owner},
    )


def _expression(pattern: str) -> re.Pattern[str]:
    """Return a checked pattern as an expression for the whole of a name, which compiled is quicker than ``covers``."""
    segments = (".*" if one == "**" else "[^/]*" if one == "*" else re.escape(one) for one in pattern.split("/"))
    return re.compile(f"{'/'.join(segments)}\\Z")


def conflicts(domains: Sequence[Domain]) -> Iterator[tuple[int, str, str]]:
    """Yield what two databases claim: the number of the second one, the key, and the problem."""
    for number, one in enumerate(domains):
        # Its rows have names like those of a schema up to the dot, which may be in another database.
        dotted = (schema for schema in one.schemas if "." in schema)
        yield from ((number, "schemas", f"{schema} has a dot in its name; rename it") for schema in dotted)
        yield from ((number, "resources", problem) for pattern in one.resources if (problem := _unfit(pattern)))
        for other in domains[:number]:
            yield from ((number, key, problem) for key, problem in _claimed_twice(one, other))
        for other in domains:
            if other is not one:
                yield from ((number, "resources", problem) for problem in _rows_claimed(one, other))


def _claimed_twice(one: Domain, other: Domain) -> Iterator[tuple[str, str]]:
    for key, mine, theirs in (("schemas", one.schemas, other.schemas), ("buckets", one.buckets, other.buckets)):
        for name in mine:
            if name in theirs:
                yield key, f"{name} belongs to {other.name} as well; leave it to one of them"
    for pattern in one.resources:
        for another in other.resources:
            if overlap(pattern, another):
                yield "resources", f"{pattern} overlaps {another} of {other.name}; make them disjoint"


def _rows_claimed(one: Domain, other: Domain) -> Iterator[str]:
    for pattern in one.resources:
        head, dot, _ = pattern.partition("/")[0].partition(".")
        for schema in other.schemas:
            if dot and head == escape(schema):
                yield f"{pattern} overlaps the rows of the schema {schema} of {other.name}; choose another one"


def _unfit(pattern: str) -> str | None:
    """Return why a pattern cannot be a rule of ownership."""
    first = pattern.partition("/")[0]
    if first == "**":
        return "** is every resource; set default = true instead"
    if first == "*":
        return f"{pattern} begins with a wildcard, so it overlaps rows and keys; begin it with a name"
    if first == _OBJECTS:
        return f"{pattern} is about keys; name their bucket in buckets instead"
    return None


@dataclass(frozen=True, slots=True)
class Names:
    """The names that a template can make. ``segments``: a literal, or the text before and after a field.

    ``open``: any segments may follow.
    """

    segments: tuple[str | tuple[str, str], ...]
    open: bool = False

    @classmethod
    def of(cls, template: str, known: Mapping[str, str] | None = None, spanning: str | None = None) -> "Names":
        """Return the names of a template. ``known`` has values of fields; the field ``spanning`` may hold slashes."""
        for name, value in (known or {}).items():
            template = template.replace(f"{{{name}}}", escape(value))
        segments: list[str | tuple[str, str]] = []
        for segment in template.split("/"):
            if spanning is not None and f"{{{spanning}}}" in segment:
                return cls(tuple(segments), open=True)
            before, field, after = _split(segment)
            segments.append((before, after) if field else segment)
        return cls(tuple(segments))

    def reach(self, pattern: str) -> bool:
        """Return whether one of the names can be one that a checked pattern is about."""
        wanted = pattern.split("/")
        rest = wanted[-1] == "**"
        wanted = wanted[: len(wanted) - rest]
        if not self.open and len(self.segments) < len(wanted) + rest:
            return False
        if not rest and len(self.segments) + self.open > len(wanted):
            return False
        return all(one == "*" or _can_be(mine, one) for mine, one in zip(self.segments, wanted, strict=False))

    def within(self, pattern: str) -> bool:
        """Return whether a checked pattern is about all of the names."""
        segments = ["*" if isinstance(one, tuple) else one for one in self.segments]
        return includes(pattern, "/".join([*segments, *(["**"] if self.open else [])]))

    def may_begin(self, *segments: str) -> bool:
        """Return whether one of the names can begin with these segments."""
        if len(self.segments) < len(segments) and not self.open:
            return False
        return all(_can_be(mine, one) for mine, one in zip(self.segments, segments, strict=False))

    def may_begin_with_schema(self, schema: str) -> bool:
        """Return whether one of the names can be a default name of a row in a schema."""
        prefix = f"{escape(schema)}."
        first = self.segments[0] if self.segments else ("", "")
        if isinstance(first, str):
            return first.startswith(prefix)
        return first[0].startswith(prefix) or prefix.startswith(first[0])

    @property
    def head(self) -> str | None:
        """Return the first segment if it is the same in all names."""
        first = self.segments[0] if self.segments else None
        return first if isinstance(first, str) else None

    @property
    def bucket(self) -> str | None:
        """Return the bucket whose keys have these names by default, if there is one."""
        if self.head == _OBJECTS and len(self.segments) > 1 and isinstance(self.segments[1], str):
            return self.segments[1]
        return None


def foreign_to(database: str, names: Names, domains: Sequence[Domain]) -> str | None:
    """Return another database that may own some of these names; None if all of them belong to this one."""
    own = next(one for one in domains if one.name == database)
    if any(names.within(pattern) for pattern in own.resources):
        return None
    if names.bucket is not None:
        return _other(database, next((one.name for one in domains if names.bucket in one.buckets), _default(domains)))
    for other in domains:
        if other is not own and _may_own(other, names):
            return other.name
    head = names.head
    if head is not None and "." in head and any(names.may_begin_with_schema(schema) for schema in own.schemas):
        return None
    return _other(database, _default(domains))


def _may_own(other: Domain, names: Names) -> bool:
    return (
        any(names.reach(pattern) for pattern in other.resources)
        or any(names.may_begin_with_schema(schema) for schema in other.schemas)
        or any(names.may_begin(_OBJECTS, bucket) for bucket in other.buckets)
    )


Range: TypeAlias = tuple[str, str | None]
"""Names from the first one on, up to but without the second one, or to the end. Names are ASCII, and in its order."""


def ranges_of(domain: Domain, *, plain: bool = False) -> list[Range]:
    """Return ranges with all names that a domain names. ``plain``: only those in which it owns each name."""
    patterns = [one for one in domain.resources if not plain or _is_plain(one)]
    return [*_defaults_of(domain), *map(_range, patterns)]


def _defaults_of(domain: Domain) -> list[tuple[str, str]]:
    schemas = [_below(f"{escape(schema)}.") for schema in domain.schemas]
    # The name of a bucket belongs to its owner as well. A lock may have it, or a template may make it of its keys.
    buckets = [name for bucket in domain.buckets for name in (f"{_OBJECTS}/{bucket}", f"{_OBJECTS}/{bucket}/")]
    return schemas + [_below(name) if name.endswith("/") else _range(name) for name in buckets]


def _is_plain(pattern: str) -> bool:
    return "*" not in pattern.removesuffix("/**")


def _range(pattern: str) -> tuple[str, str]:
    fixed, wildcard, _ = pattern.partition("*")
    return _below(fixed) if wildcard else (pattern, f"{pattern}\x01")


def _below(prefix: str) -> tuple[str, str]:
    """Return the range of the names that begin with a text."""
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _default(domains: Sequence[Domain]) -> str:
    return next(one.name for one in domains if one.default)


def _other(database: str, owner: str) -> str | None:
    return None if owner == database else owner


def _split(segment: str) -> tuple[str, bool, str]:
    field = _FIELD.search(segment)
    return (segment, False, "") if field is None else (segment[: field.start()], True, segment[field.end() :])


def _can_be(mine: str | tuple[str, str], name: str) -> bool:
    if isinstance(mine, str):
        return mine == name
    before, after = mine
    return len(name) >= len(before) + len(after) and name.startswith(before) and name.endswith(after)
