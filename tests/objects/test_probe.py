"""The probe finds out every way in which a store falls short of conditional writes, and leaves nothing behind.

The double is AWS unless told otherwise, so each test is a store with one weakness.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import SecretStr

from gateway.config.sections import ObjectStore
from gateway.errors import StoreError, Unavailable
from gateway.objects.s3.answers import (
    Applied,
    Found,
    HeadAnswer,
    Missing,
    NotApplied,
    NotSent,
    Rejected,
    Unknown,
    WriteAnswer,
)
from gateway.objects.store.bucket_profile import (
    KEYS,
    SPELLINGS,
    Contender,
    Etags,
    Observation,
    Probe,
    Profile,
    conclude,
    judge_race,
    judge_reading,
    judge_spelling,
    judge_state,
    judge_trial,
    mistakable,
)
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import PREFIX, Profiles, probe
from tests.doubles.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Double, serve
from tests.tiers import first
from tests.waiting import PATIENCE


@pytest.fixture(scope="module", autouse=True)
def short_probe() -> None:
    """Keep the whole probe: these tests are about it."""


async def at_once() -> datetime:
    return datetime.now(UTC)


@pytest.fixture
def double() -> S3Double:
    double = S3Double(buckets=["bucket"])
    double.put("bucket", "somebody's", b"own")
    return double


@pytest.fixture
async def upstream(double: S3Double) -> AsyncIterator[Upstream]:
    async with serve(double) as endpoint, _upstream(endpoint) as opened:
        yield opened


def _upstream(endpoint: str, secret: str = SECRET_KEY, seconds: float = PATIENCE) -> Upstream:
    return Upstream(
        ObjectStore(
            endpoint=endpoint,
            region=REGION,
            access_key_id=ACCESS_KEY,
            secret_access_key=SecretStr(secret),
        ),
        timeout=seconds,
    )


def failed(profile: Profile) -> set[str]:
    return {finding.name for finding in profile.findings if not finding.passed}


def tried(double: S3Double) -> int:
    return sum(each.operation == "PutObject" for each in double.requests)


async def test_a_store_like_aws_passes_quickly(double: S3Double, upstream: Upstream) -> None:
    async with asyncio.timeout(PATIENCE):
        profile = await probe(upstream, "bucket")
    assert failed(profile) == set()
    assert profile.writable
    assert profile.reason is None
    assert profile.delete_condition
    assert profile.can_bump
    assert not profile.unique_etags
    assert profile.plain_etags_predicted
    assert profile.multipart_etags_predicted
    assert len(double.requests) < 200


WEAKNESSES = [
    ("ignored", "PutObject:If-None-Match", "writable", Probe.PUT_IF_NONE_MATCH),
    ("ignored", "PutObject:If-Match", "writable", Probe.PUT_IF_MATCH),
    ("refused", "PutObject:If-None-Match", "writable", Probe.PUT_IF_NONE_MATCH),
    ("refused", "PutObject:If-Match", "writable", Probe.PUT_IF_MATCH),
    ("ignored", "CompleteMultipartUpload:If-Match", "can_bump", Probe.COMPLETE_IF_MATCH),
    ("ignored", "CompleteMultipartUpload:If-None-Match", "can_bump", Probe.COMPLETE_IF_NONE_MATCH),
    ("refused", "CompleteMultipartUpload", "can_bump", Probe.COMPLETE_IF_NONE_MATCH),
    ("ignored", "DeleteObject", "delete_condition", Probe.DELETE_IF_MATCH),
    ("refused", "DeleteObject", "delete_condition", Probe.DELETE_IF_MATCH),
]


@pytest.mark.parametrize("weakness", first(WEAKNESSES), ids=str)
async def test_each_condition_that_is_ignored_or_refused_is_found_out(
    double: S3Double, upstream: Upstream, weakness: tuple[str, str, str, Probe]
) -> None:
    how, condition, lost, expected = weakness
    double.behave(**{f"{how}_conditions": frozenset({condition})})
    profile = await probe(upstream, "bucket")
    assert expected in failed(profile)
    abilities = {"writable", "can_bump", "delete_condition"}
    assert not getattr(profile, lost)
    if lost != "writable":
        assert all(getattr(profile, ability) for ability in abilities - {lost})
    else:
        assert profile.reason is not None
        assert profile.reason.startswith(expected)
        assert ("was ignored" if how == "ignored" else "not supported: 501") in profile.reason


@pytest.mark.parametrize(
    ("operation", "gap", "expected", "lost"),
    [
        ("PutObject", 0, {Probe.PUT_RACE_IF_NONE_MATCH, Probe.PUT_RACE_IF_MATCH}, "writable"),
        pytest.param(
            *("PutObject", 0.02, {Probe.PUT_RACE_IF_NONE_MATCH, Probe.PUT_RACE_IF_MATCH}, "writable"),
            marks=pytest.mark.thorough,
        ),
        ("CompleteMultipartUpload", 0, {Probe.COMPLETE_RACE}, "can_bump"),
        # A gap of one turn of the double's loop is too narrow for a put that is itself atomic.
        ("DeleteObject", 0.005, {Probe.DELETE_RACE}, "delete_condition"),
    ],
)
async def test_a_store_that_checks_first_and_writes_later_is_found_out(
    double: S3Double, upstream: Upstream, operation: str, gap: float, expected: set[str], lost: str
) -> None:
    """It honours every condition one by one: only the races tell."""
    double.behave(gaps={operation: gap})
    profile = await probe(upstream, "bucket")
    assert expected & failed(profile)
    assert not getattr(profile, lost)
    assert not {Probe.PUT_IF_NONE_MATCH, Probe.PUT_IF_MATCH} & failed(profile), "one by one it does well"


@pytest.mark.parametrize(
    "behaviour",
    first([{"ignored_conditions": frozenset({"*"})}, {}, {"gaps": {"*": 0}}]),
    ids=["ignoring", "good", "racy"],
)
async def test_nothing_is_left_behind_and_nothing_else_is_touched(
    double: S3Double, upstream: Upstream, behaviour: Mapping[str, Any]
) -> None:
    double.behave(**behaviour)
    before = double.sequence
    await probe(upstream, "bucket")
    assert set(double.objects("bucket")) == {"somebody's"}
    assert not double.store.bucket("bucket").uploads.running(now=await at_once())
    assert all(each.key.removeprefix("/").startswith(PREFIX) for each in double.applied(after=before))


@pytest.mark.parametrize("operation", first(["PutObject", "CompleteMultipartUpload", "UploadPart", "HeadObject"]))
async def test_a_cancelled_probe_cleans_up(double: S3Double, upstream: Upstream, operation: str) -> None:
    held = double.hold(operation=operation, nth=2)
    task = asyncio.ensure_future(probe(upstream, "bucket"))
    await held.arrived.wait()
    assert len(double.objects("bucket")) > 1
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert set(double.objects("bucket")) == {"somebody's"}
    assert not double.store.bucket("bucket").uploads.running(now=await at_once())


@pytest.mark.parametrize("operation", ["PutObject", "CompleteMultipartUpload", "DeleteObject", "HeadObject"])
@pytest.mark.parametrize("status", first([503, 500]))
async def test_a_store_that_fails_leaves_the_question_open(
    double: S3Double, upstream: Upstream, operation: str, status: int
) -> None:
    """DeleteObject's first request is unconditional; the probe goes on without it, but not without the next."""
    double.fail(status, operation=operation, nth=2, times=None)
    with pytest.raises(Unavailable, match="could not be probed"):
        await probe(upstream, "bucket")


