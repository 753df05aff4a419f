"""Keys in other than plain spelling are known for what they are; no plain key is taken for one of them."""

import pytest

from gateway.objects.probe.bucket_profile import KEYS, SPELLINGS, Probe, mistakable
from gateway.objects.probe.judgement import of_spelling
from gateway.objects.s3.answers import Applied, NotApplied, NotSent, Rejected, Unknown, WriteAnswer

PLAIN = ["a", "a/b", ".a", "..a", "a/.b", "a/...b/c", "a b", "a+b", "%20", "a%2fb", "a:b", "0", "_", "xldir"]


@pytest.mark.parametrize("key", PLAIN)
def test_plain_keys_are_written_whatever_the_store_confuses(key: str) -> None:
    assert mistakable(key, KEYS) is None


ODD = [
    ("/a", Probe.KEYS_ODD_SEGMENTS),
    ("//a", Probe.KEYS_ODD_SEGMENTS),
    ("/", Probe.KEYS_ODD_SEGMENTS),
    ("a//b", Probe.KEYS_ODD_SEGMENTS),
    ("a//", Probe.KEYS_ODD_SEGMENTS),
    (".", Probe.KEYS_ODD_SEGMENTS),
    ("./a", Probe.KEYS_ODD_SEGMENTS),
    ("a/.", Probe.KEYS_ODD_SEGMENTS),
    ("a/./", Probe.KEYS_ODD_SEGMENTS),
    ("..", Probe.KEYS_ODD_SEGMENTS),
    ("a/../b", Probe.KEYS_ODD_SEGMENTS),
    ("a/", Probe.KEYS_TRAILING_SLASH),
    ("a__XLDIR__", Probe.KEYS_MARKER),
    ("a__xlDir__", Probe.KEYS_MARKER),
    ("A", Probe.KEYS_CASE),
    ("\u017f", Probe.KEYS_CASE),
    ("\u00df", Probe.KEYS_UNICODE),
    ("e\u0301", Probe.KEYS_UNICODE),
    ("\ufb01", Probe.KEYS_UNICODE),
    ("a\\b", Probe.KEYS_WINDOWS),
    ("a.", Probe.KEYS_WINDOWS),
    ("a /b", Probe.KEYS_WINDOWS),
]


@pytest.mark.parametrize(("key", "kind"), ODD, ids=[ascii(key) for key, _ in ODD])
def test_another_spelling_is_refused_where_its_kind_is_confused_and_only_there(key: str, kind: Probe) -> None:
    assert mistakable(key, {kind}) is kind
    assert mistakable(key, ()) is None


@pytest.mark.parametrize("kind", KEYS)
def test_each_kind_of_spelling_is_tried_with_keys_of_its_kind(kind: Probe) -> None:
    """If two keys are the same for a store, the gateway refuses at least one of them."""
    spelling = SPELLINGS[kind]
    for other in spelling.others:
        assert spelling.includes(spelling.plain.format("")) or spelling.includes(other.format(""))


APPLIED = Applied("etag")


@pytest.mark.parametrize(
    ("standing", "answer", "undisturbed", "complaint"),
    [
        (APPLIED, APPLIED, True, None),
        (APPLIED, APPLIED, False, "'/a' was one of 'a'"),
        (APPLIED, NotApplied(412, "PreconditionFailed"), True, "'/a' is taken for 'a'"),
        (APPLIED, NotApplied(404, "NoSuchKey"), True, "cannot be told: '/a' is answered with 404 NoSuchKey"),
        (APPLIED, Rejected(400, "InvalidURI", ""), True, "400 InvalidURI"),
        (APPLIED, Unknown("500 InternalError"), True, "500 InternalError"),
        (APPLIED, NotSent("refused"), True, "refused"),
        (Rejected(400, "InvalidURI", ""), APPLIED, False, "cannot be tried: 'a'"),
    ],
    ids=str,
)
def test_only_two_objects_are_two_keys(
    *, standing: WriteAnswer, answer: WriteAnswer, undisturbed: bool, complaint: str | None
) -> None:
    (seen,) = of_spelling(Probe.KEYS_ODD_SEGMENTS, "{}a", standing, {"/{}a": answer}, undisturbed=undisturbed)
    assert (seen.complaint is None) == (complaint is None)
    assert (complaint or "") in (seen.complaint or "")
