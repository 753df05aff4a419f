"""The behaviour of a bucket with conditions, ETags and keys, and what follows for fenced writes to it.

A store that ignores a condition answers exactly like one that honours it, until it loses data. So nothing is taken on
trust: ``probe.py`` tries, and the functions here judge what it saw.

To S3 a key is its bytes. A store that keeps objects as files may find one file under several keys. Then a fenced key
could be written under another name. The probe tries each kind of spelling. The gateway writes no key of a kind that the
bucket does not keep apart.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

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


class Probe(StrEnum):
    PUT_IF_NONE_MATCH = "put-if-none-match"
    PUT_IF_MATCH = "put-if-match"
    PUT_RACE_IF_NONE_MATCH = "put-race-if-none-match"
    PUT_RACE_IF_MATCH = "put-race-if-match"
    READ_BACK = "read-back"
    ETAG_OF_PUT = "etag-of-put"
    ETAG_OF_MULTIPART = "etag-of-multipart"
    COMPLETE_IF_NONE_MATCH = "complete-if-none-match"
    COMPLETE_IF_MATCH = "complete-if-match"
    COMPLETE_RACE = "complete-race"
    DELETE_IF_MATCH = "delete-if-match"
    DELETE_RACE = "delete-race"
    QUOTED_CONDITIONS = "quoted-conditions"
    KEYS_ODD_SEGMENTS = "keys-odd-segments"
    KEYS_TRAILING_SLASH = "keys-trailing-slash"
    KEYS_MARKER = "keys-marker"
    KEYS_CASE = "keys-case"
    KEYS_UNICODE = "keys-unicode"
    KEYS_WINDOWS = "keys-windows"
    UPLOADS_TRAILING_SLASH = "uploads-trailing-slash"


PUT_CONDITIONS = frozenset(
    {Probe.PUT_IF_NONE_MATCH, Probe.PUT_IF_MATCH, Probe.PUT_RACE_IF_NONE_MATCH, Probe.PUT_RACE_IF_MATCH}
)
COMPLETE_CONDITIONS = frozenset({Probe.COMPLETE_IF_NONE_MATCH, Probe.COMPLETE_IF_MATCH, Probe.COMPLETE_RACE})
DELETE_CONDITION = frozenset({Probe.DELETE_IF_MATCH, Probe.DELETE_RACE})
REQUIRED = PUT_CONDITIONS | {Probe.READ_BACK, Probe.ETAG_OF_PUT}

KEYS = {
    Probe.KEYS_ODD_SEGMENTS: "Keys with a slash in front, or with an empty, . or .. segment, are refused.",
    Probe.KEYS_TRAILING_SLASH: "Keys that end in a slash are refused.",
    Probe.KEYS_MARKER: "Keys that end in __XLDIR__, in whatever case, are refused.",
    Probe.KEYS_CASE: "Keys with capital letters, or with characters outside ASCII, are refused.",
    Probe.KEYS_UNICODE: "Keys with characters outside ASCII are refused.",
    Probe.KEYS_WINDOWS: "Keys with a backslash, or with a segment that ends in a dot or a space, are refused.",
}
"""Spellings that stores may take for one another, and what follows where they are not kept apart."""


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """One probe and its verdict. ``consequence`` says what follows where it failed; it is empty where it passed."""

    name: str
    passed: bool
    detail: str
    consequence: str = ""


@dataclass(frozen=True, slots=True)
class Profile:
    """The behaviour of a bucket, as the probes in ``findings`` judge it."""

    put_conditions: bool
    """PutObject honours If-None-Match: * and If-Match, one by one and under concurrency."""
    complete_conditions: bool
    """CompleteMultipartUpload does. Otherwise a fenced write must not use it with a condition."""
    delete_condition: bool
    """DeleteObject honours If-Match; otherwise a delete leaves a tombstone."""
    reads_back: bool
    """HEAD shows the ETag and the metadata of the last write."""
    unique_etags: bool
    """The same bytes written twice have different ETags."""
    plain_etags_predicted: bool
    """The ETag of a PutObject is the MD5 of its bytes."""
    multipart_etags_predicted: bool
    """The ETag of an upload of one part is the MD5 of that part's MD5, and "-1"."""
    multipart_changes_etag: bool
    """The same bytes in one part have another ETag than in a PutObject."""
    quoted_conditions: bool = True
    """If-Match is understood in quotation marks, as RFC 9110 writes it. Otherwise without only."""
    marker_uploads: bool = False
    """Keys that end in a slash take multipart uploads, as other keys do."""
    confused: frozenset[Probe] = frozenset(KEYS)
    """Spellings of keys that were not seen to be kept apart: no key of these is written."""
    findings: tuple[ProbeFinding, ...] = ()

    @property
    def writable(self) -> bool:
        """Whether fenced writes are safe here: conditions hold, and no forbidden ETag comes back by surprise."""
        return self.put_conditions and self.reads_back and (self.unique_etags or self.plain_etags_predicted)

    @property
    def reason(self) -> str | None:
        """Why fenced writes are refused: the failing probe and what it saw. None where they are not."""
        if self.writable:
            return None
        failed = (finding for finding in self.findings if not finding.passed and finding.name in REQUIRED)
        return next((f"{finding.name}: {finding.detail}" for finding in failed), "the bucket failed its probe")

    def without(self, distrusted: Collection[str]) -> "Profile":
        """Return the profile without the conditions that an operator does not rely on: ``complete``, ``delete``."""
        return replace(
            self,
            complete_conditions=self.complete_conditions and "complete" not in distrusted,
            delete_condition=self.delete_condition and "delete" not in distrusted,
        )

    def at(self, key: str) -> "Profile":
        """Return the behaviour at a key. A key that takes no multipart uploads has one form, so it is not bumped."""
        if self.marker_uploads or not _ends_with_slash(key):
            return self
        return replace(self, complete_conditions=False, multipart_changes_etag=False)

    @property
    def can_bump(self) -> bool:
        """Whether the same bytes can be rewritten, conditionally, in another form that has another ETag."""
        other_form = self.unique_etags or (self.multipart_changes_etag and self.multipart_etags_predicted)
        return self.complete_conditions and other_form


