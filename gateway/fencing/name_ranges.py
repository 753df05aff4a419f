"""Ranges of names, in the order of their text: where a database can have fences of names that others own.

A change of the rules reads these ranges, and carries over what it finds (``gateway.ownership``).
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from gateway.fencing.ownership import OBJECTS, Domain
from gateway.fencing.resource import escape, escape_path

Range: TypeAlias = tuple[str, str | None]
"""Names from the first one on, up to but without the second one, or to the end. Names are ASCII, and in its order."""


def ranges_elsewhere(database: str, domains: Sequence[Domain]) -> list[Range]:
    """Return ranges with all names that other databases own, and maybe with some of this one's own."""
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
