"""Fenced credentials work for their scope until they expire, and cannot be changed into others."""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from gateway.auth import temporary_keys
from gateway.auth.callers import Callers
from gateway.auth.grants import EVERYTHING, Action, Grant, Rights
from gateway.auth.principal import FencedScope, Principal
from gateway.auth.sigv4 import RequestHead, verify
from gateway.auth.temporary_keys import TemporaryKeys
from gateway.config.access import CallerKeys, GrantRule
from gateway.errors import ResourceMalformed, StoreError
from gateway.fencing.token import Token
from gateway.objects.resource_rules import KeyRule

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
GRANT = FencedScope("job/42", Token(2, 34), "host 7", NOW + HOUR)
INVALID = ("InvalidToken", 400)


def caller(name: str, secret: str = "batch-secret", **more: Any) -> CallerKeys:
    return CallerKeys(name=name, access_key_id=f"AK{name}", secret_access_key=SecretStr(secret), **more)


CALLERS = (caller("batch"), caller("other", "other-secret"), CallerKeys(name="k", api_key=SecretStr("k")))
EVERYTHING_GRANTED = GrantRule(callers=("batch",), actions=tuple(Action), everything=True)
KEYS = Callers(CALLERS, [EVERYTHING_GRANTED])
BATCH = Principal("batch")
UNCONFINED = Rights((Grant(frozenset(Action), 1, everything=True),))
CONFINED = Rights((Grant(frozenset({Action.READ, Action.WRITE}), 1, everything=True),))


@pytest.fixture
def issued() -> TemporaryKeys:
    return KEYS.issue(BATCH, GRANT)


def refusal(access_key_id: str, session_token: str | None, keys: Callers = KEYS) -> tuple[str, int]:
    with pytest.raises(StoreError) as caught:
        keys.secret_of(access_key_id, session_token)
    return caught.value.s3_code, caught.value.status


def test_they_are_bound_to_their_grant_and_administer_nothing(issued: TemporaryKeys) -> None:
    found = KEYS.secret_of(issued.access_key_id, issued.session_token)
    assert found == (Principal("batch", CONFINED, GRANT), issued.secret_access_key)
    assert KEYS.secret_of("AKbatch", None) == (Principal("batch", UNCONFINED), "batch-secret")


@pytest.mark.parametrize("read", [(), ("s3/in/**",), (EVERYTHING,), ("s3/in/*", "job/1")])
def test_they_say_what_they_read(read: tuple[str, ...]) -> None:
    grant = replace(GRANT, read=read)
    issued = KEYS.issue(BATCH, grant)
    found = KEYS.secret_of(issued.access_key_id, issued.session_token)
    assert found is not None
    assert found[0].scope == grant
    assert grant.reads_everything == (EVERYTHING in read)


def test_they_have_the_form_that_clients_expect(issued: TemporaryKeys) -> None:
    assert issued.access_key_id.startswith("FENCE")
    assert issued.access_key_id.isalnum()
    assert 16 <= len(issued.access_key_id) <= 128
    assert issued.session_token.startswith("fc1.")
    assert set(issued.session_token) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")


def test_they_do_not_show_secrets(issued: TemporaryKeys) -> None:
    shown = repr(issued) + base64.urlsafe_b64decode(issued.session_token.split(".")[1] + "==").decode()
    assert issued.secret_access_key not in shown
    assert issued.session_token not in shown
    assert "batch-secret" not in shown


