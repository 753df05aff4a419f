"""ACLs and policies are read strictly: an ambiguous text is refused, or counts as the wider right."""

import json
import time
from dataclasses import astuple
from typing import Any

import pytest

from gateway.errors import StoreError
from gateway.objects.s3.access_control import (
    AclRight,
    acl_of_document,
    acl_of_headers,
    policy_rights,
)

XSI = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser"'
GRANT = f"<Grant><Grantee {XSI}><ID>me</ID></Grantee><Permission>READ</Permission></Grant>"


def acl(grants: str, before: str = "", after: str = "") -> bytes:
    owner = "<Owner><ID>me</ID></Owner>"
    listed = f"<AccessControlList>{grants}</AccessControlList>"
    return f"{before}<AccessControlPolicy>{owner}{listed}{after}</AccessControlPolicy>".encode()


def test_a_grantee_of_many_spaces_stops_nobody() -> None:
    """Two thousand spaces took a regular expression twenty seconds, and a head has room for sixty thousand."""
    began = time.process_time()
    assert acl_of_headers([("x-amz-grant-read", f'id={" " * 2000}"x')]) == [AclRight(None, writes=False)]
    assert acl_of_headers([("x-amz-grant-read", f"{' ' * 2000}id {' ' * 2000}= me")]) == [AclRight("me", writes=False)]
    assert time.process_time() - began < 1


