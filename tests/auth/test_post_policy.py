"""A form is accepted only if its signer allowed it."""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth.post_policy import verify
from gateway.errors import StoreError
from tests.auth.test_sigv4 import ID, SECRET, secret_of

NOW = datetime(2015, 12, 29, 12, tzinfo=UTC)
CREDENTIAL = f"{ID}/20151229/us-east-1/s3/aws4_request"
DENIED, INVALID, ARGUMENT = ("AccessDenied", 403), ("InvalidPolicyDocument", 400), ("InvalidArgument", 400)

FORM = {
    "key": "user/user1/photo.jpg",
    "x-amz-algorithm": "AWS4-HMAC-SHA256",
    "x-amz-credential": CREDENTIAL,
    "x-amz-date": "20151229T000000Z",
}
CONDITIONS: list[Any] = [
    {"bucket": "bucket"},
    ["starts-with", "$key", "user/user1/"],
    {"x-amz-algorithm": "AWS4-HMAC-SHA256"},
    {"x-amz-credential": CREDENTIAL},
    {"x-amz-date": "20151229T000000Z"},
]


def sealed(text: str, form: Mapping[str, str] = FORM, bucket: str = "bucket") -> dict[str, str]:
    """The form with this policy text in base64, signed with the example account's key."""
    key = f"AWS4{SECRET}".encode()
    for step in ("20151229", "us-east-1", "s3", "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return {"bucket": bucket, **form, "policy": text, "x-amz-signature": signature}


def encoded(document: object) -> str:
    return base64.b64encode(json.dumps(document).encode()).decode()


def policy(conditions: Any, **more: Any) -> str:
    return encoded({"expiration": "2015-12-30T12:00:00.000Z", "conditions": conditions, **more})


def signed(*conditions: Any, **fields: str) -> dict[str, str]:
    """A form that is as it should be, with more conditions, and more or other fields ("_" for "-")."""
    named = {name.replace("_", "-"): value for name, value in fields.items()}
    return sealed(policy([*CONDITIONS, *conditions]), FORM | named)


def without(form: Mapping[str, str], name: str) -> dict[str, str]:
    return {field: value for field, value in form.items() if field != name}


def refusal(form: Mapping[str, str], now: datetime = NOW) -> tuple[str, int]:
    with pytest.raises(StoreError) as caught:
        verify(form, secret_of, now)
    assert SECRET not in caught.value.message
    return caught.value.s3_code, caught.value.status


# Conditions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        ({"acl": "private"}, "private", True),
        ({"ACL": "private"}, "private", True),
        ({"acl": "private"}, "Private", False),
        ({"acl": "private"}, "private ", False),
        ({"acl": ""}, "private", False),
        (["eq", "$acl", "private"], "private", True),
        (["EQ", "$Acl", "private"], "private", True),
        (["eq", "$acl", "priv"], "private", False),
        (["starts-with", "$acl", "priv"], "private", True),
        (["StArTs-WiTh", "$acl", ""], "private", True),
        (["starts-with", "$acl", "private2"], "private", False),
        (["starts-with", "$acl", "rivate"], "private", False),
        *((["starts-with", "$acl", "priv"], f"{space}private", False) for space in (" ", "\t", "\xa0", "\x1c")),
        (["starts-with", "$acl", "priv "], "priv ate", True),
    ],
)
def test_a_form_is_accepted_only_if_its_condition_holds(condition: Any, value: str, holds: bool) -> None:  # noqa: FBT001
    form = signed(condition, acl=value)
    if holds:
        verify(form, secret_of, NOW)
    else:
        with pytest.raises(
            StoreError, match=r'^Invalid according to Policy: Policy Condition failed: \["\S+", "\$acl", "'
        ):
            verify(form, secret_of, NOW)


def test_every_condition_must_hold_and_a_field_that_is_not_there_is_empty() -> None:
    assert refusal(signed({"acl": "private"}, {"acl": "public-read"}, acl="private")) == DENIED
    for condition in ({"acl": "private"}, ["eq", "$acl", "private"], ["starts-with", "$acl", "p"]):
        assert refusal(signed(condition)) == DENIED
    verify(signed(["starts-with", "$acl", ""]), secret_of, NOW)


@pytest.mark.parametrize(
    ("value", "holds"),
    [
        ("text/plain", True),
        ("text/plain, text/html", True),
        ("text/plain,text/html", True),
        ("text/plain, image/png", False),
        ("text/plain,", False),
    ],
)
def test_each_media_type_of_a_list_needs_the_prefix(value: str, holds: bool) -> None:  # noqa: FBT001
    form = signed(["starts-with", "$Content-Type", "text/"], content_type=value)
    if holds:
        verify(form, secret_of, NOW)
    else:
        assert refusal(form) == DENIED
    assert refusal(signed(["eq", "$Content-Type", "text/plain"], content_type="text/plain,text/plain")) == DENIED


