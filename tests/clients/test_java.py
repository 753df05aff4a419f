"""The AWS SDK for Java: the client, the transfer manager, and the presigner."""

from pathlib import Path

import pytest

from tests.clients.gateway import ACCESS_KEY, SECRET_KEY, TOKEN, Lock, Login, send
from tests.clients.java import Objects

pytestmark = pytest.mark.installed


def test_objects(java: Objects, lock: Lock, login: Login, large: Path) -> None:
    assert java.sdk("everything", lock, login, large).error == ""
    assert lock.objects() == {}
    assert lock.rejections() == []


def test_the_token_in_a_header(java: Objects, lock: Lock, large: Path) -> None:
    plain = Login(ACCESS_KEY, SECRET_KEY, "")
    assert java.sdk("put", lock, plain, large, header=TOKEN).error == ""
    assert lock.body("there") == b"zombie"
    with lock.overtaken():
        assert java.sdk("put", lock, plain, large, header=TOKEN).found == ["StaleFencingToken"]


def test_presigned_urls(java: Objects, lock: Lock, login: Login, large: Path) -> None:
    put, get, delete = java.sdk("presign", lock, login, large).found
    assert send("PUT", put, content=b"hello").status_code == 200
    assert send("GET", get).content == b"hello"
    with lock.overtaken(refusals=2):
        assert send("PUT", put, content=b"zombie").status_code == 412
        assert send("DELETE", delete).status_code == 412


@pytest.mark.parametrize("deed", ["put", "putOnCondition", "uploadInParts", "copy", "delete", "deleteMany"])
def test_after_a_takeover_every_write_is_refused(
    java: Objects, lock: Lock, login: Login, large: Path, deed: str
) -> None:
    lock.seed(there=b"precious", source=b"source")
    many = 2 if deed == "deleteMany" else 1
    with lock.overtaken(refusals=many):
        done = java.sdk(deed, lock, login, large)
        assert done.found == ["StaleFencingToken"] * many, done.error
        assert len(lock.rejections()) == many, "a refusal is final: nothing is tried again"