_MARKER = "__XLDIR__"


@dataclass(frozen=True, slots=True)
class Spelling:
    """One kind of spelling. ``plain`` and ``others`` are keys to try it with, ``{}`` the folder they are in.

    ``includes`` says of a key whether it is of this kind. It errs on the side of yes.
    """

    includes: Callable[[str], bool]
    plain: str
    others: tuple[str, ...]


def _odd_segments(key: str) -> bool:
    segments = key.removesuffix("/").split("/")
    return any(segment in ("", ".", "..") for segment in segments)


def _ends_with_slash(key: str) -> bool:
    return key.endswith("/")


def _names_a_marker(key: str) -> bool:
    return key.upper().endswith(_MARKER)


def _has_case(key: str) -> bool:
    """Return whether a key has characters of two cases. Outside ASCII, no two file systems agree on the counterpart."""
    return not key.isascii() or key != key.lower()


def _is_not_ascii(key: str) -> bool:
    return not key.isascii()


def _odd_on_windows(key: str) -> bool:
    return "\\" in key or any(segment.endswith((".", " ")) for segment in key.split("/"))


SPELLINGS: Mapping[Probe, Spelling] = {
    Probe.KEYS_ODD_SEGMENTS: Spelling(_odd_segments, "{}a/key", ("/{}a/key", "{}a//key", "{}a/./key", "{}a/b/../key")),
    Probe.KEYS_TRAILING_SLASH: Spelling(_ends_with_slash, "{}a/key", ("{}a/key/",)),
    # MinIO keeps the object d/ in a directory of this name.
    Probe.KEYS_MARKER: Spelling(_names_a_marker, f"{{}}b/key{_MARKER}", ("{}b/key/",)),
    Probe.KEYS_CASE: Spelling(_has_case, "{}a/key", ("{}a/KEY",)),
    Probe.KEYS_UNICODE: Spelling(_is_not_ascii, "{}a/\u00e9", ("{}a/e\u0301",)),
    Probe.KEYS_WINDOWS: Spelling(_odd_on_windows, "{}a/key", ("{}a\\key", "{}a/key.", "{}a/key ")),
}


def mistakable(key: str, confused: Collection[Probe]) -> Probe | None:
    """Return the first kind of spelling of the key that its bucket does not keep apart; None where there is none."""
    return next((kind for kind, spelling in SPELLINGS.items() if kind in confused and spelling.includes(key)), None)


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
        Probe.UPLOADS_TRAILING_SLASH: f"Keys that end in a slash go by PutObject only. {_NO_OTHER_FORM}",
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
    """A write and the store's answer to it, often one of several with the same condition. A delete has no write-id."""

    write_id: str | None
    answer: WriteAnswer

    @property
    def etag(self) -> str | None:
        """The ETag that the write has left; None where it was not accepted."""
        return self.answer.etag if isinstance(self.answer, Applied) else None


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


def judge_trial(probe: Probe, condition: str, answer: WriteAnswer, *, holds: bool) -> Observation:
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


def judge_race(probe: Probe, before: str | None, contenders: Sequence[Contender], after: HeadAnswer) -> Observation:
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


def judge_state(probe: Probe, state: HeadAnswer, write_id: str | None) -> Observation:
    """Judge the object at a key after refused writes: still that of the last accepted one (None: no object)."""
    standing = state.write_id if isinstance(state, Found) else None
    undisturbed = isinstance(state, Missing) if write_id is None else standing == write_id
    return Observation(probe, None if undisturbed else "a write that was refused took effect")


def is_inconclusive(answer: WriteAnswer) -> bool:
    """Return whether the answer to a write may have to do with the moment alone."""
    return isinstance(answer, Unknown | NotSent) or (isinstance(answer, Rejected) and answer.status == 429)


def judge_spelling(
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


def judge_reading(state: HeadAnswer, etag: str | None, write_id: str | None) -> Observation:
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
        marker_uploads=Probe.UPLOADS_TRAILING_SLASH in passed,
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
    if probe in (Probe.READ_BACK, Probe.QUOTED_CONDITIONS, Probe.UPLOADS_TRAILING_SLASH):
        return "as expected"
    return "kept apart" if probe in KEYS else "honoured"