async def test_a_failure_within_a_race_leaves_the_question_open(double: S3Double, upstream: Upstream) -> None:
    double.fail(503, operation="PutObject", nth=15)
    with pytest.raises(Unavailable):
        await probe(upstream, "bucket")
    assert set(double.objects("bucket")) == {"somebody's"}


async def test_a_lost_race_may_be_answered_as_ceph_does(double: S3Double, upstream: Upstream) -> None:
    double.fail(500, code="UnknownError", operation="PutObject", nth=15, times=3)
    profile = await probe(upstream, "bucket")
    assert profile.writable


@pytest.mark.parametrize(
    ("bucket", "secret", "status", "code"),
    [
        ("nowhere", SECRET_KEY, 404, "NoSuchBucket"),
        ("bucket", "wrong", 403, "SignatureDoesNotMatch"),
        ("bucket", SECRET_KEY, 403, "AccessDenied"),
    ],
)
async def test_errors_unrelated_to_conditions_pass_through(
    double: S3Double, bucket: str, secret: str, status: int, code: str
) -> None:
    if code == "AccessDenied":
        double.fail(403, code=code, operation="PutObject", times=None)
    async with serve(double) as endpoint, _upstream(endpoint, secret) as upstream:
        with pytest.raises(StoreError) as caught:
            await probe(upstream, bucket)
    assert (caught.value.status, caught.value.s3_code) == (status, code)


