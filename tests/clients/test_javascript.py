"""The AWS SDK for JavaScript on Node: the client, Upload of lib-storage, and the presigner."""

from pathlib import Path

import httpx
import pytest

from tests.clients.commands import Ended, Shell, environment, javascript
from tests.clients.gateway import BUCKET, Lock, Login


def run(deed: str, lock: Lock, login: Login, file: Path) -> Ended:
    """Do one of the deeds of objects.mjs."""
    node, directory = javascript()
    arguments = (deed, lock.gateway.origin, BUCKET, lock.prefix, str(file))
    return Shell(file.parent, environment(login)).run(node, str(directory / "objects.mjs"), *arguments)


def test_objects(lock: Lock, login: Login, large: Path) -> None:
    ended = run("everything", lock, login, large)
    assert ended.status == 0, ended.error
    assert lock.objects() == {}
    assert lock.rejections() == []


def test_presigned_urls(lock: Lock, login: Login, large: Path) -> None:
    put, get, delete = run("presign", lock, login, large).out.split()
    assert httpx.put(put, content=b"hello").status_code == 200
    assert httpx.get(get).content == b"hello"
    with lock.overtaken(refusals=2):
        assert [httpx.put(put, content=b"zombie").status_code, httpx.delete(delete).status_code] == [412, 412]


@pytest.mark.parametrize(
    "deed", ["put", "putOnCondition", "uploadInParts", "uploadSmall", "copy", "delete", "deleteMany"]
)
def test_after_a_takeover_every_write_is_refused(lock: Lock, login: Login, large: Path, deed: str) -> None:
    lock.seed(there=b"precious", source=b"source")
    many = 2 if deed == "deleteMany" else 1
    with lock.overtaken(refusals=many):
        ended = run(deed, lock, login, large)
        assert (ended.status, ended.out.split()) == (1, ["StaleFencingToken"] * many), ended.error
        assert len(lock.rejections()) == many, "a refusal is final: nothing is tried again"