def test_every_field_must_be_covered_but_a_few() -> None:
    for name in ("acl", "Content-Type", "tagging", "Fencing-Token", "x-amz-meta-fencing-token", "x-amz-acl", "submit"):
        with pytest.raises(StoreError, match=f"Extra input fields: {name.lower()}$"):
            verify(signed() | {name: "1"}, secret_of, NOW)
    for name in ("file", "x-ignore-this", "X-Ignore-"):
        verify(signed() | {name: "1"}, secret_of, NOW)


@pytest.mark.parametrize("missing", ["bucket", "$key", "x-amz-algorithm", "x-amz-credential", "x-amz-date"])
def test_what_the_policy_must_name(missing: str) -> None:
    conditions = [each for each in CONDITIONS if missing not in each]
    assert len(conditions) == len(CONDITIONS) - 1
    assert refusal(sealed(policy(conditions))) == DENIED


def test_a_form_for_another_bucket_or_for_none_is_refused() -> None:
    assert refusal(signed() | {"bucket": "other"}) == DENIED
    form = sealed(policy([["starts-with", "$bucket", ""], *CONDITIONS[1:]]))
    verify(form, secret_of, NOW)
    assert refusal(without(form, "bucket")) == DENIED


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [([(0, 0)], (0, 0)), ([(1, 10)], (1, 10)), ([(1, 10), (5, 20)], (5, 10)), ([(5, 20), (1, 10)], (5, 10))],
)
def test_the_length_of_the_file(ranges: list[tuple[int, int]], expected: tuple[int, int]) -> None:
    found = verify(signed(*(["Content-Length-Range", *bounds] for bounds in ranges)), secret_of, NOW)
    assert (found.min_length, found.max_length) == expected


# The document --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "condition",
    [
        *({}, {"acl": "a", "key": "b"}, {"acl": 1}, {"acl": None}, {"acl": ["a"]}, [], "acl", 7, None),
        *(["eq", "$acl"], ["eq", "$acl", 1], ["eq", "$acl", "a", "b"], ["ends-with", "$acl", "a"]),
        *(["content-length", 1, 5], ["content-length-range"], ["content-length-range", 1]),
        *(
            ["content-length-range", least, most]
            for least, most in ((-1, 5), (5, 1), ("1", "5"), (1.0, 5.0), (False, True))
        ),
    ],
)
def test_an_unknown_condition_is_refused(condition: Any) -> None:
    assert refusal(signed(condition)) == INVALID


@pytest.mark.parametrize("operator", ["eq", "starts-with"])
def test_a_condition_on_no_field_never_holds(operator: str) -> None:
    assert refusal(signed([operator, "acl", "private"], acl="private")) == DENIED


@pytest.mark.parametrize(
    "text",
    [
        *("", "?", "e30", "{}", encoded({}), encoded([]), encoded("policy")),
        encoded({"conditions": CONDITIONS}),
        encoded({"EXPIRATION": "2015-12-30T12:00:00Z", "conditions": CONDITIONS}),
        encoded({"expiration": "2015-12-30T12:00:00Z"}),
        policy(CONDITIONS, extra="field"),
        encoded({"expiration": "2015-12-30T12:00:00Z", "CONDITIONS": CONDITIONS}),
        policy({}),
        *(
            policy(CONDITIONS, expiration=moment)
            for moment in (
                *(1451476800, "2015-12-30", "2015-12-30T12:00:00", "2015-12-30T12:00:00+24:00"),
                *("2015-13-30T12:00:00Z", "2015-02-30T12:00:00Z"),
            )
        ),
        *(
            base64.b64encode(content).decode()
            for content in (
                b"\xff\xfe",
                b"[" * 100_000,
                b'{"expiration": "2015-12-30T12:00:00Z", "conditions": [{"a": "b"}',
                b'{"expiration": "2015-12-30T12:00:00Z", "conditions": [' + b"[" * 900 + b"]" * 900 + b"]}",
            )
        ),
    ],
)
def test_an_unreadable_policy_is_refused(text: str) -> None:
    assert refusal(sealed(text)) == INVALID


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting '{' but found End-of-Input"),
        ("?", "invalid Base64 encoding."),
        ("e30", "invalid Base64 encoding."),
        (encoded([]), "Invalid JSON."),
        (policy(CONDITIONS, extra="field"), 'Unexpected: "extra"'),
        (policy(CONDITIONS, **{"\ud800": ""}), 'Unexpected: "\\ud800"'),
        (encoded({"conditions": CONDITIONS}), "Policy missing expiration."),
        (encoded({"expiration": "2015-12-30T12:00:00Z"}), "Policy missing conditions."),
        (policy(CONDITIONS, expiration=7), "Invalid JSON."),
        (policy(CONDITIONS, expiration="today"), "Invalid 'expiration' value: 'today'"),
        (policy({}), "Invalid 'conditions' value: must be a List."),
        (policy([7]), "Invalid condition test: must be a List or Object."),
        (
            policy([{"acl": "a", "key": "b"}]),
            "Invalid Simple-Condition: Simple-Conditions must have exactly one property",
        ),
        (policy([{"acl": 1}]), "Invalid Simple-Condition: value must be a string."),
        (policy([[]]), "Invalid Condition: missing operation identifier."),
        (policy([["\ud800", "$acl", "a"]]), "Invalid Condition: unknown operation '\\ud800'."),
        (policy([["eq", "$acl"]]), "Invalid eq: wrong number of arguments. It is condition 1."),
        (policy([*CONDITIONS, ["eq", 1, "a"]]), "Invalid JSON. It is condition 6."),
    ],
)
def test_what_is_wrong_with_a_policy_is_said_in_the_words_of_s3(text: str, words: str) -> None:
    with pytest.raises(StoreError) as caught:
        verify(sealed(text), secret_of, NOW)
    message = caught.value.message.encode().decode()
    assert words in message


