"""The database that each resource, schema and bucket belongs to, if a gateway serves several of them.

Each name has exactly one owner, and its fence, its lease and its record are there. ``ownership_checks`` checks the
rules before they are used. Two databases never claim one name, and no rule of a table or of keys makes names of another
database.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway.errors import CrossesDatabases
from gateway.fencing.resource import escape, escape_path, includes, overlap

OBJECTS = "s3"
"""The first segment of the default names of keys. The second one is their bucket."""
OWN_KEYS = ".fencing-gateway/"
"""Keys in any bucket at which the gateway keeps objects of its own: they belong to no database."""


@dataclass(frozen=True, slots=True)
class Domain:
    """All that belongs to one database by rule. ``resources``: checked patterns. A default one owns the rest, too.

    ``buckets``: names of buckets, and ``bucket/prefix/`` for the keys below a prefix. The other keys of such a bucket
    belong to the owner of the bucket.
    """

    name: str
    schemas: tuple[str, ...] = ()
    buckets: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    default: bool = False

    @property
    def whole_buckets(self) -> tuple[str, ...]:
        """The buckets that belong to it with all keys that no prefix gives to another database."""
        return tuple(one for one in self.buckets if "/" not in one)

    @property
    def prefixes(self) -> tuple[str, ...]:
        """The prefixes of keys that belong to it, each with its bucket in front."""
        return tuple(one for one in self.buckets if "/" in one)

    @property
    def key_patterns(self) -> tuple[str, ...]:
        """Patterns of the default names of all keys below its prefixes."""
        return tuple(f"{OBJECTS}/{escape_path(one)}**" for one in self.prefixes)


class _Prefixes:
    """Prefixes with their owners. No two owners have overlapping ones."""

    def __init__(self, owners: dict[str, str]) -> None:
        self._texts = list[str]()
        for text in sorted(owners):
            if not (self._texts and text.startswith(self._texts[-1])):
                self._texts.append(text)
        self._owners = [owners[text] for text in self._texts]

    def owner(self, text: str) -> str | None:
        """Return the owner of the prefix that a text begins with; None if it begins with none."""
        # Everything between a prefix and a text that begins with it also begins with it, so only one can fit.
        at = bisect_right(self._texts, text) - 1
        return self._owners[at] if at >= 0 and text.startswith(self._texts[at]) else None

    def owners_below(self, text: str) -> list[str]:
        """Return the owners of all prefixes that begin with a text."""
        at = bisect_left(self._texts, text)
        found = []
        while at < len(self._texts) and self._texts[at].startswith(text):
            found.append(self._owners[at])
            at += 1
        return found


class Ownership:
    """The owners of all names. One of the domains must be the default one."""

    def __init__(self, domains: Sequence[Domain]) -> None:
        self.default = next(one.name for one in domains if one.default)
        self._schemas = {schema: one.name for one in domains for schema in one.schemas}
        self._buckets = {bucket: one.name for one in domains for bucket in one.whole_buckets}
        prefixes = {prefix: one.name for one in domains for prefix in one.prefixes}
        self._keys = _Prefixes(prefixes)
        self._names_of_keys = _Prefixes({escape_path(prefix): owner for prefix, owner in prefixes.items()})
        self._shared = {prefix.partition("/")[0] for prefix in prefixes}
        self._key_patterns = [(pattern, one.name) for one in domains for pattern in one.key_patterns]
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
        if head == OBJECTS:
            bucket = rest.partition("/")[0]
            below = self._names_of_keys.owner(rest) if bucket in self._shared else None
            return below or self._buckets.get(bucket, self.default)
        return self._heads.get(head.partition(".")[0], self.default) if "." in head else self.default

    def of_schema(self, schema: str | None) -> str:
        """Return the owner of the tables in a schema, by default that of requests that name none."""
        return self.default if schema is None else self._schemas.get(schema, self.default)

    def of_bucket(self, bucket: str) -> str:
        """Return the owner of a bucket, and of the keys in it that no prefix gives to another database."""
        return self._buckets.get(bucket, self.default)

    def of_key(self, bucket: str, key: str) -> str:
        """Return the owner of a key. It is not encoded."""
        below = self._keys.owner(f"{bucket}/{key}") if bucket in self._shared else None
        return below or self._buckets.get(bucket, self.default)

    def of_keys(self, bucket: str, prefix: str) -> list[str]:
        """Return the owners of all keys that may begin with a text. The owner of the bucket is the first of several."""
        below = self._keys.owner(f"{bucket}/{prefix}")
        if below is not None:
            return [below]
        return list(dict.fromkeys([self.of_bucket(bucket), *self._keys.owners_below(f"{bucket}/{prefix}")]))

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
        if head == OBJECTS and len(segments) > 1 and "*" not in segments[1]:
            return self._of_pattern_of_keys(pattern, self.of_bucket(segments[1]))
        if "*" not in head and head != OBJECTS:
            return self.of_resource(head + "/-") if "." in head else self.default
        of_keys = {owner for _, owner in self._key_patterns}
        others = sorted({*self._schemas.values(), *self._buckets.values(), *of_keys} - {self.default})
        if others:
            raise _crosses(pattern, others[0], self.default)
        return self.default

    def _of_pattern_of_keys(self, pattern: str, owner: str) -> str:
        for known, other in self._key_patterns:
            if includes(known, pattern):
                return other
            if other != owner and overlap(known, pattern):
                raise _crosses(pattern, other, owner)
        return owner


@dataclass(frozen=True, slots=True)
class Owned:
    """The names that one database owns. Checks raise ``CrossesDatabases`` for what another one owns."""

    ownership: Ownership
    database: str

    def check_key(self, bucket: str, key: str) -> None:
        """Check a key. It is not encoded."""
        owner = self.ownership.of_key(bucket, key)
        if owner != self.database:
            raise _crosses(f"{OBJECTS}/{bucket}/{escape_path(key)}", owner, self.database)

    def has_keys_in(self, bucket: str) -> bool:
        """Return whether any keys of a bucket can be its own."""
        return self.database in self.ownership.of_keys(bucket, "")

    def has(self, resource: str) -> bool:
        """Return whether a resource is its own. The name is in canonical form."""
        return self.ownership.of_resource(resource) == self.database

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
