"""The database that each resource, schema and bucket belongs to, if a gateway serves several of them.

Each name has exactly one owner, and its fence, its lease and its record are there. ``ownership_checks`` checks the
rules before they are used. Two databases never claim one name, and no rule of a table or of keys makes names of another
database.

The *share* of a database is all that the rules say about its own names, as one text, which it keeps. A gateway is let
in only if its rules give the database the share in force. Rules that differ in the names of other databases alone do no
harm there.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias
from uuid import UUID

from gateway.errors import CrossesDatabases, OwnershipDiffers
from gateway.fencing.resource import as_expression, escape, escape_path, includes, overlap

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
    return re.compile(f"{as_expression(pattern)}\\Z")


# Shares ----------------------------------------------------------------------------------------------------------

Entries: TypeAlias = dict[str, list[Any]]
"""The entries of a domain, by their kind: schemas, buckets, resources, and whatever further kind ``Domain`` has."""

_FIXED = ("name", "default")
_APART = ("schemas", "resources")
"""Kinds whose entries belong to one database as a whole: ``conflicts`` makes sure that no two of them meet."""


def written(domains: Sequence[Domain]) -> str:
    """Return the rules as the databases keep them."""
    return _text({one.name: _entries(one) | ({"default": True} if one.default else {}) for one in domains})


def share_of(database: str, domains: "Sequence[Domain | _Kept]") -> str:
    """Return what the rules say about the names of one database. Equal texts mean equal names.

    The default one has all that no other one has. Another one has its own entries, without what others have within
    its buckets.
    """
    own = next(one for one in domains if one.name == database)
    mine, others = _entries(own), [_entries(one) for one in domains if one is not own]
    if own.default:
        # Its own entries take nothing from others, unless they are within what others have.
        return _text({"all": True, "but": _together(others), "with": _within(mine, others)})
    return _text({"only": mine, "but": _together(_within(one, [mine]) for one in others)})


def shares_in(rules: str) -> dict[str, str]:
    """Return the share of each database by rules that were kept."""
    kept: dict[str, dict[str, Any]] = json.loads(rules)
    domains = [
        _Kept(name, {kind: values for kind, values in one.items() if kind != "default"}, "default" in one)
        for name, one in kept.items()
    ]
    return {one.name: share_of(one.name, domains) for one in domains}


def owners_in(rules: str) -> set[str]:
    """Return the databases that own anything by rules that were kept."""
    return {name for name, one in json.loads(rules).items() if one}


@dataclass(frozen=True, slots=True)
class Owner:
    """One database in a gateway's configuration. ``name`` and ``share`` are None if it is the only one."""

    name: str | None = None
    share: str | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer of a database about itself. ``name`` is None until it is one of several.

    ``following``: the target that is being applied, as ``Target.to_json`` writes it. ``identity``: which database of
    which server it is. ``used``: it has a fence, a lock or a pending write. ``closings``: how often it was closed, and
    ``known_closings``: how often by its fence.
    """

    name: str | None
    share: str | None
    rules: str | None = None
    number: int = 0
    fleet: UUID | None = None
    following: str | None = None
    identity: str = ""
    used: bool = False
    closings: int = 0
    known_closings: int = 0

    @property
    def is_put_back(self) -> bool:
        """Return whether it is from before a change, as far as its fence tells: the opening restores that."""
        return self.known_closings > self.closings

    def check(self, owner: Owner) -> None:
        """Raise ``OwnershipDiffers`` unless it has the name and the share that a gateway gives it."""
        changing = self.following is not None
        check_share(owner, self.name, self.share, changing=changing, put_back=self.is_put_back)


@dataclass(frozen=True, slots=True)
class Target:
    """The share that is to be in force in one database. ``rules`` are those of all, None for the only one."""

    name: str | None
    share: str | None
    rules: str | None

    def to_json(self) -> str:
        """Return it as the database keeps it."""
        rules = None if self.rules is None else json.loads(self.rules)
        return json.dumps({"name": self.name, "share": self.share, "rules": rules}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Target":
        """Read what ``to_json`` wrote."""
        kept = json.loads(text)
        return cls(kept["name"], kept["share"], None if kept["rules"] is None else _text(kept["rules"]))

    def is_in_force(self, registered: Registered) -> bool:
        """Return whether a database has it, and no change of it is under way."""
        in_force = (registered.name, registered.share, registered.following) == (self.name, self.share, None)
        return in_force and not registered.is_put_back


def check_share(owner: Owner, name: str | None, share: str | None, *, changing: bool, put_back: bool = False) -> None:
    """Raise ``OwnershipDiffers`` unless a database has the name and the share that a gateway gives it."""
    if changing:
        raise OwnershipDiffers.in_progress(name or owner.name)
    if put_back:
        database = name or owner.name
        raise OwnershipDiffers(
            f"The database{f' {database}' if database else ''} was put back to before a change of the rules. Another "
            "one may serve its names.",
            advice="Nothing was written. Ask the operator to run 'gateway databases apply'. All databases must be up.",
            facts={} if database is None else {"database": database},
        )
    if name == owner.name and share == owner.share:
        return
    if name is None:
        raise OwnershipDiffers(
            f"The database {owner.name} is not one of several yet, so it has all names.",
            advice="Nothing was written. Ask the operator to run 'gateway databases plan' and 'gateway databases "
            "apply', or to correct the DSN.",
            facts={"database": owner.name},
        )
    if owner.name is None:
        raise OwnershipDiffers(
            f"The database is {name}, one of several. This gateway is configured with it alone.",
            advice="Nothing was written. Ask the operator to configure [[databases]] in place of [postgres], or to "
            "correct the DSN.",
            facts={"found": name},
        )
    if name != owner.name:
        raise OwnershipDiffers(
            f"The DSN of the database {owner.name} leads to the database {name}.",
            advice="Nothing was written. Ask the operator to correct the DSN, or the name.",
            facts={"database": owner.name, "found": name},
        )
    was, configured = shown(share), shown(owner.share)
    raise OwnershipDiffers(
        f"The database {name} has {was}. This gateway gives it {configured}.",
        facts={"database": name, "in-force": was, "configured": configured},
    )


def shown(share: str | None) -> str:
    """Return a share for people."""
    if share is None:
        return "all names"
    kept = json.loads(share)
    but = _listed(kept.get("but", {}))
    inside = _listed(kept.get("with", {}))
    own = "all names" if "all" in kept else _listed(kept.get("only", {})) or "no names"
    return own + (f" but {but}" if but else "") + (f", with {inside}" if inside else "")


@dataclass(frozen=True, slots=True)
class _Kept:
    """A domain of rules that were kept, perhaps by a version with other kinds of entries."""

    name: str
    entries: Entries = field(default_factory=dict)
    default: bool = False


def _entries(domain: "Domain | _Kept") -> Entries:
    if isinstance(domain, _Kept):
        return domain.entries
    named = ((one.name, getattr(domain, one.name)) for one in fields(domain) if one.name not in _FIXED)
    # A kind without entries is left out. So a version with a further kind writes the same text if it is not used.
    return {kind: sorted(set(_plain(values))) for kind, values in named if values}


def _plain(values: Iterable[Any]) -> Iterable[str]:
    return (value if isinstance(value, str) else "/".join(map(str, value)) for value in values)


def _within(entries: Entries, others: Sequence[Entries]) -> Entries:
    """Return the entries that are in a bucket of others: the parts of a bucket may belong to several databases."""
    buckets = {_bucket(entry) for other in others for kind in other if kind not in _APART for entry in other[kind]}
    found = {
        kind: [entry for entry in values if _bucket(entry) in buckets]
        for kind, values in entries.items()
        if kind not in _APART
    }
    return {kind: values for kind, values in found.items() if values}


def _bucket(entry: str) -> str:
    return entry.partition("/")[0]


def _together(many: Iterable[Entries]) -> Entries:
    found: dict[str, set[Any]] = {}
    for entries in many:
        for kind, values in entries.items():
            found.setdefault(kind, set()).update(values)
    return {kind: sorted(values) for kind, values in found.items()}


def _listed(entries: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{kind} {', '.join(values)}" for kind, values in entries.items())


def _text(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


# Ranges of names, in the order of their text ----------------------------------------------------------------------

Range: TypeAlias = tuple[str, str | None]
"""Names from the first one on, up to but without the second one, or to the end. Names are ASCII, and in its order."""


def ranges_elsewhere(database: str, domains: Sequence[Domain]) -> list[Range]:
    """Return ranges with all names that other databases own, and maybe with some of this one's own.

    A change of the rules reads these ranges, and carries over the fences that it finds.
    """
    own = next(one for one in domains if one.name == database)
    found = [each for other in domains if other is not own for each in ranges_of(other)]
    if not own.default:
        # All that it does not certainly own. A pattern with a wildcard in its middle is no range.
        end = ""
        for begin, after in sorted(ranges_of(own, plain=True)):
            if begin > end:
                found.append((end, begin))
            end = max(end, after or "")
        found.append((end, None))
    return list(_joined(found))


def ranges_of(domain: Domain, *, plain: bool = False) -> list[Range]:
    """Return ranges with all names that a domain names. ``plain``: only those whose names no pattern leaves out.

    The range of a bucket has the keys below prefixes of other databases, too. They are ranges of those, as well.
    """
    patterns = [one for one in domain.resources if not plain or _is_plain(one)]
    return [*_defaults_of(domain), *map(_range, patterns)]


def _defaults_of(domain: Domain) -> list[tuple[str, str]]:
    schemas = [_below(f"{escape(schema)}.") for schema in domain.schemas]
    # The name of a bucket belongs to its owner as well: a lock may have it, or a template may give it to all keys.
    buckets = [name for bucket in domain.whole_buckets for name in (f"{OBJECTS}/{bucket}", f"{OBJECTS}/{bucket}/")]
    keys = [f"{OBJECTS}/{escape_path(prefix)}" for prefix in domain.prefixes]
    return schemas + [_below(name) if name.endswith("/") else _range(name) for name in (*buckets, *keys)]


def _is_plain(pattern: str) -> bool:
    return "*" not in pattern.removesuffix("/**")


def _range(pattern: str) -> tuple[str, str]:
    fixed, wildcard, _ = pattern.partition("*")
    return _below(fixed) if wildcard else (pattern, f"{pattern}\x01")


def _below(prefix: str) -> tuple[str, str]:
    """Return the range of the names that begin with a text."""
    return prefix, prefix[:-1] + chr(ord(prefix[-1]) + 1)


def _joined(ranges: Iterable[Range]) -> Iterable[Range]:
    """Yield ranges in order, without those within others."""
    begin: str | None = None
    end: str | None = ""
    for first, after in sorted(ranges, key=lambda one: one[0]):
        if begin is not None and end is not None and first > end:
            yield begin, end
            begin = None
        if begin is None:
            begin, end = first, after
        elif end is not None:
            end = None if after is None else max(end, after)
    if begin is not None:
        yield begin, end
