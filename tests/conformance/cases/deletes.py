"""Many deletes in one request."""

import base64
import hashlib

from tests.conformance.observer import Observer, case, each


def _document(keys: int, quiet: str = "") -> bytes:
    objects = "".join(f"<Object><Key>k{number}</Key></Object>" for number in range(keys))
    return f"<Delete>{quiet}{objects}</Delete>".encode()


@each({"loud": False, "quiet": True})
def several(s3: Observer, quiet: bool) -> None:  # noqa: FBT001 - the row of the table
    for key in ("a", "b", "c d", "é"):
        s3.put_object(Key=key, Body=b"x")
    objects = [{"Key": key} for key in ("a", "c d", "é", "none")]
    s3.delete_objects(Delete={"Objects": objects, "Quiet": quiet})
    s3.list_objects_v2()


@case
def the_same_key_twice(s3: Observer) -> None:
    s3.put_object(Key="a", Body=b"x")
    s3.delete_objects(Delete={"Objects": [{"Key": "a"}, {"Key": "a"}]})


@case
def odd_keys(s3: Observer) -> None:
    keys = ("a//b", "../c", "a&b<c>", " space ", "a%2Fb")
    for key in keys:
        s3.put_object(Key=key, Body=b"x")
    s3.delete_objects(Delete={"Objects": [{"Key": key} for key in keys]})
    s3.list_objects_v2()


@each({"most": 1000, "too-many": 1001})
def many(s3: Observer, count: int) -> None:
    s3.put_object(Key="k0", Body=b"x")
    answer = s3.delete_objects(Delete={"Objects": [{"Key": f"k{number}"} for number in range(count)], "Quiet": True})
    s3.note(errors=answer.get("Errors", []))
    s3.head_object(Key="k0")


@each(
    {
        "malformed": b"<Delete><Object>",
        "empty": b"",
        "no-objects": b"<Delete></Delete>",
        "other": b"<Tagging></Tagging>",
        "no-key": b"<Delete><Object></Object></Delete>",
        "quiet": _document(1, "<Quiet>true</Quiet>"),
        "plain": _document(2),
    }
)
def a_document(s3: Observer, body: bytes) -> None:
    s3.put_object(Key="k0", Body=b"x")
    s3.request("POST", "/{bucket}?delete", _with_md5(body), body)
    s3.head_object(Key="k0")


@case
def without_a_checksum(s3: Observer) -> None:
    s3.put_object(Key="k0", Body=b"x")
    s3.request("POST", "/{bucket}?delete", {}, _document(1))
    s3.head_object(Key="k0")


def _with_md5(body: bytes) -> dict[str, str]:
    return {"Content-MD5": base64.b64encode(hashlib.md5(body).digest()).decode()}
