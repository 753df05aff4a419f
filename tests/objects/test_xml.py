"""Errors reach S3 clients in S3's form, and the store's errors are read without trusting it."""

from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import StoreError, TokenStale, Unavailable
from gateway.objects.s3 import xml
from gateway.objects.s3.xml import ErrorDocument


def test_a_refusal_has_advice_and_facts() -> None:
    error = TokenStale(
        "Token 41 is stale.",
        facts={
            "fencing_token": "41",
            "fence": "42",
            "raised-by": "w<2>",
            "enforced": True,
            "holder": None,
            "Code": "x",
        },
    )
    root = ET.fromstring(xml.render(error, path="/b/a&b", request_id="r1"))
    fields = {child.tag: child.text for child in root}
    assert root.tag == "Error"
    assert fields == {
        "Code": "StaleFencingToken",
        "Message": f"Token 41 is stale. {error.advice}",
        "Resource": "/b/a&b",
        "RequestId": "r1",
        "FencingToken": "41",
        "Fence": "42",
        "RaisedBy": "w<2>",
        "Enforced": "true",
    }


@given(st.text())
def test_no_text_breaks_the_document(text: str) -> None:
    root = ET.fromstring(xml.render(StoreError("Code", 400, text), path=text, request_id="r"))
    assert root.findtext("Code") == "Code"
    assert len(root) == 4


def test_control_characters_are_made_harmless() -> None:
    root = ET.fromstring(xml.render(StoreError("C", 400, "a\0\x1b\ud800\uffffb\r"), path="/", request_id="r"))
    assert root.findtext("Message") == "a\ufffd\ufffd\ufffd\ufffdb"


def test_an_answer_has_its_headers_and_on_head_no_body() -> None:
    error = Unavailable("The store cannot be reached.")
    status, headers, body = xml.answer(error, method="GET", path="/b/k", request_id="r1")
    assert (status, dict(headers)[b"content-length"]) == (503, str(len(body)).encode())
    assert dict(headers)[b"retry-after"] == b"1"
    assert dict(headers)[b"content-type"] == b"application/xml"
    status, headers, body = xml.answer(error, method="HEAD", path="/b/k", request_id="r1")
    assert (status, body) == (503, b"")
    assert dict(headers) == {b"x-amz-request-id": b"r1", b"retry-after": b"1"}


ERROR = b"<Error><Code>NoSuchKey</Code><Message>It &lt;is&gt; gone.</Message><HostId>h</HostId></Error>"
BOMB = b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><Error><Code>&b;</Code></Error>'
OUTSIDE = b'<!DOCTYPE e [<!ENTITY x SYSTEM "file:///etc/passwd">]><Error><Code>&x;</Code></Error>'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (ERROR, ErrorDocument("NoSuchKey", "It <is> gone.")),
        (b'<?xml version="1.0" encoding="UTF-8"?>\n' + ERROR, ErrorDocument("NoSuchKey", "It <is> gone.")),
        (b"   \n\n " + ERROR, ErrorDocument("NoSuchKey", "It <is> gone.")),
        (
            ERROR.replace(b"<Error>", b'<Error xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'),
            ErrorDocument("NoSuchKey", "It <is> gone."),
        ),
        (b"<Error/>", ErrorDocument("", "")),
        (b"<CompleteMultipartUploadResult/>", None),
        (b"<html>busy</html>", None),
        (b"<Error><Code>", None),
        (b"", None),
        (b"busy", None),
        (b"\xff\xfe", None),
        (BOMB, None),
        (OUTSIDE, None),
    ],
)
def test_errors_of_the_store_are_read(body: bytes, expected: ErrorDocument | None) -> None:
    assert xml.read_error(body) == expected


def test_reading_one_field() -> None:
    body = b'<R xmlns="n"><UploadId> u1 </UploadId></R>'
    assert xml.read_field(body, "R", "UploadId") == "u1"
    assert xml.read_field(body, "R", "Other") is None
    assert xml.read_field(body, "S", "UploadId") is None
    assert xml.read_field(b"", "R", "UploadId") is None
