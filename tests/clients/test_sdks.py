"""The AWS SDKs for Java and JavaScript, libraries for Python whose core is another one, and S3A with its jobs' commits.

S3A is the file system of Hadoop and Spark.
"""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.clients.commands import Shell
from tests.clients.gateway import ACCESS_KEY, BUCKET, NEWER, SECRET_KEY, TOKEN, Lock, Login, send
from tests.clients.sdks import (
    S3A,
    Done,
    JavaObjects,
    NodeObjects,
    PythonObjects,
    java_objects,
    node_objects,
    python_objects,
)

pytestmark = pytest.mark.installed


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeObjects]:
    with node_objects(Shell(tmp_path_factory.mktemp("node"), {})) as one:
        yield one


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonObjects]:
    with python_objects(tmp_path_factory.mktemp("python")) as one:
        yield one


@pytest.fixture
def sdk(request: pytest.FixtureRequest, sdk_of: str) -> Any:
    """Does a deed by the SDK of this language, or this library for Python. Its program is started once."""
    match sdk_of:
        case "java":
            return request.getfixturevalue("java").sdk
        case "javascript":
            return request.getfixturevalue("node").do
        case library:
            return partial(request.getfixturevalue("python").do, library)


LEFT: dict[str, set[str]] = {
    "java": set(),
    "javascript": set(),
    "obstore": set(),
    "smart_open": {"a b+c/ü.txt", "packed.gz", "small", "stream"},
    "polars": {"one.parquet", "large.parquet", "two.csv", "three.ndjson", "days/day=a/", "days/day=b/"},
}
"""The names that each leaves, because it deletes nothing. Names that a library makes up are their directories."""


@pytest.mark.parametrize("sdk_of", LEFT)
def test_objects(sdk: Any, sdk_of: str, lock: Lock, login: Login, large: Path) -> None:
    done: Done = sdk("everything", lock, login, large)
    assert done.error == ""
    assert {re.sub("(?<=day=./).*", "", name) for name in lock.objects()} == LEFT[sdk_of]
    assert lock.rejections() == []


@pytest.mark.parametrize("sdk_of", ["java", "javascript"])
def test_presigned_urls(sdk: Any, sdk_of: str, lock: Lock, login: Login, large: Path) -> None:
    put, get, delete = sdk("presign", lock, login, large).found
    assert send("PUT", put, content=b"hello").status_code == 200
    assert send("GET", get).content == b"hello"
    with lock.overtaken(refusals=2):
        assert send("PUT", put, content=b"zombie").status_code == 412
        assert send("DELETE", delete).status_code == 412


COMMON = ("put", "putOnCondition", "uploadInParts", "copy", "delete", "deleteMany")
DEEDS = {
    "java": COMMON,
    "javascript": (*COMMON, "uploadSmall"),
    "obstore": (*COMMON, "stream", "copyOnCondition", "rename"),
    "smart_open": ("put", "uploadInParts", "uploadSmall"),
    "polars": ("put", "uploadInParts", "sink"),
}


@pytest.mark.parametrize(("sdk_of", "deed"), [(name, deed) for name, deeds in DEEDS.items() for deed in deeds])
def test_after_a_takeover_every_write_is_refused(
    sdk: Any, sdk_of: str, lock: Lock, login: Login, large: Path, deed: str
) -> None:
    lock.seed(there=b"precious", source=b"source")
    many = 2 if deed == "deleteMany" else 1
    with lock.overtaken(refusals=many):
        done: Done = sdk(deed, lock, login, large)
        # obstore raises the first error of many.
        assert done.found == ["StaleFencingToken"] * (1 if sdk_of == "obstore" else many), done.error
        tries = 2 if sdk_of == "polars" else 1  # Polars tries any failed write once more.
        assert len(lock.rejections()) == many * tries, "a refusal is final: nothing is tried again"


def test_the_token_in_a_header_of_java(java: JavaObjects, lock: Lock, large: Path) -> None:
    plain = Login(ACCESS_KEY, SECRET_KEY, "")
    assert java.sdk("put", lock, plain, large, header=TOKEN).error == ""
    assert lock.body("there") == b"zombie"
    with lock.overtaken():
        assert java.sdk("put", lock, plain, large, header=TOKEN).found == ["StaleFencingToken"]


# S3A

