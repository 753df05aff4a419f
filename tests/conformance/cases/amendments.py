"""The changes to an object that do not write it: tags, access control lists, locks."""

from typing import Any

from tests.conformance.observer import Observer, case, each


def _tags(**tags: str) -> dict[str, Any]:
    return {"TagSet": [{"Key": key, "Value": value} for key, value in tags.items()]}


@case
def tags_put_read_and_deleted(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.get_object_tagging(Key="k")
    s3.put_object_tagging(Key="k", Tagging=_tags(a="1", b="two words", c=""))
    s3.get_object_tagging(Key="k")
    s3.head_object(Key="k")
    s3.get_object(Key="k")
    s3.put_object_tagging(Key="k", Tagging=_tags(z="9"))
    s3.get_object_tagging(Key="k")
    s3.delete_object_tagging(Key="k")
    s3.get_object_tagging(Key="k")


@each(
    {
        "most": {f"k{number}": str(number) for number in range(10)},
        "too-many": {f"k{number}": str(number) for number in range(11)},
        "longest": {"k" * 128: "v" * 256},
        "key-too-long": {"k" * 129: "v"},
        "value-too-long": {"k": "v" * 257},
        "unicode": {"ключ": "значение"},
        "none": {},
    }
)
def a_tag_set(s3: Observer, tags: dict[str, str]) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.put_object_tagging(Key="k", Tagging=_tags(**tags))
    s3.get_object_tagging(Key="k")


@case
def the_same_tag_twice(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.put_object_tagging(Key="k", Tagging={"TagSet": [{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}]})


@each({"malformed": b"<Tagging>", "empty": b"", "other": b"<Delete></Delete>"})
def tags_that_are_no_document(s3: Observer, body: bytes) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.request("PUT", "/{bucket}/k?tagging", {}, body)
    s3.get_object_tagging(Key="k")


@case
def tags_of_nothing(s3: Observer) -> None:
    s3.get_object_tagging(Key="none")
    s3.put_object_tagging(Key="none", Tagging=_tags(a="1"))
    s3.delete_object_tagging(Key="none")


@case
def tags_go_with_the_object(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x", Tagging="a=1")
    s3.get_object_tagging(Key="k")
    s3.put_object(Key="k", Body=b"y")
    s3.get_object_tagging(Key="k")


@each(
    {name: name for name in ("private", "public-read", "authenticated-read", "bucket-owner-full-control", "nonsense")}
)
def a_canned_acl(s3: Observer, acl: str) -> None:
    s3.put_object(Key="public/k", Body=b"x", ACL=acl)
    s3.get_object_acl(Key="public/k")
    s3.put_object(Key="public/later", Body=b"x")
    s3.put_object_acl(Key="public/later", ACL=acl)
    s3.get_object_acl(Key="public/later")


@case
def an_acl_by_document(s3: Observer) -> None:
    s3.put_object(Key="public/k", Body=b"x")
    found = s3.get_object_acl(Key="public/k")
    if found:
        everyone = {"Type": "Group", "URI": "http://acs.amazonaws.com/groups/global/AllUsers"}
        grants = [*found["Grants"], {"Grantee": everyone, "Permission": "READ"}]
        s3.put_object_acl(Key="public/k", AccessControlPolicy={"Owner": found["Owner"], "Grants": grants})
        s3.get_object_acl(Key="public/k")


@case
def an_acl_of_nothing(s3: Observer) -> None:
    s3.get_object_acl(Key="none")
    s3.put_object_acl(Key="none", ACL="private")


@case
def locks_without_object_lock(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.get_object_retention(Key="k")
    s3.get_object_legal_hold(Key="k")
    s3.put_object_legal_hold(Key="k", LegalHold={"Status": "ON"})
    s3.put_object_retention(Key="k", Retention={"Mode": "GOVERNANCE", "RetainUntilDate": "2099-01-01T00:00:00Z"})


@case
def restored_though_not_archived(s3: Observer) -> None:
    s3.put_object(Key="k", Body=b"x")
    s3.restore_object(Key="k", RestoreRequest={"Days": 1})