def test_the_grants_of_a_document() -> None:
    grants = (
        GRANT
        + "<Grant><Grantee><URI>all</URI></Grantee><Permission>READ_ACP</Permission></Grant>"
        + "<Grant><Grantee><ID>me</ID><URI>all</URI></Grantee><Permission>WRITE</Permission></Grant>"
        + "<Grant><Grantee><EmailAddress>a@b</EmailAddress></Grantee><Permission>FULL_CONTROL</Permission></Grant>"
        + "<Grant><Grantee><ID>you</ID></Grantee><Permission> WRITE_ACP </Permission></Grant>"
    )
    assert acl_of_document(acl(grants)) == [
        AclRight("me", writes=False),
        AclRight(None, writes=False),
        AclRight(None, writes=True),
        AclRight(None, writes=True),
        AclRight("you", writes=True),
    ]
    assert acl_of_document(acl("", '<?xml version="1.0" encoding="UTF-8"?>')) == []


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"<Delete/>",
        b"<AccessControlPolicy/>",
        acl(GRANT, after=f"<AccessControlList>{GRANT}</AccessControlList>"),
        acl(GRANT, after="<Grant/>"),
        acl(GRANT, before='<?xml version="1.0" encoding="ISO-8859-1"?>'),
        acl(GRANT, before='<!DOCTYPE a [<!ENTITY w "WRITE">]>'),
        acl(GRANT).decode().encode("utf-16"),
        acl(GRANT) + b"\xff",
        acl(GRANT.replace("READ", "write")),
        acl(GRANT.replace("READ", "<b>READ</b>")),
        acl(GRANT.replace("</Permission>", "</Permission><Permission>WRITE</Permission>")),
        acl(GRANT.replace("<ID>me</ID>", "<ID>me</ID><ID>you</ID>")),
        acl(GRANT.replace("<ID>me</ID>", "<ID>me<b/></ID>")),
        acl(GRANT.replace("<Grantee", "<X/><Grantee")),
        acl("<Grant><Permission>READ</Permission></Grant>"),
        acl("<Other/>"),
        acl(GRANT * 500),
    ],
)
def test_another_document_is_refused(document: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        acl_of_document(document)
    assert (caught.value.s3_code, caught.value.status) == ("MalformedACLError", 400)


@pytest.mark.parametrize(
    ("name", "value", "rights"),
    [
        ("x-amz-acl", "private", []),
        ("x-amz-acl", "public-read", [AclRight(None, writes=False)]),
        ("x-amz-acl", "public-read-write", [AclRight(None, writes=False), AclRight(None, writes=True)]),
        ("x-amz-grant-read", 'id="me"', [AclRight("me", writes=False)]),
        ("x-amz-grant-read-acp", "id=me, id = you", [AclRight("me", writes=False), AclRight("you", writes=False)]),
        ("x-amz-grant-write", 'id="me"', [AclRight("me", writes=True)]),
        ("x-amz-grant-full-control", 'uri="all"', [AclRight(None, writes=True)]),
        ("x-amz-grant-write-acp", 'id="me"x', [AclRight(None, writes=True)]),
        ("x-amz-grant-write-acp", 'id="me" uri="all"', [AclRight(None, writes=True)]),
        ("x-amz-grant-something-new", 'id="me"', [AclRight("me", writes=True)]),
        ("x-amz-tagging", "public-read-write", []),
    ],
)
def test_the_rights_in_headers(name: str, value: str, rights: list[AclRight]) -> None:
    assert acl_of_headers([(name, value)]) == rights


def statement(**members: Any) -> bytes:
    usual = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/*"}
    given = {name: value for name, value in (usual | members).items() if value is not None}
    return json.dumps({"Version": "2012-10-17", "Statement": [given]}).encode()


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, (False, True, (("", True),))),
        ({"Resource": "arn:aws:s3:::b/a/k"}, (False, True, (("a/k", False),))),
        ({"Resource": ["arn:aws:s3:::b/a/*", "arn:aws:s3:::b"]}, (False, True, (("a/", True), None))),
        ({"Resource": "arn:aws:s3:::b/a?c"}, (False, True, (("a", True),))),
        ({"Resource": "arn:aws:s3:::b/${aws:username}/x"}, (False, True, (("", True),))),
        ({"Resource": "arn:aws:s3:::*/x"}, (False, True, (None,))),
        ({"Resource": "*"}, (False, True, (None,))),
        ({"Resource": None}, (False, True, (None,))),
        ({"NotResource": "arn:aws:s3:::b/x"}, (False, True, (None,))),
        ({"Principal": {"AWS": ["1", "arn:aws:iam::2:root"]}}, (False, False, (("", True),))),
        ({"Principal": {"AWS": ["1", "*"]}}, (False, True, (("", True),))),
        ({"Principal": None}, (False, True, (("", True),))),
        ({"Principal": {"AWS": "1"}, "NotPrincipal": {"AWS": "2"}}, (False, True, (("", True),))),
        ({"Action": "S3:getobject*"}, (False, True, (("", True),))),
        ({"Action": ["s3:ListBucket", "s3:G*"]}, (True, True, (("", True),))),
        ({"Action": "*"}, (True, True, (("", True),))),
        ({"Action": None}, (True, True, (("", True),))),
        ({"NotAction": "s3:PutObject"}, (True, True, (("", True),))),
        ({"Effect": "deny", "Action": "s3:PutObject"}, (True, True, (("", True),))),
        ({"Condition": {"IpAddress": {}}, "Action": "s3:PutObject"}, (True, True, (("", True),))),
    ],
    ids=str,
)
def test_the_rights_of_a_statement(members: dict[str, Any], expected: tuple[bool, bool, Any]) -> None:
    assert [astuple(right) for right in policy_rights(statement(**members), "b")] == [expected]


def test_a_denial_gives_no_right_and_case_does_not_hide_one() -> None:
    assert policy_rights(statement(Effect="Deny", Action="s3:*"), "b") == []
    assert policy_rights(statement(Action="s3:PutObject").lower(), "b")[0].writes


@pytest.mark.parametrize(
    "policy",
    [
        b"",
        b"[]",
        b"{nonsense",
        b'{"Statement": "x"}',
        b'{"Statement": [1]}',
        b'{"Statement": [], "statement": [{"Effect": "Allow"}]}',
        b'{"Statement": [], "Other": 1}',
        statement(Other=1),
        statement(Action={"a": 1}),
        statement(Action=[["s3:PutObject"]]),
        statement(Principal={"AWS": {"a": "*"}}),
        statement(Principal=5),
        b"[" * 100_000,
        statement(Sid="x" * 30_000),
    ],
)
def test_another_policy_is_refused(policy: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        policy_rights(policy, "b")
    assert (caught.value.s3_code, caught.value.status) == ("MalformedPolicy", 400)
