"""The change of a bucket's naming: which keys get other names, and how their fences are carried over."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from gateway.db import naming as registry
from gateway.db.database import Database
from gateway.db.naming import Carry
from gateway.errors import GatewayError, Unavailable
from gateway.fencing.naming import BucketNaming, RegisteredNaming
from gateway.objects.key_rules import DEFAULT_TEMPLATE, KeyRule, Resources
from gateway.objects.s3 import listing_pages, xml
from gateway.objects.store.client import query_of
from gateway.objects.store.operations import Upstream

MAPPING = "SELECT old, new FROM unnest($1::text[], $2::text[]) AS m (old, new)"
MAPPING_TO_A_NEW_EPOCH = "SELECT old, new FROM unnest($2::text[], $3::text[]) AS m (old, new)"
_MAX_DOCUMENT = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BucketChange:
    """A bucket whose configured naming is not the one in force."""

    name: str
    old: RegisteredNaming[BucketNaming]
    rules: Resources

    @property
    def following(self) -> BucketNaming:
        """The configured naming."""
        return self.rules.naming(self.name)

    @property
    def was(self) -> str:
        """The naming in force, for people."""
        return str(self.old.naming)

    @property
    def closed(self) -> bool:
        """Whether the bucket takes no writes."""
        return self.old.change is not None

    @property
    def patterns(self) -> list[str]:
        """Regular expressions of all old names."""
        return [_expression(pattern) for pattern in _rules_of(self.old.naming).below(self.name, "")]


def changes(rules: Resources, registered: Sequence[RegisteredNaming[BucketNaming]]) -> list[BucketChange]:
    """Return the buckets whose configured naming is not the one in force."""
    return [
        BucketChange(one.name, one, rules)
        for one in registered
        if one.naming != rules.naming(one.name) or one.change is not None
    ]


async def renamed_keys(
    database: Database, upstream: Upstream, change: BucketChange
) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """Return the keys whose resource changes, with the old and the new one; and the old and new resource of all keys.

    The keys are those of the store, those that anything is remembered of, and those whose names are default ones.
    """
    before = _rules_of(change.old.naming)
    keys = {key for _, key in await registry.remembered_keys(database, change.name)}
    prefix = DEFAULT_TEMPLATE.format(bucket=change.name, key="")
    keys.update(unquote(name.removeprefix(prefix)) for name in await registry.names_below(database, prefix))
    async for key in _listed(upstream, change.name):
        keys.add(key)
    moved, names = [], set()
    for key in sorted(keys):
        old, new = _resource(before, change.name, key), _resource(change.rules, change.name, key)
        if old is None or new is None:
            continue
        names.add((old, new))
        if old != new:
            moved.append((key, old, new))
    return moved, sorted(names)


async def close(database: Database, change: BucketChange) -> None:
    """Commit that no announcement in the bucket proves a naming any more."""
    await registry.close_bucket(database, change.name, change.following)


async def carry_over(database: Database, upstream: Upstream, change: BucketChange, epoch: int | None) -> None:
    """Carry the fences over, and put the configured naming in force."""
    moved, names = await renamed_keys(database, upstream, change)
    if epoch is not None:
        # The locks of all other keys go on as they are.
        names = sorted({(old, new) for _, old, new in moved})
    columns = ([old for old, _ in names], [new for _, new in names])
    mapping = MAPPING if epoch is None else MAPPING_TO_A_NEW_EPOCH
    carry = Carry(mapping, columns, change.was, epoch)
    await registry.open_bucket(database, change.name, change.following, carry, moved)


def _rules_of(naming: BucketNaming) -> Resources:
    """Return the rules of a naming. Its last one is the default, which needs no rule."""
    return Resources(KeyRule.compile(match, template) for match, template in naming.rules[:-1])


def _resource(rules: Resources, bucket: str, key: str) -> str | None:
    """Return the resource of a key; None if its name would be too long, which no write has."""
    try:
        return rules.target(bucket, key).resource
    except GatewayError:
        return None


def _expression(pattern: str) -> str:
    """Return a pattern of resources as a regular expression."""
    segments = []
    for segment in pattern.split("/"):
        if segment == "**":
            segments.append(".*")
        else:
            segments.append("[^/]*" if segment == "*" else re.sub(r"([^A-Za-z0-9])", r"[\1]", segment))
    return f"^{'/'.join(segments)}$"


async def _listed(upstream: Upstream, bucket: str) -> AsyncIterator[str]:
    """Yield the keys of a bucket, from the store's listing."""
    after: str | None = None
    while True:
        query = query_of({"list-type": "2", "encoding-type": "url", "start-after": after})
        async with await upstream.send("GET", f"/{bucket}", query) as response:
            document = await response.read(_MAX_DOCUMENT)
        error = xml.read_error(document)
        if error is not None and error.code == "NoSuchBucket":
            return
        page = await asyncio.to_thread(listing_pages.read, document) if response.status == 200 else None
        if page is None:
            raise Unavailable(f"The store answered with {response.status} when asked for a listing of {bucket}.")
        keys = [entry.name for entry in page.entries if entry.kind == listing_pages.CONTENTS]
        for key in keys:
            yield key
        if not page.is_truncated or not keys:
            return
        after = max(keys)