@pytest.mark.parametrize(("seconds", "code"), [(-1, None), (0, DENIED), (1, DENIED)])
def test_a_policy_expires(seconds: int, code: tuple[str, int] | None) -> None:
    now = datetime(2015, 12, 30, 12, tzinfo=UTC) + timedelta(seconds=seconds)
    if code is None:
        verify(signed(), secret_of, now)
    else:
        with pytest.raises(StoreError, match=r"^Invalid according to Policy: Policy expired\.$"):
            verify(signed(), secret_of, now)


# The signature -------------------------------------------------------------------------------------------------------


def test_a_form_without_a_policy_is_anonymous_and_a_signed_one_has_all_of_these() -> None:
    credentials = ("policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature")
    assert refusal({name: value for name, value in signed().items() if name not in credentials}) == DENIED
    for name in ("policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"):
        with pytest.raises(StoreError, match=f"must contain a field named '{name}'") as caught:
            verify(without(signed(), name), secret_of, NOW)
        assert caught.value.facts == {"argument_name": name}


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("x-amz-signature", "0" * 64, ("SignatureDoesNotMatch", 403)),
        ("x-amz-signature", "", ("SignatureDoesNotMatch", 403)),
        ("x-amz-signature", "é", ("SignatureDoesNotMatch", 403)),
        ("policy", "e30=", ("SignatureDoesNotMatch", 403)),
        ("x-amz-algorithm", "AWS4-HMAC-SHA1", ARGUMENT),
        ("x-amz-algorithm", "AWS4-ECDSA-P256-SHA256", ("NotImplemented", 501)),
        ("x-amz-credential", CREDENTIAL.replace(ID, "AKIANOBODY"), ("InvalidAccessKeyId", 403)),
        ("x-amz-credential", CREDENTIAL.replace("us-east-1", "us-east-2"), ("SignatureDoesNotMatch", 403)),
        ("x-amz-credential", CREDENTIAL.replace("/s3/", "/sts/"), ARGUMENT),
        ("x-amz-credential", ID, ARGUMENT),
        ("x-amz-date", "20151230T000000Z", ARGUMENT),
        ("x-amz-date", "2015-12-29", ARGUMENT),
        ("x-amz-date", "20151229T0000Z", ARGUMENT),
        ("X-Amz-Date", "20151229T000000Z", ARGUMENT),
        ("AWSAccessKeyId", ID, ("InvalidRequest", 400)),
        ("signature", "c2ln", ("InvalidRequest", 400)),
    ],
)
def test_an_invalid_signature_proves_no_caller(field: str, value: str, expected: tuple[str, int]) -> None:
    assert refusal(signed() | {field: value}) == expected


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=6), st.text(max_size=40))
def test_nothing_but_what_was_signed_gets_in(fields: dict[str, str], text: str) -> None:
    """Any form gets an error in S3's vocabulary, or is accepted as its policy allows."""
    for form in (fields | {"policy": text}, signed() | fields, sealed(text, FORM | fields)):
        try:
            verify(form, secret_of, NOW)
        except StoreError as error:
            assert 400 <= error.status < 500 or error.s3_code == "NotImplemented"  # noqa: PT017 - either may happen
        else:
            added = {name.lower() for name in fields} - {name.lower() for name in FORM}
            assert all(name in ("file", "policy") or name.startswith("x-ignore-") for name in added)
