"""The AWS SDK for JavaScript on Node: the client, Upload of lib-storage, and the presigner."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.commands import Shell
from tests.clients.gateway import Lock, Login, send
from tests.clients.node import Objects, objects

pytestmark = pytest.mark.installed


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    with objects(Shell(tmp_path_factory.mktemp("node"), {})) as one:
        yield one


def test_objects(node: Objects, lock: Lock, login: Login, large: Path) -> None:
    done = node.do("everything", lock, login, large)
    assert done.refused == [], done.error
    assert lock.objects() == {}
    assert lock.rejections() == []


def test_presigned_urls(node: Objects, lock: Lock, login: Login, large: Path) -> None:
    put, get, delete = node.do("presign", lock, login, large).urls
    assert send("PUT", put, content=b"hello").status_code == 200
    assert send("GET", get).content == b"hello"
    with lock.overtaken(refusals=2):
        assert send("PUT", put, content=b"zombie").status_code == 412
        assert send("DELETE", delete).status_code == 412


@pytest.mark.parametrize(
    "deed", ["put", "putOnCondition", "uploadInParts", "uploadSmall", "copy", "delete", "deleteMany"]
)
def test_after_a_takeover_every_write_is_refused(
    node: Objects, lock: Lock, login: Login, large: Path, deed: str
) -> None:
    lock.seed(there=b"precious", source=b"source")
    many = 2 if deed == "deleteMany" else 1
    with lock.overtaken(refusals=many):
        done = node.do(deed, lock, login, large)
        assert done.refused == ["StaleFencingToken"] * many, done.error
        assert len(lock.rejections()) == many, "a refusal is final: nothing is tried again"
