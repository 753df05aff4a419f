"""The request that the fields of a form stand for."""

from typing import Any

import pytest

from gateway.errors import GatewayError, StoreError
from gateway.fencing.token import Token
from gateway.objects.s3.operations import Operation
from gateway.objects.writes.form import FormRequest, named_fields, read_form, redirect_address


def read(filename: str = "", /, **fields: str) -> FormRequest:
    given = {"key": "k", **{name.replace("_", "-"): value for name, value in fields.items()}}
    return read_form(named_fields(given.items(), filename, "bucket"))


def refusal(**fields: str) -> tuple[int, str]:
    with pytest.raises(GatewayError) as caught:
        read(**fields)
    return caught.value.status, caught.value.s3_code


def test_a_form_describes_its_object() -> None:
    form = read(
        "photo 1.png",
        key="user/${filename}",
        acl="public-read",
        Content_Type="image/png",
        Cache_Control="max-age=5",
        x_amz_meta_Title="from ${filename}",
        x_amz_meta_fencing_token="34",
        x_amz_storage_class="STANDARD_IA",
        tagging="<Tagging><TagSet><Tag><Key>a b</Key><Value>1&amp;2</Value></Tag></TagSet></Tagging>",
        x_amz_date="20260102T030405Z",
        x_amz_security_token="fc1.anything",
        policy="p",
        x_amz_signature="s",
        x_ignore_this="y",
        submit="Upload",
    )
    assert form.request.operation is Operation.POST_OBJECT
    assert (form.request.bucket, form.request.key) == ("bucket", "user/photo 1.png")
    assert form.request.raw_key == "user/photo%201.png"
    assert sorted(form.request.headers) == [
        ("cache-control", "max-age=5"),
        ("content-type", "image/png"),
        ("x-amz-acl", "public-read"),
        ("x-amz-meta-title", "from photo 1.png"),
        ("x-amz-storage-class", "STANDARD_IA"),
        ("x-amz-tagging", "a%20b=1%262"),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"x-amz-meta-fencing-token": "34", "x-amz-meta-fencing-holder": "ann"},
        {"fencing-token": "34", "fencing-holder": "ann"},
        {"x-amz-security-token": "fencing-token=34&fencing-holder=ann"},
    ],
)
def test_the_writer(fields: dict[str, str]) -> None:
    writer = read(**fields).request.fencing
    assert (writer.token, writer.holder) == (Token.parse("34"), "ann")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (204, None)),
        ({"success_action_status": "200"}, (200, None)),
        ({"success_action_status": "201"}, (201, None)),
        ({"success_action_status": "302"}, (204, None)),
        ({"redirect": "http://a/b"}, (204, "http://a/b?bucket=bucket&key=k%20%C3%A4&etag=%22e%22")),
        ({"success_action_redirect": "https://a/?b=c#d"}, (204, "https://a/?b=c&bucket=bucket&key=k%20%C3%A4&etag=%22e%22#d")),
        ({"success_action_redirect": "http://a/ä\r\nSet-Cookie: x"}, (204, "http://a/%C3%A4Set-Cookie:%20x?bucket=bucket&key=k%20%C3%A4&etag=%22e%22")),
        ({"success_action_redirect": "javascript:alert(1)"}, (204, None)),
        ({"success_action_redirect": "http://[broken"}, (204, None)),
        ({"success_action_redirect": "/here"}, (204, None)),
    ],
)  # fmt: skip
def test_a_form_names_the_status_or_the_redirect_of_its_answer(fields: dict[str, str], expected: Any) -> None:
    given = [("key", "k ä"), *fields.items()]
    form = read_form(named_fields(given, "", "bucket"))
    assert (form.status, redirect_address(form, "e")) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"key": ""}, (400, "UserKeyMustBeSpecified")),
        ({"key": "a\0"}, (400, "UserKeyMustBeSpecified")),
        ({"key": "k" * 1025}, (400, "KeyTooLongError")),
        ({"content_type": "text/plain\r\nx-amz-acl: public-read"}, (400, "InvalidArgument")),
        ({"x_amz_meta_a b": "c"}, (400, "InvalidArgument")),
        ({"acl": "private", "x_amz_acl": "private"}, (400, "InvalidArgument")),
        ({"tagging": "a=b"}, (400, "MalformedXML")),
        ({"tagging": "<Tagging><TagSet><Tag><Value>1</Value></Tag></TagSet></Tagging>"}, (400, "MalformedXML")),
        ({"x_amz_checksum_crc32": "nonsense"}, (400, "InvalidRequest")),
        ({"x_amz_checksum_algorithm": "CRC32"}, (400, "InvalidRequest")),
        ({"x_amz_content_sha256": "0" * 64}, (501, "NotImplemented")),
        ({"x_amz_trailer": "x-amz-checksum-crc32"}, (501, "NotImplemented")),
        ({"x_amz_copy_source": "/other/secret"}, (501, "NotImplemented")),
        ({"x_amz_something_new": "x"}, (501, "NotImplemented")),
        ({"if_match": '"e"'}, (501, "NotImplemented")),
        ({"if_none_match": "*"}, (501, "NotImplemented")),
        ({"fencing_token": "-1"}, (400, "FencingTokenMalformed")),
        ({"fencing_token": "1", "x_fencing_token": "2"}, (400, "FencingTokenMalformed")),
    ],
)
def test_what_is_refused(fields: dict[str, str], expected: tuple[int, str]) -> None:
    assert refusal(**fields) == expected


@pytest.mark.parametrize(
    "fields", [[("key", "a"), ("Key", "b")], [("key", "a"), ("bucket", "other")], [("acl", "private")]]
)
def test_contradictory_fields_are_refused(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(StoreError) as caught:
        read_form(named_fields(fields, "", "bucket"))
    assert caught.value.s3_code == "InvalidArgument"
