"""Checks of the rules that give names to databases: no name may have two owners, whatever makes it.

They run once, at the start of a gateway. So no request has to check the names that rules make.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.fencing.ownership import OBJECTS, Domain
from gateway.fencing.resource import escape, includes, is_bucket_name, overlap

_FIELD = re.compile(r"\{[^{}/]+\}")


def conflicts(domains: Sequence[Domain]) -> Iterator[tuple[int, str, str]]:
    """Yield what two databases claim: the number of the second one, the key, and the problem."""
    for number, one in enumerate(domains):
        # Its rows have names like those of a schema up to the dot, which may be in another database.
        dotted = (schema for schema in one.schemas if "." in schema)
        yield from ((number, "schemas", f"{schema} has a dot in its name; rename it") for schema in dotted)
        yield from ((number, "resources", problem) for pattern in one.resources if (problem := _unfit(pattern)))
        yield from ((number, "buckets", problem) for rule in one.buckets if (problem := _unfit_for_keys(rule)))
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
    for prefix in one.prefixes:
        for another in other.prefixes:
            if prefix != another and (prefix.startswith(another) or another.startswith(prefix)):
                yield "buckets", f"{prefix} overlaps {another} of {other.name}; make them disjoint"
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
        return "** is every resource; put this database first instead"
    if first == "*":
        return f"{pattern} begins with a wildcard, so it overlaps rows and keys; begin it with a name"
    if first == OBJECTS:
        return f"{pattern} is about keys; name their bucket in buckets instead"
    return None


def _unfit_for_keys(rule: str) -> str | None:
    """Return why a text is neither the name of a bucket nor a prefix of keys."""
    if set("*{}") & set(rule) or not rule.isprintable():
        return f"{rule!a} is a pattern; write the name of a bucket, or bucket/prefix/ for the keys below a prefix"
    bucket, slash, prefix = rule.partition("/")
    if slash and not prefix:
        return f"{rule} has no prefix; leave the slash out for the whole bucket"
    if slash and not prefix.endswith("/"):
        return f"{rule} must end in a slash: without one it would be about {rule}-other as well"
    # Stores that keep objects as files take such a key for another one.
    if {"", ".", ".."} & {bucket, *prefix.split("/")[:-1]}:
        return f"{rule} has an empty segment, or . or .., which some stores leave out; choose another prefix"
    if not is_bucket_name(bucket):  # no request can name it, and the default database would serve what was meant
        return f"no request can name the bucket {bucket}; use the bucket's own name in S3"
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
        if self.head == OBJECTS and len(self.segments) > 1 and isinstance(self.segments[1], str):
            return self.segments[1]
        return None


def foreign_to(database: str, names: Names, domains: Sequence[Domain]) -> str | None:
    """Return another database that may own some of these names; None if all of them belong to this one."""
    own = next(one for one in domains if one.name == database)
    if any(names.within(pattern) for pattern in (*own.resources, *own.key_patterns)):
        return None
    if names.bucket is not None:
        below = (one for one in domains if one is not own and any(map(names.reach, one.key_patterns)))
        of_bucket = (one for one in domains if names.bucket in one.whole_buckets)
        return _other(database, next((one.name for one in (*below, *of_bucket)), _default(domains)))
    for other in domains:
        if other is not own and _may_own(other, names):
            return other.name
    head = names.head
    if head is not None and "." in head and any(names.may_begin_with_schema(schema) for schema in own.schemas):
        return None
    return _other(database, _default(domains))


def _may_own(other: Domain, names: Names) -> bool:
    return (
        any(names.reach(pattern) for pattern in (*other.resources, *other.key_patterns))
        or any(names.may_begin_with_schema(schema) for schema in other.schemas)
        or any(names.may_begin(OBJECTS, bucket) for bucket in other.whole_buckets)
    )


@dataclass(frozen=True, slots=True)
class KeyNames:
    """Keys that match a pattern over ``bucket/key``, and the template of their names."""

    match: str
    template: str

    def foreign(self, domains: Sequence[Domain]) -> tuple[str, str] | None:
        """Return a database that has keys of the rule, and another one that may own some of their names."""
        if self.template == f"{OBJECTS}/{{bucket}}/{{key}}" or not self._segments:  # a rule without any is refused
            return None
        for owner, names, known in self._made(domains):
            if other := foreign_to(owner, names, known):
                return owner, other
        return None

    def _made(self, domains: Sequence[Domain]) -> Iterator[tuple[str, Names, Sequence[Domain]]]:
        """Yield the owner of keys, the names of these keys, and the rules that the names can break."""
        first = self.match.partition("/")[0]
        if set("*{}") & set(first):
            buckets = dict.fromkeys(rule.partition("/")[0] for one in domains for rule in one.buckets)
            if not self.template.startswith(f"{OBJECTS}/{{bucket}}/"):
                yield _default(domains), Names.of(self.template, {}, "key"), domains
        else:
            buckets = {first: None}
        for bucket in buckets:
            named = {"bucket": bucket} | ({first[1:-1]: bucket} if first.startswith("{") else {})
            yield from self._made_in(bucket, named, domains)

    def _made_in(
        self, bucket: str, named: dict[str, str], domains: Sequence[Domain]
    ) -> Iterator[tuple[str, Names, Sequence[Domain]]]:
        prefixes = [
            (prefix.split("/")[1:-1], one)
            for one in domains
            for prefix in one.prefixes
            if prefix.startswith(f"{bucket}/")
        ]
        for segments, one in prefixes:
            if (values := self._below(segments)) is not None:
                yield one.name, Names.of(self.template, named | values, "key"), domains
        if any(self._is_within(segments) for segments, _ in prefixes):
            return
        owner = next((one.name for one in domains if bucket in one.whole_buckets), _default(domains))
        apart = [
            replace(one, buckets=tuple(rule for rule in one.buckets if not self._keeps_apart(rule, bucket)))
            for one in domains
        ]
        yield owner, Names.of(self.template, named, "key"), apart

    @property
    def _segments(self) -> list[str]:
        return self.match.split("/")[1:]

    def _below(self, prefix: Sequence[str]) -> dict[str, str] | None:
        """Return the values of fields for keys below a prefix; None if the rule is about none of them."""
        mine = self._segments
        rest = mine[-1] == "**"
        if not rest and len(mine) <= len(prefix):
            return None
        values = {}
        for segment, given in zip(mine[: len(mine) - rest], prefix, strict=False):
            if segment.startswith("{"):
                values[segment[1:-1]] = given
            elif segment not in ("*", given):
                return None
        return values

    def _is_within(self, prefix: Sequence[str]) -> bool:
        """Return whether the rule is about keys below a prefix only."""
        return len(self._segments) > len(prefix) and self._segments[: len(prefix)] == list(prefix)

    def _keeps_apart(self, rule: str, bucket: str) -> bool:
        """Return whether a name is below a prefix only if its key is: the names begin with the segments of the keys."""
        depth = rule.count("/") - 1
        if depth < 0 or not rule.startswith(f"{bucket}/"):
            return False
        mine, made = self._segments, self.template.split("/")
        kept = all(one.startswith("{") or ("*" not in one and escape(one) == one) for one in mine[:depth])
        begins = made[:2] == [OBJECTS, "{bucket}"] and made[2 : depth + 2] == mine[:depth]
        return kept and begins and len(mine) > depth and len(made) > depth + 2


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