FACTORY = {"mapreduce.outputcommitter.factory.scheme.s3a": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory"}
# Neither job removes what belongs to another one. So nothing but the fence stops the first.
UPLOADS_STAY = {"fs.s3a.committer.abort.pending.uploads": "false"}
FILES_STAY = {"mapreduce.fileoutputcommitter.cleanup.skipped": "true"}
COMMITTERS = {
    "magic": {**FACTORY, **UPLOADS_STAY, "fs.s3a.committer.name": "magic"},
    "directory": {**FACTORY, **UPLOADS_STAY, "fs.s3a.committer.name": "directory"},
    "file, version 1": {**FILES_STAY, "mapreduce.fileoutputcommitter.algorithm.version": "1"},
    "file, version 2": {**FILES_STAY, "mapreduce.fileoutputcommitter.algorithm.version": "2"},
}
SECOND = {"mapreduce.job.application.attempt.id": "1"}


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaObjects]:
    with java_objects(Shell(tmp_path_factory.mktemp("another"), {})) as one:
        yield one


def test_files_by_s3a(java: JavaObjects, lock: Lock, login: Login, large: Path) -> None:
    assert java.s3a("everything", lock, login, large).error == ""
    # S3A leaves a marker where a directory has become empty.
    assert set(lock.objects()) <= {""}
    assert lock.rejections() == []


def test_the_settings_of_the_page(java: JavaObjects, lock: Lock, large: Path) -> None:
    page = (ROOT / "docs/clients.md").read_text()
    (block,) = re.findall(r"^```properties\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    settings = dict(re.findall(r"(\S+) +([^(\s]\S*)$", block, re.MULTILINE))
    assert settings.pop("fs.s3a.endpoint") == "http://127.0.0.1:8080"
    assert settings == S3A
    assert java.s3a("create", lock, lock.fenced(), large).error == ""


def test_the_settings_of_spark(java: JavaObjects, lock: Lock, large: Path) -> None:
    text = (ROOT / "docs/guides/lake.md").read_text()
    settings = dict(re.findall(r"^spark\.hadoop\.(\S+) +(\S+)$", text, re.MULTILINE))
    assert settings.pop("fs.s3a.endpoint") == "http://127.0.0.1:8080"
    assert len(settings) == 4
    assert java.s3a("create", lock, lock.fenced(), large, **settings).error == ""


@pytest.mark.parametrize("deed", ["create", "createInParts", "createOnce", "mkdirs", "rename", "delete"])
def test_after_a_takeover_s3a_is_refused(java: JavaObjects, lock: Lock, login: Login, large: Path, deed: str) -> None:
    lock.seed(there=b"precious")
    with lock.overtaken():
        assert "overtaken" in java.s3a(deed, lock, login, large).error


def test_after_a_takeover_a_directory_is_not_removed(java: JavaObjects, lock: Lock, login: Login, large: Path) -> None:
    lock.seed(**{"d/one": b"1", "d/other": b"2"})
    with lock.overtaken(refusals=2):
        assert "StaleFencingToken" in java.s3a("delete", lock, login, large, name="d").error


@pytest.mark.parametrize("committer", COMMITTERS)
def test_a_job_that_was_overtaken_commits_nothing(
    java: JavaObjects, another: JavaObjects, lock: Lock, large: Path, committer: str
) -> None:
    """Its driver is paused when its task has committed. Another job writes the table. Then the first one goes on."""
    settings, zombie, successor = COMMITTERS[committer], lock.fenced(), lock.fenced(NEWER)
    assert java.job("task", "zombie", lock, zombie, settings).error == ""
    with java.paused():
        lock.take_over()
        for step in ("task", "job"):
            assert another.job(step, "successor", lock, successor, {**settings, **SECOND}).error == ""
        table = lock.objects()
        part = "table/part-0-successor" if committer == "directory" else "table/part-0"
        assert lock.body(part) == b"successor"
    assert "overtaken" in java.job("job", "zombie", lock, zombie, settings).error
    java.job("abort", "zombie", lock, zombie, settings)
    assert lock.objects() == table
    assert {(one["token"], one["reason"]) for one in lock.rejections()} == {("33", "token-stale")}

    # The new holder may clean up, but need not: readers see no part of it.
    for leftover in ("table/_temporary", "table/__magic_job-zombie"):
        assert another.s3a("delete", lock, successor, large, name=leftover).error == ""
    assert another.s3a("abortUploads", lock, successor, large, name="table").error == ""
    s3 = lock.gateway.connect(successor)
    listed = [one["Key"] for one in s3.list_objects_v2(Bucket=BUCKET, Prefix=lock.prefix)["Contents"]]
    assert {key for key in listed if not key.endswith("/")} == {lock.key(part), lock.key("table/_SUCCESS")}
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=BUCKET, Prefix=lock.prefix)
    s3.close()