@pytest.mark.thorough
async def test_a_store_that_takes_one_write_a_second_for_a_key_is_waited_for(
    double: S3Double, upstream: Upstream
) -> None:
    double.fail(429, code="TooManyRequests", operation="PutObject", nth=3)
    assert (await probe(upstream, "bucket")).writable


async def test_conditions_without_quotation_marks_are_used_where_they_are_needed(
    double: S3Double, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ceph's older releases compare the quotation marks as well."""

    def literally(expected: str) -> str:
        return expected

    monkeypatch.setattr("tests.doubles.s3.conditions.bare", literally)
    profile = await probe(upstream, "bucket")
    assert failed(profile) == {Probe.QUOTED_CONDITIONS}
    assert not profile.quoted_conditions
    assert profile.writable
    etag = double.put("bucket", "a", b"old").etag
    assert isinstance(await upstream.put(("bucket", "a"), b"new", expected=etag, signed_at=await at_once()), Applied)


CONFUSED = {
    "paths": {Probe.KEYS_ODD_SEGMENTS, Probe.KEYS_TRAILING_SLASH},
    "letters": {Probe.KEYS_CASE, Probe.KEYS_UNICODE},
}


@pytest.mark.parametrize("keys", first(CONFUSED))
async def test_keys_that_are_one_object_are_found_out(double: S3Double, upstream: Upstream, keys: str) -> None:
    double.behave(keys=keys)
    profile = await probe(upstream, "bucket")
    assert failed(profile) - {Probe.UPLOADS_TRAILING_SLASH} == profile.confused == CONFUSED[keys]
    assert profile.writable
    assert set(double.objects("bucket")) == {"somebody's"}


async def test_keys_that_end_in_a_slash_may_take_no_uploads(double: S3Double, upstream: Upstream) -> None:
    double.behave(marker_uploads="refused")
    profile = await probe(upstream, "bucket")
    assert failed(profile) == {Probe.UPLOADS_TRAILING_SLASH}
    assert profile.writable
    assert (profile.at("a/").can_bump, profile.at("a/").complete_conditions) == (False, False)
    assert profile.at("a") == profile


@pytest.mark.parametrize(
    ("weakness", "expected"),
    [
        ("PutObject:If-None-Match", Probe.KEYS_TRAILING_SLASH),
        ("PutObject:If-Match", Probe.KEYS_TRAILING_SLASH),
        ("DeleteObject", Probe.KEYS_TRAILING_SLASH),
        ("CompleteMultipartUpload:If-None-Match", Probe.UPLOADS_TRAILING_SLASH),
        ("CompleteMultipartUpload:If-Match", Probe.UPLOADS_TRAILING_SLASH),
    ],
)
async def test_conditions_that_are_ignored_at_directories_are_found_out(
    double: S3Double, upstream: Upstream, weakness: str, expected: Probe
) -> None:
    """Some stores make a directory of such a key, whatever the request says."""
    double.behave(ignored_at_markers=frozenset({weakness}))
    profile = await probe(upstream, "bucket")
    assert failed(profile) == {expected, Probe.UPLOADS_TRAILING_SLASH}
    assert (mistakable("a/", profile.confused) is None) == (expected not in KEYS)


async def test_an_upload_that_loses_its_slash_is_found_out(double: S3Double, upstream: Upstream) -> None:
    double.behave(marker_uploads="renamed")
    profile = await probe(upstream, "bucket")
    assert Probe.KEYS_TRAILING_SLASH in failed(profile)
    assert mistakable("a/", profile.confused) is not None


class TestProfiles:
    """Each bucket is probed once, however many ask."""

    async def test_concurrent_first_writers_share_one_probe(self, double: S3Double, upstream: Upstream) -> None:
        profiles = Profiles(upstream)
        found = await asyncio.gather(*(profiles.of("bucket") for _ in range(20)))
        puts = tried(double)
        assert len(set(map(id, found))) == 1
        assert await profiles.of("bucket") is found[0]
        assert tried(double) == puts < 100

    async def test_an_inconclusive_probe_is_not_kept(self, double: S3Double, upstream: Upstream) -> None:
        double.fail(503, operation="PutObject")
        profiles = Profiles(upstream)
        outcomes = await asyncio.gather(*(profiles.of("bucket") for _ in range(5)), return_exceptions=True)
        assert all(isinstance(each, Unavailable) for each in outcomes), "who waits for a probe shares its failure"
        assert tried(double) == 1
        assert (await profiles.of("bucket")).writable

    @pytest.mark.parametrize("leaving", [0, 1])
    async def test_a_writer_that_goes_away_ends_no_probe(
        self, double: S3Double, upstream: Upstream, leaving: int
    ) -> None:
        """The first writer runs the probe, and the second one waits for it, or takes it over."""
        held = double.hold(operation="PutObject")
        profiles = Profiles(upstream)
        writers = [asyncio.ensure_future(profiles.of("bucket"))]
        await held.arrived.wait()
        writers.append(asyncio.ensure_future(profiles.of("bucket")))
        await asyncio.sleep(0)
        writers[leaving].cancel()
        held.release()
        assert (await writers[1 - leaving]).writable
        assert writers[leaving].cancelled()


# A bucket counts as able to do only what it was seen to do, and each failure names what follows from it.

MD5, OF_PARTS = "md5", "parts-1"


HASHES = Etags([MD5, MD5], MD5, [OF_PARTS], OF_PARTS)


DONE, NO, STALE = Applied("new"), NotApplied(412, "PreconditionFailed"), "old"


ODD = Unknown("500 UnknownError")


def without(*failing: Probe, etags: Etags = HASHES) -> Profile:
    return conclude([Observation(probe, "no" if probe in failing else None) for probe in Probe], etags)


def test_an_untried_ability_counts_as_missing() -> None:
    unseen = conclude([], Etags([], MD5, [], OF_PARTS))
    assert not without(Probe.READ_BACK).writable
    assert not any((unseen.writable, unseen.delete_condition, unseen.can_bump, unseen.unique_etags))
    assert all("not tried" in finding.detail for finding in unseen.findings)


@pytest.mark.parametrize(
    ("plain", "multipart", "unique", "writable", "can_bump"),
    [
        ([MD5, MD5], [OF_PARTS], False, True, True),
        (["a", "b"], ["c"], True, True, True),
        (["a", "b"], ["b"], False, False, False),
        (["a", "a"], [OF_PARTS], False, False, True),
        ([MD5, MD5], ["x-1"], False, True, False),
        ([MD5, MD5], [MD5], False, True, False),
        (["a"], [OF_PARTS], False, False, True),
    ],
)
def test_an_etag_that_may_come_back_must_be_predictable(
    *, plain: list[str], multipart: list[str], unique: bool, writable: bool, can_bump: bool
) -> None:
    judged = without(etags=Etags(plain, MD5, multipart, OF_PARTS))
    assert (judged.unique_etags, judged.writable, judged.can_bump) == (unique, writable, can_bump)
    if not writable:
        assert judged.reason is not None
        assert judged.reason.startswith(Probe.ETAG_OF_PUT)


@pytest.mark.parametrize(
    ("answer", "holds", "complaint"),
    [
        (DONE, True, None),
        (NO, True, "refused with 412 although it holds"),
        (NO, False, None),
        (NotApplied(404, "NoSuchKey"), False, None),
        (Rejected(501, "NotImplemented", ""), False, "not supported: 501 NotImplemented"),
    ],
)
def test_a_condition_must_let_through_what_it_should_and_nothing_else(
    *, answer: WriteAnswer, holds: bool, complaint: str | None
) -> None:
    seen = judge_trial(Probe.PUT_IF_MATCH, "If-Match", answer, holds=holds)
    assert (seen.complaint is None) == (complaint is None)
    assert (complaint or "") in (seen.complaint or "")


@pytest.mark.parametrize(
    ("answers", "after", "complaint"),
    [
        ({"a": DONE, "b": NO}, Found("new", "a"), None),
        ({"a": DONE, "b": NO}, Found("new", "b"), "another write"),
        ({"a": DONE, "b": NO}, Missing(), "another write"),
        ({"a": DONE, "b": DONE}, Found("new", "a"), "2 of 2"),
        ({"a": NO, "b": NO}, Found(STALE, "before"), None),
        ({"a": NO, "b": NO}, Found("new", "a"), "refused took effect"),
        ({"a": ODD, "b": NO}, Found("new", "a"), None),
        ({"a": ODD, "b": DONE}, Found("new", "b"), None),
        ({"a": ODD, "b": DONE}, Found("new", "a"), "another write"),
        ({"a": NO, None: DONE}, Missing(), None),
        ({"a": NO, None: DONE}, Found(STALE, "before"), "another write"),
    ],
)
def test_a_race_has_one_winner_and_it_is_what_stands_there(
    answers: dict[str | None, WriteAnswer], after: HeadAnswer, complaint: str | None
) -> None:
    contenders = [Contender(write_id, answer) for write_id, answer in answers.items()]
    seen = judge_race(Probe.PUT_RACE_IF_MATCH, STALE, contenders, after)
    assert (seen.complaint is None) == (complaint is None)
    assert (complaint or "") in (seen.complaint or "")


def test_two_deletes_do_not_harm_each_other() -> None:
    """Some stores answer the deletion of what is gone with success."""
    contenders = [Contender(None, DONE), Contender(None, DONE)]
    assert judge_race(Probe.DELETE_RACE, STALE, contenders, Missing()).complaint is None


@pytest.mark.parametrize(
    ("state", "good"),
    [(Found("e", "w"), True), (Found("f", "w"), False), (Found("e", None), False), (Missing(), False)],
)
def test_a_write_must_be_read_back_with_its_etag_and_metadata(*, state: HeadAnswer, good: bool) -> None:
    assert (judge_reading(state, "e", "w").complaint is None) is good


@pytest.mark.parametrize(
    ("state", "write_id", "good"),
    [(Found("e", "w"), "w", True), (Found("e", "v"), "w", False), (Missing(), None, True), (Found("e"), None, False)],
)
def test_a_refused_write_must_have_no_effect(*, state: HeadAnswer, write_id: str | None, good: bool) -> None:
    assert (judge_state(Probe.PUT_IF_MATCH, state, write_id).complaint is None) is good


# Keys in other than plain spelling are known for what they are; no plain key is taken for one of them.

PLAIN = ["a", "a/b", ".a", "..a", "a/.b", "a/...b/c", "a b", "a+b", "%20", "a%2fb", "a:b", "0", "_", "xldir"]


SPELT_ODDLY = {
    Probe.KEYS_ODD_SEGMENTS: ["/a", "//a", "/", "a//b", "a//", ".", "./a", "a/.", "a/./", "..", "a/../b"],
    Probe.KEYS_TRAILING_SLASH: ["a/"],
    Probe.KEYS_MARKER: ["a__XLDIR__", "a__xlDir__"],
    Probe.KEYS_CASE: ["A", "\u017f"],
    Probe.KEYS_UNICODE: ["\u00df", "e\u0301", "\ufb01"],
    Probe.KEYS_WINDOWS: ["a\\b", "a.", "a /b"],
}


def test_plain_keys_are_written_whatever_the_store_confuses() -> None:
    assert [key for key in PLAIN if mistakable(key, KEYS)] == []


@pytest.mark.parametrize("kind", SPELT_ODDLY)
def test_another_spelling_is_refused_where_its_kind_is_confused_and_only_there(kind: Probe) -> None:
    for key in SPELT_ODDLY[kind]:
        assert mistakable(key, {kind}) is kind, ascii(key)
        assert mistakable(key, ()) is None


@pytest.mark.parametrize("kind", KEYS)
def test_each_kind_of_spelling_is_tried_with_keys_of_its_kind(kind: Probe) -> None:
    """If two keys are the same for a store, the gateway refuses at least one of them."""
    spelling = SPELLINGS[kind]
    for other in spelling.others:
        assert spelling.includes(spelling.plain.format("")) or spelling.includes(other.format(""))


STANDING = Applied("etag")


@pytest.mark.parametrize(
    ("standing", "answer", "undisturbed", "complaint"),
    [
        (STANDING, STANDING, True, None),
        (STANDING, STANDING, False, "'/a' was one of 'a'"),
        (STANDING, NotApplied(412, "PreconditionFailed"), True, "'/a' is taken for 'a'"),
        (STANDING, NotApplied(404, "NoSuchKey"), True, "cannot be told: '/a' is answered with 404 NoSuchKey"),
        (STANDING, Rejected(400, "InvalidURI", ""), True, "400 InvalidURI"),
        (STANDING, Unknown("500 InternalError"), True, "500 InternalError"),
        (STANDING, NotSent("refused"), True, "refused"),
        (Rejected(400, "InvalidURI", ""), STANDING, False, "cannot be tried: 'a'"),
    ],
    ids=str,
)
def test_only_two_objects_are_two_keys(
    *, standing: WriteAnswer, answer: WriteAnswer, undisturbed: bool, complaint: str | None
) -> None:
    (seen,) = judge_spelling(Probe.KEYS_ODD_SEGMENTS, "{}a", standing, {"/{}a": answer}, undisturbed=undisturbed)
    assert (seen.complaint is None) == (complaint is None)
    assert (complaint or "") in (seen.complaint or "")