@pytest.mark.parametrize("form", [S3SigV4Auth, S3SigV4QueryAuth])
def test_any_client_signs_with_them_until_they_expire(form: type[S3SigV4Auth]) -> None:
    today = datetime.now(UTC).replace(microsecond=0)
    grant = FencedScope("s3/bucket/**", Token(0, 7), None, today + HOUR)
    issued = KEYS.issue(BATCH, grant)
    request = AWSRequest("PUT", "http://gateway/bucket/key")
    signer = BotoCredentials(issued.access_key_id, issued.secret_access_key, issued.session_token)
    form(signer, "s3", "us-east-1").add_auth(request)
    path, _, query = str(request.url).removeprefix("http://gateway").partition("?")
    headers = [(name.lower().encode(), str(value).encode()) for name, value in request.headers.items()]
    head = RequestHead("PUT", path.encode(), query.encode(), [(b"host", b"gateway"), *headers])
    assert verify(head, KEYS.secret_of, today).principal == Principal("batch", CONFINED, grant)
    for late in (today + HOUR, today + 2 * HOUR):
        with pytest.raises(StoreError) as caught:
            verify(head, KEYS.secret_of, late)
        assert (caught.value.s3_code, caught.value.status) == ("ExpiredToken", 400)


def test_a_new_secret_of_the_caller_ends_them_and_so_does_its_removal(issued: TemporaryKeys) -> None:
    rotated, gone = Callers([caller("batch", "new-secret")]), Callers([caller("other")])
    assert refusal(issued.access_key_id, issued.session_token, rotated) == INVALID
    assert gone.secret_of(issued.access_key_id, issued.session_token) is None


def test_key_and_session_token_belong_together(issued: TemporaryKeys) -> None:
    other = KEYS.issue(BATCH, GRANT)
    assert refusal(issued.access_key_id, other.session_token) == INVALID
    assert refusal(issued.access_key_id, None) == INVALID
    assert refusal(issued.access_key_id, "fencing-token=34") == INVALID
    assert refusal("AKbatch", issued.session_token) == INVALID
    assert KEYS.secret_of("AKIANOBODY", issued.session_token) is None
    assert KEYS.secret_of("AKbatch", "fencing-token=34") == (Principal("batch", UNCONFINED), "batch-secret")


def test_no_claim_can_be_changed(issued: TemporaryKeys) -> None:
    version, claims, proof = issued.session_token.split(".")
    content = json.loads(base64.urlsafe_b64decode(claims + "=="))
    for name, value in (
        ("resource", "**"),
        ("token", "2.35"),
        ("holder", None),
        ("expires", content["expires"] + 1),
        ("caller", "other"),
        ("admin", True),
        ("read", [EVERYTHING]),
    ):
        forged = encoded({**content, name: value})
        assert refusal(issued.access_key_id, f"{version}.{forged}.{proof}") == INVALID, name


@given(st.data())
def test_no_character_can_be_changed(data: st.DataObject) -> None:
    issued = temporary_keys.issue("batch", "batch-secret", "0123456789ABCDEF", GRANT.expires or NOW, GRANT)
    place = data.draw(st.integers(0, len(issued.session_token) - 1))
    other = data.draw(st.characters().filter(lambda character: character != issued.session_token[place]))
    changed = issued.session_token[:place] + other + issued.session_token[place + 1 :]
    try:
        found = KEYS.secret_of(issued.access_key_id, changed)
    except StoreError as error:
        assert (error.s3_code, error.status) == INVALID  # noqa: PT017 - a caller nobody knows is the other answer
    else:
        assert found is None


