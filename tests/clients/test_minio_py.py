"""minio-py: the token goes in with the credentials, since it sends no header of its user's with most calls."""

import io
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from minio import Minio
from minio.commonconfig import ComposeSource, CopySource
from minio.deleteobjects import DeleteObject
from minio.error import S3Error

from tests.clients.gateway import BUCKET, REGION, Lock, Login, send

pytestmark = pytest.mark.thorough

PART = 5 * 1024**2


@pytest.fixture
def minio(lock: Lock, login: Login) -> Minio:
    return Minio(
        urlsplit(lock.gateway.origin).netloc,
        login.access_key_id,
        login.secret_access_key,
        login.session_token,
        secure=False,
        region=REGION,
    )


def put(minio: Minio, key: str, body: bytes) -> object:
    return minio.put_object(BUCKET, key, io.BytesIO(body), len(body))


def test_objects(minio: Minio, lock: Lock, large: Path, tmp_path: Path) -> None:
    put(minio, lock.key("a b+c.txt"), b"hello")
    answer = minio.get_object(BUCKET, lock.key("a b+c.txt"), offset=1, length=3)
    assert answer.read() == b"ell"
    answer.close()
    answer.release_conn()
    minio.fput_object(BUCKET, lock.key("large"), str(large), part_size=PART)
    assert lock.body("large") == large.read_bytes()
    with large.open("rb") as file:
        minio.put_object(BUCKET, lock.key("stream"), file, -1, part_size=PART)
    assert lock.body("stream") == large.read_bytes()
    minio.copy_object(BUCKET, lock.key("copy"), CopySource(BUCKET, lock.key("a b+c.txt")))
    minio.compose_object(
        BUCKET, lock.key("composed"), [ComposeSource(BUCKET, lock.key(name)) for name in ("large", "copy")]
    )
    assert lock.body("composed") == large.read_bytes() + b"hello"
    minio.fget_object(BUCKET, lock.key("large"), str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == large.read_bytes()
    assert minio.stat_object(BUCKET, lock.key("copy")).size == 5
    names = [one.object_name for one in minio.list_objects(BUCKET, lock.prefix, recursive=True)]
    assert names == [lock.key(name) for name in ("a b+c.txt", "composed", "copy", "large", "stream")]
    minio.remove_object(BUCKET, lock.key("copy"))
    assert list(minio.remove_objects(BUCKET, [DeleteObject(name) for name in names if name])) == []
    assert lock.objects() == {}


def test_presigned_urls(minio: Minio, lock: Lock) -> None:
    put_url = minio.presigned_put_object(BUCKET, lock.key("k"))
    assert send("PUT", put_url, content=b"hello").status_code == 200
    assert send("GET", minio.presigned_get_object(BUCKET, lock.key("k"))).content == b"hello"
    with lock.overtaken():
        assert send("PUT", put_url, content=b"zombie").status_code == 412


FORMS: dict[str, Callable[[Minio, Lock, Path], object]] = {
    "put_object": lambda minio, lock, _: put(minio, lock.key("there"), b"zombie"),
    "put_object of unknown length": lambda minio, lock, _: minio.put_object(
        BUCKET, lock.key("there"), io.BytesIO(b"zombie"), -1, part_size=PART
    ),
    "fput_object in parts": lambda minio, lock, large: minio.fput_object(
        BUCKET, lock.key("there"), str(large), part_size=PART
    ),
    "copy_object": lambda minio, lock, _: minio.copy_object(
        BUCKET, lock.key("there"), CopySource(BUCKET, lock.key("source"))
    ),
    "compose_object": lambda minio, lock, _: minio.compose_object(
        BUCKET, lock.key("there"), [ComposeSource(BUCKET, lock.key("source"))]
    ),
    "remove_object": lambda minio, lock, _: minio.remove_object(BUCKET, lock.key("there")),
}


@pytest.mark.parametrize("form", FORMS)
def test_after_a_takeover_every_write_is_refused(minio: Minio, lock: Lock, large: Path, form: str) -> None:
    lock.seed(there=b"precious", source=b"source")
    with lock.overtaken():
        with pytest.raises(S3Error) as refused:
            FORMS[form](minio, lock, large)
        assert refused.value.code == "StaleFencingToken"
        assert len(lock.rejections()) == 1, "a refusal is final: nothing is tried again"


def test_after_a_takeover_each_key_of_many_is_refused(minio: Minio, lock: Lock) -> None:
    lock.seed(there=b"precious", source=b"source")
    with lock.overtaken(refusals=2):
        errors = list(minio.remove_objects(BUCKET, [DeleteObject(lock.key(name)) for name in ("there", "source")]))
        assert [error.code for error in errors] == ["StaleFencingToken"] * 2
