"""Shares: what each of several databases owns, as a fact that it keeps, and the comparison with a gateway's rules.

The *share* of a database is all that the rules say about its own names, as one text. A gateway is let in only if its
rules give the database the share in force. Rules that differ in the names of other databases alone do no harm there.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias
from uuid import UUID

from gateway.errors import OwnershipDiffers
from gateway.fencing.ownership import Domain

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


def check(owner: Owner, name: str | None, share: str | None, *, changing: bool, put_back: bool = False) -> None:
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
