"""A bucket counts as able to do only what it was seen to do, and each failure names what follows from it."""

import pytest

from gateway.objects.probe import judgement
from gateway.objects.probe.bucket_profile import Probe, Profile
from gateway.objects.probe.judgement import Contender, Etags, Observation
from gateway.objects.s3.answers import Applied, Found, HeadAnswer, Missing, NotApplied, Rejected, Unknown, WriteAnswer

MD5, OF_PARTS = "md5", "parts-1"
HASHES = Etags([MD5, MD5], MD5, [OF_PARTS], OF_PARTS)
EVERYTHING = [Observation(probe, None) for probe in Probe]
OK, NO, STALE = Applied("new"), NotApplied(412, "PreconditionFailed"), "old"
ODD = Unknown("500 UnknownError")


def without(*failing: Probe, etags: Etags = HASHES) -> Profile:
    return judgement.conclude([Observation(probe, "no" if probe in failing else None) for probe in Probe], etags)


def test_a_store_that_does_everything_can_do_everything() -> None:
    good = judgement.conclude(EVERYTHING, HASHES)
    assert good.writable
    assert good.conditional_delete
    assert good.can_bump
    assert good.reason is None
    assert all(finding.passed and not finding.consequence for finding in good.findings)


def test_an_untried_ability_counts_as_missing() -> None:
    unseen = judgement.conclude([], Etags([], MD5, [], OF_PARTS))
    assert not any((unseen.writable, unseen.conditional_delete, unseen.can_bump, unseen.unique_etags))
    assert all("not tried" in finding.detail for finding in unseen.findings)


@pytest.mark.parametrize(
    ("failing", "lost", "consequence"),
    [
        (Probe.PUT_IF_NONE_MATCH, "writable", "Fenced writes"),
        (Probe.PUT_IF_MATCH, "writable", "Fenced writes"),
        (Probe.PUT_RACE_IF_NONE_MATCH, "writable", "Fenced writes"),
        (Probe.PUT_RACE_IF_MATCH, "writable", "Fenced writes"),
        (Probe.READ_BACK, "writable", "Fenced writes"),
        (Probe.COMPLETE_IF_NONE_MATCH, "can_bump", "abort and list"),
        (Probe.COMPLETE_IF_MATCH, "can_bump", "abort and list"),
        (Probe.COMPLETE_RACE, "can_bump", "abort and list"),
        (Probe.DELETE_IF_MATCH, "conditional_delete", "tombstones"),
        (Probe.DELETE_RACE, "conditional_delete", "tombstones"),
        (Probe.QUOTED_CONDITIONS, "quoted_conditions", "without quotation marks"),
    ],
)
def test_each_failure_takes_away_its_ability_and_no_other(failing: Probe, lost: str, consequence: str) -> None:
    judged = without(failing)
    abilities = {"writable", "can_bump", "conditional_delete", "quoted_conditions"}
    assert {ability for ability in abilities if not getattr(judged, ability)} == {lost}
    (finding,) = (finding for finding in judged.findings if not finding.passed)
    assert finding.name == failing
    assert consequence in finding.consequence
    assert judged.reason == (f"{failing}: no" if lost == "writable" else None)


@pytest.mark.parametrize(
    ("plain", "multipart", "unique", "writable", "can_bump"),
    [
        ([MD5, MD5], [OF_PARTS], False, True, True),
        (["a", "b"], ["c"], True, True, True),
        (["a", "b"], ["b"], False, False, False),
        (["a", "a"], [OF_PARTS], False, False, True),
        ([MD5, "a"], [OF_PARTS], True, True, True),
        ([MD5, MD5], ["x-1"], False, True, False),
        ([MD5, MD5], [MD5], False, True, False),
        ([MD5, MD5], [], False, True, False),
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
        (OK, True, None),
        (OK, False, "was ignored"),
        (NO, True, "refused with 412 although it holds"),
        (NO, False, None),
        (NotApplied(404, "NoSuchKey"), False, None),
        (Rejected(501, "NotImplemented", ""), True, "not supported: 501 NotImplemented"),
        (Rejected(501, "NotImplemented", ""), False, "not supported: 501 NotImplemented"),
    ],
)
def test_a_condition_must_let_through_what_it_should_and_nothing_else(
    *, answer: WriteAnswer, holds: bool, complaint: str | None
) -> None:
    seen = judgement.of_trial(Probe.PUT_IF_MATCH, "If-Match", answer, holds=holds)
    assert (seen.complaint is None) == (complaint is None)
    assert (complaint or "") in (seen.complaint or "")


@pytest.mark.parametrize(
    ("answers", "after", "complaint"),
    [
        ({"a": OK, "b": NO}, Found("new", "a"), None),
        ({"a": OK, "b": NO}, Found("new", "b"), "another write"),
        ({"a": OK, "b": NO}, Missing(), "another write"),
        ({"a": OK, "b": OK}, Found("new", "a"), "2 of 2"),
        ({"a": NO, "b": NO}, Found(STALE, "before"), None),
        ({"a": NO, "b": NO}, Found("new", "a"), "refused took effect"),
        ({"a": NO, "b": NO}, Missing(), "refused took effect"),
        ({"a": ODD, "b": NO}, Found("new", "a"), None),
        ({"a": ODD, "b": OK}, Found("new", "b"), None),
        ({"a": ODD, "b": OK}, Found("new", "a"), "another write"),
        ({"a": NO, None: OK}, Missing(), None),
        ({"a": NO, None: OK}, Found(STALE, "before"), "another write"),
        ({"a": OK, None: OK}, Missing(), "2 of 2"),
    ],
)
def test_a_race_has_one_winner_and_it_is_what_stands_there(
    answers: dict[str | None, WriteAnswer], after: HeadAnswer, complaint: str | None
) -> None:
    contenders = [Contender(write_id, answer) for write_id, answer in answers.items()]
    seen = judgement.of_race(Probe.PUT_RACE_IF_MATCH, STALE, contenders, after)
    assert (seen.complaint is None) == (complaint is None)
    assert (complaint or "") in (seen.complaint or "")


def test_two_deletes_do_not_harm_each_other() -> None:
    """Some stores answer the deletion of what is gone with success."""
    contenders = [Contender(None, OK), Contender(None, OK)]
    assert judgement.of_race(Probe.DELETE_RACE, STALE, contenders, Missing()).complaint is None


@pytest.mark.parametrize(
    ("state", "good"),
    [(Found("e", "w"), True), (Found("f", "w"), False), (Found("e", None), False), (Missing(), False)],
)
def test_a_write_must_be_read_back_with_its_etag_and_metadata(*, state: HeadAnswer, good: bool) -> None:
    assert (judgement.of_reading(state, "e", "w").complaint is None) is good


@pytest.mark.parametrize(
    ("state", "write_id", "good"),
    [(Found("e", "w"), "w", True), (Found("e", "v"), "w", False), (Missing(), None, True), (Found("e"), None, False)],
)
def test_a_refused_write_must_have_no_effect(*, state: HeadAnswer, write_id: str | None, good: bool) -> None:
    assert (judgement.of_state(Probe.PUT_IF_MATCH, state, write_id).complaint is None) is good