def encoded(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


GOOD = {"caller": "batch", "resource": "job/42", "token": "34", "holder": None, "expires": 1769860800}


@pytest.mark.parametrize(
    "token",
    [
        "fc1.",
        "fc1..",
        "fc1.a.b",
        "fc1.e30.b",
        f"fc1.{encoded(GOOD)}",
        f"fc1.{encoded(GOOD)}.",
        f"fc1.{encoded(GOOD)}.é",
        f"fc1.{encoded(GOOD)}.a.b",
        f"fc1.{encoded(GOOD)}==.a",
        f"fc1.{encoded({**GOOD, 'expires': 'soon'})}.a",
        f"fc1.{encoded({**GOOD, 'expires': 1e300})}.a",
        f"fc1.{encoded({**GOOD, 'expires': float('nan')})}.a",
        f"fc1.{encoded({**GOOD, 'expires': None})}.a",
        f"fc1.{encoded({**GOOD, 'resource': 'é'})}.a",
        f"fc1.{encoded({**GOOD, 'resource': 5})}.a",
        f"fc1.{encoded({**GOOD, 'token': 34})}.a",
        f"fc1.{encoded({**GOOD, 'token': '034'})}.a",
        f"fc1.{encoded([GOOD])}.a",
        f"fc1.{encoded('fc1')}.a",
        f"fc1.{encoded(None)}.a",
        "fc1." + base64.b64encode(b"[" * 4000).decode() + ".a",
        "fc1." + "a" * 100_000 + ".a",
        "fc1.\xff\xfe.a",
    ],
)
def test_a_session_token_that_was_never_issued_is_refused(token: str) -> None:
    assert refusal("FENCE0123456789", token) == INVALID


def test_an_id_that_the_operator_chose_wins_over_the_prefix() -> None:
    configured = CallerKeys(name="a", access_key_id="FENCEOFMINE", secret_access_key=SecretStr("s"))
    assert Callers([configured]).secret_of("FENCEOFMINE", None) == (Principal("a"), "s")


TOKEN = Token(0, 34)


@pytest.mark.parametrize(
    ("pattern", "covered", "foreign"),
    [
        ("job/42", ["job/42"], ["job/4", "job/421", "job/42/a", "job", "job/42/", "xjob/42", "Job/42", ""]),
        ("job/*", ["job/42", "job/a%2Fb", "job/"], ["job", "job/42/a", "jobs/42", "a/job/42"]),
        ("job/*/log", ["job/42/log", "job//log"], ["job/log", "job/42/43/log", "job/42/log/a", "job/42"]),
        ("job/**", ["job/42", "job/42/a", "job/", "job//"], ["job", "jobs/42", "a/job/42"]),
        ("s3/*/a/**", ["s3/b/a/c", "s3/b/a/c/d"], ["s3/b/a", "s3/b/c/a/d", "s3/a/c"]),
        ("**", ["job", "job/42", "s3/b/k"], []),
        ("*", ["job"], ["job/42"]),
        ("job.42/a+b(c)", ["job.42/a+b(c)"], ["jobx42/a+b(c)", "job.42/aab(c)"]),
        ("s3/b/%C3%A9", ["s3/b/%C3%A9"], ["s3/b/é"]),
    ],
)
def test_a_pattern_covers_its_resources(pattern: str, covered: list[str], foreign: list[str]) -> None:
    grant = FencedScope(pattern, TOKEN)
    assert grant.plain == ("*" not in pattern)
    for resource in covered:
        assert grant.covers(resource), resource
    for resource in foreign:
        assert not grant.covers(resource), resource


@pytest.mark.parametrize(
    "pattern",
    ["", "job/4*", "*job", "job/***", "**/job", "job/**/log", "a/b**", "é", "a b", "%c3", "%2A", "x" * 513, "a,b"],
)
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ResourceMalformed):
        FencedScope(pattern, TOKEN)


SEGMENTS = st.lists(st.sampled_from(["a", "b", "", "a.b"]), min_size=1, max_size=4)


@given(SEGMENTS, st.sampled_from(["", "/**"]), SEGMENTS, st.sets(st.integers(0, 3)))
def test_a_wildcard_means_what_it_means_in_the_rules_of_objects(
    segments: list[str], end: str, given_segments: list[str], starred: set[int]
) -> None:
    pattern = "/".join("*" if place in starred else segment for place, segment in enumerate(segments)) + end
    resource = "/".join(given_segments)
    rule = KeyRule.compile(f"bucket/{pattern}")
    assert FencedScope(f"bucket/{pattern}", TOKEN).covers(f"bucket/{resource}") == (
        rule.resource("bucket", resource) is not None
    )
