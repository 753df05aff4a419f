"""Fenced credentials read their own resources and the extra ones requested. No operation reads anything else."""

from typing import Any

import pytest

from gateway.auth.grants import EVERYTHING
from gateway.auth.principal import FencedScope
from gateway.errors import StoreError
from gateway.fencing.token import Token
from gateway.objects.probe.bucket_profile import KEYS, Probe
from gateway.objects.reads import ReadScope
from gateway.objects.resource_rules import KeyRule, Resources
from gateway.objects.s3.operations import Level, Operation, OperationKind
from gateway.objects.s3.request import S3Request, classify

RULES = Resources([KeyRule.compile("bkt/jobs/{id}/**", "job/{id}")])
READS = [operation for operation in Operation if operation.kind is OperationKind.READ]
LISTINGS = [operation for operation in READS if "prefix" in operation.optional and operation.level is Level.BUCKET]


class Tried:
    """The profile of every bucket: which kinds of keys it takes for others."""

    def __init__(self, *confused: Probe) -> None:
        self.confused = frozenset(confused)
        self.asked: list[str] = []

    async def of(self, bucket: str) -> Any:
        self.asked.append(bucket)
        return self


class Untried:
    async def of(self, bucket: str) -> Any:
        raise StoreError("AccessDenied", 403, "The store does not let the gateway write.")


NOTHING_CONFUSED = Tried()


def grant(pattern: str, *read: str) -> FencedScope:
    return FencedScope(pattern, Token(0, 34), read=read)


def request(operation: Operation, bucket: str = "bkt", key: str = "key", **parameters: str) -> S3Request:
    path = {Level.SERVICE: "/", Level.BUCKET: f"/{bucket}", Level.OBJECT: f"/{bucket}/{key}"}[operation.level]
    values = {"list-type": "2", "uploadId": "u", "partNumber": "1", "annotationName": "n", "id": "i"}
    named = {marker: values.get(marker, "") for marker in operation.markers} | parameters
    query = "&".join(f"{name}={value}" for name, value in named.items())
    headers = [(b"x-amz-copy-source", f"{bucket}/{key}".encode())] if operation.copies else []
    return classify(operation.method, path.encode(), query.encode(), headers)


async def denied(asked: S3Request, held: FencedScope, profiles: Any = NOTHING_CONFUSED) -> bool:
    refused: StoreError | None = None
    try:
        await ReadScope(RULES, profiles).check(asked, held)
    except StoreError as error:
        refused = error
    if refused is None:
        return False
    assert (refused.s3_code, refused.status) == ("AccessDenied", 403)
    assert "These fenced credentials read what" in refused.message
    return True


@pytest.mark.parametrize("pattern", ["job/42", "s3/other/**", "s3/bkt/key2", "s3/bkt/key/**", "s3/*/other"])
async def test_a_key_beyond_the_grant_is_not_read(subtests: pytest.Subtests, pattern: str) -> None:
    for operation in READS:
        with subtests.test(operation=operation):
            if operation in (Operation.HEAD_BUCKET, Operation.GET_BUCKET_LOCATION):
                assert await denied(request(operation, bucket="third"), grant("s3/bkt/**"))
            else:
                assert await denied(request(operation), grant(pattern))


async def test_a_grant_for_everything_reads_everything(subtests: pytest.Subtests) -> None:
    for operation in READS:
        with subtests.test(operation=operation):
            assert not await denied(request(operation), grant("job/42", EVERYTHING))


@pytest.mark.parametrize("operation", [one for one in READS if one.level is Level.OBJECT])
async def test_a_grant_reads_the_keys_it_covers(operation: Operation) -> None:
    assert not await denied(request(operation, key="jobs/42/a"), grant("job/42"))
    assert not await denied(request(operation), grant("s3/bkt/key"))
    assert not await denied(request(operation), grant("job/42", "s3/bkt/*"))
    assert await denied(request(operation, key="jobs/43/a"), grant("job/42"))
    assert await denied(request(operation, key="jobs/42"), grant("job/42"))
    assert await denied(request(operation, key="jobs/42/a"), grant("s3/bkt/jobs/42/**"))


@pytest.mark.parametrize("operation", LISTINGS)
async def test_a_listing_must_stay_below_a_granted_prefix(operation: Operation) -> None:
    for prefix in ("jobs/42/", "jobs/42/deep/x"):
        assert not await denied(request(operation, prefix=prefix), grant("job/42"))
    for prefix in ("", "j", "jobs/", "jobs/4", "jobs/42", "jobs/43/", "jobs//", "other/"):
        assert await denied(request(operation, prefix=prefix), grant("job/42")), prefix
    assert not await denied(request(operation, prefix="x/"), grant("job/42", "s3/bkt/x/**"))
    assert not await denied(request(operation), grant("s3/bkt/**", "job/*"))
    assert await denied(request(operation), grant("s3/bkt/**")), "the keys of jobs have other resources"


def test_there_are_four_listings() -> None:
    assert len(LISTINGS) == 4


@pytest.mark.parametrize("operation", [one for one in Operation if one.copies])
async def test_a_copy_is_a_read(operation: Operation) -> None:
    assert await denied(request(operation), grant("s3/bkt/key2"))
    assert not await denied(request(operation), grant("s3/bkt/key"))
    assert not await denied(request(operation), grant("s3/bkt/key2", "s3/bkt/key"))


async def test_a_bucket_with_a_granted_key_is_found() -> None:
    for operation in (Operation.HEAD_BUCKET, Operation.GET_BUCKET_LOCATION):
        for pattern in ("job/42", "s3/bkt/deep/key", "s3/*/x"):
            assert not await denied(request(operation), grant(pattern))
        assert await denied(request(operation), grant("s3/other/**"))
        assert await denied(request(operation), grant("public.orders/5"))


async def test_another_spelling_of_another_key_is_not_read() -> None:
    """A store that keeps objects as files finds jobs/43 below jobs/42/../43."""
    odd, own = Probe.KEYS_ODD_SEGMENTS, grant("job/42")
    for key in ("jobs/42/../43/a", "jobs/42//a", "jobs/42/./a"):
        for operation in (Operation.GET_OBJECT, Operation.HEAD_OBJECT, Operation.COPY_OBJECT):
            assert await denied(request(operation, key=key), own, Tried(odd))
            assert not await denied(request(operation, key=key), own, Tried()), "S3 keeps them apart"
            assert await denied(request(operation, key=key), own, Untried())
        assert await denied(request(Operation.LIST_OBJECTS_V2, prefix=f"{key}/"), own, Tried(odd))


async def test_plain_keys_are_not_probed() -> None:
    profiles = Tried(*KEYS)
    for key in ("jobs/42/a", "jobs/42/a/b-c_d.txt"):
        assert not await denied(request(Operation.GET_OBJECT, key=key), grant("job/42"), profiles)
    assert not await denied(request(Operation.LIST_OBJECTS_V2, prefix="jobs/42/"), grant("job/42"), profiles)
    assert profiles.asked == []
