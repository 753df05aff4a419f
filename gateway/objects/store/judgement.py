"""Judge the observations of a probe: the conditions that a bucket honours, and what follows for fenced writes.
No I/O.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

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
    COMPLETE_CONDITIONS,
    DELETE_CONDITION,
    KEYS,
    PUT_CONDITIONS,
    REQUIRED,
    Probe,
    ProbeFinding,
    Profile,
)

# Some stores answer so to a conditional write that lost a race inside them: Ceph says 500 UnknownError. The object
# itself tells the outcome.
_LOST_RACE = "500 "


def lost_race(answer: WriteAnswer) -> bool:
    """Return whether a write in a race got an error that leaves its outcome open."""
    return isinstance(answer, Unknown) and answer.reason.startswith(_LOST_RACE)


_NO_FENCED_WRITES = "Fenced writes to this bucket are refused."


_NO_MULTIPART = (
    "Multipart uploads of clients are settled by abort and list, and a late write is settled only once its signature "
    "has expired."
)


_TOMBSTONES = "Deletes leave tombstones."


_NO_OTHER_FORM = "The same bytes have no second form: a late write is settled only once its signature has expired."


_CONSEQUENCES = (
    dict.fromkeys(REQUIRED, _NO_FENCED_WRITES)
    | dict.fromkeys(COMPLETE_CONDITIONS, _NO_MULTIPART)
    | dict.fromkeys(DELETE_CONDITION, _TOMBSTONES)
    | {
        Probe.ETAG_OF_MULTIPART: _NO_OTHER_FORM,
        Probe.QUOTED_CONDITIONS: "If-Match is sent to this bucket without quotation marks.",
    }
    | KEYS
)


@dataclass(frozen=True, slots=True)
class Observation:
    """One observation. ``complaint`` is None where the bucket did what it should."""

    probe: Probe
    complaint: str | None


@dataclass(frozen=True, slots=True)
class Contender:
    """One of several concurrent writes with the same condition. ``write_id`` is None for a delete."""

    write_id: str | None
    answer: WriteAnswer


@dataclass(frozen=True, slots=True)
class Etags:
    """ETags of the same bytes, and what they should be."""

    plain: Sequence[str]
    plain_predicted: str
    multipart: Sequence[str]
    multipart_predicted: str

    @property
    def unique(self) -> bool:
        return len(self.plain) > 1 and len({*self.plain, *self.multipart}) == len(self.plain) + len(self.multipart)

    @property
    def plain_right(self) -> bool:
        return set(self.plain) == {self.plain_predicted}

    @property
    def multipart_right(self) -> bool:
        return set(self.multipart) == {self.multipart_predicted}


def of_trial(probe: Probe, condition: str, answer: WriteAnswer, *, holds: bool) -> Observation:
    """Judge one write whose condition, put into words by ``condition``, held or did not hold."""
    match answer:
        case Applied() if not holds:
            return Observation(probe, f"{condition} was ignored: the write was accepted")
        case NotApplied(status, _) if holds:
            return Observation(probe, f"{condition} was refused with {status} although it holds")
        case Rejected(status, code, _):
            return Observation(probe, f"{condition} is not supported: {status} {code}")
        case _:
            return Observation(probe, None)


def of_race(probe: Probe, before: str | None, contenders: Sequence[Contender], after: HeadAnswer) -> Observation:
    """Judge concurrent writes that were all conditioned on the ETag ``before`` (None: absence).

    At most one may win, and the object that stands there afterwards must be its. Deletes count as one: the second
    changes nothing.
    """
    winners = {contender.write_id for contender in contenders if isinstance(contender.answer, Applied)}
    if len(winners) > 1:
        return Observation(
            probe, f"{len(winners)} of {len(contenders)} concurrent writes with one condition were accepted"
        )
    lost = {each.write_id for each in contenders if lost_race(each.answer)}
    standing = after.write_id if isinstance(after, Found) else None
    unchanged = before == (after.etag if isinstance(after, Found) else None)
    if winners and standing not in winners:
        return Observation(probe, "another write than the one that was accepted took effect")
    if not winners and not unchanged and standing not in lost:
        return Observation(probe, "a write that was refused took effect")
    return Observation(probe, None)


def of_state(probe: Probe, state: HeadAnswer, write_id: str | None) -> Observation:
    """Judge the object at a key after refused writes: still that of the last accepted one (None: no object)."""
    standing = state.write_id if isinstance(state, Found) else None
    undisturbed = isinstance(state, Missing) if write_id is None else standing == write_id
    return Observation(probe, None if undisturbed else "a write that was refused took effect")


def is_inconclusive(answer: WriteAnswer) -> bool:
    """Return whether the answer to a write may have to do with the moment alone."""
    return isinstance(answer, Unknown | NotSent) or (isinstance(answer, Rejected) and answer.status == 429)


def of_spelling(
    probe: Probe, plain: str, standing: WriteAnswer, others: Mapping[str, WriteAnswer], *, undisturbed: bool
) -> Iterable[Observation]:
    """Judge writes of the key ``plain`` and then of ``others``, each on the condition that there is no object.

    If the store keeps the keys apart, all of them take effect, and the object at the plain key is ``undisturbed``
    afterwards. The keys are templates, as of ``Spelling``.
    """
    shown = ascii(plain.format(""))
    if not isinstance(standing, Applied):
        yield Observation(probe, f"cannot be tried: {shown} is answered with {_described(standing)}")
        return
    for template, answer in others.items():
        key = ascii(template.format(""))
        match answer:
            case Applied():
                yield Observation(probe, None if undisturbed else f"a write of {key} was one of {shown}")
            case NotApplied(status, _) if status != 404:
                yield Observation(probe, f"{key} is taken for {shown}")
            case _:
                yield Observation(probe, f"cannot be told: {key} is answered with {_described(answer)}")


def _described(answer: WriteAnswer) -> str:
    match answer:
        case Rejected(status, code, _) | NotApplied(status, code):
            return f"{status} {code}"
        case Unknown(reason) | NotSent(reason):
            return reason
        case Applied():
            return "success"


def of_reading(state: HeadAnswer, etag: str | None, write_id: str) -> Observation:
    """Judge the answer to HEAD right after an accepted write."""
    if not isinstance(state, Found):
        return Observation(Probe.READ_BACK, "an object that was just written is not there")
    if state.etag != etag:
        return Observation(Probe.READ_BACK, "HEAD shows another ETag than the write was answered with")
    return Observation(Probe.READ_BACK, None if state.write_id == write_id else "the metadata of a write is not kept")


def conclude(seen: Iterable[Observation], etags: Etags) -> Profile:
    """Return the profile that follows from all observations. A condition that was never seen to work does not count."""
    observations = [*seen, *_of_etags(etags)]
    findings = tuple(_finding(probe, [each for each in observations if each.probe is probe], etags) for probe in Probe)
    passed = {Probe(finding.name) for finding in findings if finding.passed}
    return Profile(
        put_conditions=passed >= PUT_CONDITIONS,
        complete_conditions=passed >= COMPLETE_CONDITIONS,
        delete_condition=passed >= DELETE_CONDITION,
        reads_back=Probe.READ_BACK in passed,
        unique_etags=etags.unique,
        plain_etags_predicted=etags.plain_right,
        multipart_etags_predicted=etags.multipart_right,
        multipart_changes_etag=bool(etags.multipart) and not set(etags.multipart) & set(etags.plain),
        quoted_conditions=Probe.QUOTED_CONDITIONS in passed,
        confused=frozenset(KEYS) - passed,
        findings=findings,
    )


def _of_etags(etags: Etags) -> Iterable[Observation]:
    if etags.plain:
        wrong = (
            None if etags.unique or etags.plain_right else "the same bytes have the same ETag, which is not their MD5"
        )
        yield Observation(Probe.ETAG_OF_PUT, wrong)
    if etags.multipart:
        right = etags.unique or (etags.multipart_right and not set(etags.multipart) & set(etags.plain))
        yield Observation(
            Probe.ETAG_OF_MULTIPART, None if right else "an upload in one part has an ETag that cannot be told"
        )


def _finding(probe: Probe, seen: Collection[Observation], etags: Etags) -> ProbeFinding:
    complaint = next((each.complaint for each in seen if each.complaint is not None), None)
    if not seen:
        complaint = "not tried, because a probe before it failed"
    if complaint is not None:
        return ProbeFinding(probe, passed=False, detail=complaint, consequence=_CONSEQUENCES[probe])
    return ProbeFinding(probe, passed=True, detail=_passed_detail(probe, etags))


def _passed_detail(probe: Probe, etags: Etags) -> str:
    if probe in (Probe.ETAG_OF_PUT, Probe.ETAG_OF_MULTIPART):
        return "unique for each write: no ETag ever comes back" if etags.unique else "a hash of the bytes, as predicted"
    if probe in (Probe.READ_BACK, Probe.QUOTED_CONDITIONS):
        return "as expected"
    return "kept apart" if probe in KEYS else "honoured"
