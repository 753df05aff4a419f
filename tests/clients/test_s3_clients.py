"""S3 clients with their defaults, libraries in Python and programs: they write, until the token in their keys is stale.

All of them put, read, copy and delete in ways of their own. ``FORMS`` has the writes that only one of them knows.
"""

import io
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import boto3
import pyarrow as pa
import pytest
import s3fs
import urllib3
from aiobotocore.session import AioSession
from boto3.s3.transfer import TransferConfig
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from minio import Minio
from minio.commonconfig import ComposeSource, CopySource
from minio.deleteobjects import DeleteObject
from minio.error import S3Error
from pyarrow import dataset, fs

from tests.clients import formats
from tests.clients.commands import Ended, Forks, Shell, environment, forks, program
from tests.clients.gateway import (
    ACCESS_KEY,
    API_KEY,
    BUCKET,
    NEWER,
    REGION,
    SECRET_KEY,
    TOKEN,
    Gateway,
    Lock,
    Login,
    connect,
    send,
)  # fmt: skip
from tests.clients.lossy import losing
from tests.clients.sdks import node_objects

MEBIBYTE = 1024**2
ALL_IN_PARTS = TransferConfig(multipart_threshold=1)
IN_PARTS = TransferConfig(multipart_threshold=8 * MEBIBYTE, multipart_chunksize=8 * MEBIBYTE)
PART = 5 * MEBIBYTE
AWS = str(Path(sys.executable).with_name("aws"))
LONG_AGO = 3600  # seconds since 1970
REFUSALS = (ClientError, boto3.exceptions.S3UploadFailedError, S3Error, OSError)


class Client(ABC):
    """A client of one holder of one lock. The names of its objects go without the prefix of the lock."""

    exact = True
    """A refusal is final: it tries nothing again."""
    copied = "large"
    """Which of the two files ``test_files`` copies."""

    def __init__(self, lock: Lock, login: Login, home: Path, starting: Forks) -> None:
        self.lock = lock
        self.login = login
        self.home = home
        self.starting = starting
        self.origin = lock.gateway.origin
        self.authority = str(lock.gateway.authority) if lock.gateway.authority else None

    def place(self, name: str) -> str:
        return f"{BUCKET}/{self.lock.key(name)}"

    def close(self) -> None:  # noqa: B027 - most keep no session
        """Give its session back."""

    @abstractmethod
    def put(self, name: str, file: Path) -> object: ...

    @abstractmethod
    def get(self, name: str) -> bytes: ...

    @abstractmethod
    def copy(self, source: str, target: str) -> object: ...

    @abstractmethod
    def delete(self, *names: str) -> object:
        """One, or many with one request."""


class Boto3(Client):
    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.s3 = self.lock.gateway.connect(self.login, retries={"mode": "standard", "max_attempts": 3})

    def at(self, name: str) -> Any:
        return {"Bucket": BUCKET, "Key": self.lock.key(name)}

    def close(self) -> None:
        self.s3.close()

    def put(self, name: str, file: Path) -> None:
        self.s3.upload_file(str(file), BUCKET, self.lock.key(name), Config=IN_PARTS)

    def get(self, name: str) -> bytes:
        return self.s3.get_object(**self.at(name))["Body"].read()

    def copy(self, source: str, target: str) -> None:
        self.s3.copy(self.at(source), BUCKET, self.lock.key(target), Config=IN_PARTS)

    def delete(self, *names: str) -> object:
        if len(names) == 1:
            return self.s3.delete_object(**self.at(names[0]))
        keys: Any = [{"Key": self.lock.key(name)} for name in names]
        answer = self.s3.delete_objects(Bucket=BUCKET, Delete={"Objects": keys})
        if errors := answer.get("Errors"):
            assert [one["Code"] for one in errors] == ["StaleFencingToken"] * len(names)
            raise OSError(errors)
        return answer


@cache
def _session() -> AioSession:
    """One session, because reading the service model is what makes a client slow to build."""
    return AioSession()


class S3fs(Client):
    """Of files that it could not remove with others it says nothing."""

    exact = False

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        self.files = s3fs.S3FileSystem(
            key=self.login.access_key_id, secret=self.login.secret_access_key, token=self.login.session_token,
            endpoint_url=self.origin, client_kwargs={"region_name": REGION, "verify": self.authority},
            use_listings_cache=False, skip_instance_cache=True, session=_session(),
        )  # fmt: skip

    def close(self) -> None:
        s3fs.S3FileSystem.close_session(self.files.loop, self.files.s3)

    def put(self, name: str, file: Path) -> object:
        return self.files.put(str(file), self.place(name))

    def get(self, name: str) -> bytes:
        return bytes(self.files.cat(self.place(name)))

    def copy(self, source: str, target: str) -> object:
        return self.files.copy(self.place(source), self.place(target))

    def delete(self, *names: str) -> object:
        return [self.files.rm_file(self.place(name)) for name in names]

    def write(self, name: str, body: bytes, mode: str = "wb") -> None:
        with self.files.open(self.place(name), mode, block_size=PART) as file:
            file.write(body)


class MinioPy(Client):
    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        keys = (self.login.access_key_id, self.login.secret_access_key, self.login.session_token)
        trusting = urllib3.PoolManager(ca_certs=self.authority) if self.authority else None
        host, secure = urlsplit(self.origin).netloc, self.authority is not None
        self.minio = Minio(host, *keys, secure=secure, region=REGION, http_client=trusting)

    def put(self, name: str, file: Path) -> object:
        return self.minio.fput_object(BUCKET, self.lock.key(name), str(file), part_size=PART)

    def put_stream(self, name: str, body: bytes) -> object:
        """Of unknown length."""
        return self.minio.put_object(BUCKET, self.lock.key(name), io.BytesIO(body), -1, part_size=PART)

    def get(self, name: str) -> bytes:
        answer = self.minio.get_object(BUCKET, self.lock.key(name))
        try:
            return answer.read()
        finally:
            answer.close()
            answer.release_conn()

    def copy(self, source: str, target: str) -> object:
        return self.minio.copy_object(BUCKET, self.lock.key(target), CopySource(BUCKET, self.lock.key(source)))

    def compose(self, target: str, *sources: str) -> object:
        parts = [ComposeSource(BUCKET, self.lock.key(name)) for name in sources]
        return self.minio.compose_object(BUCKET, self.lock.key(target), parts)

    def delete(self, *names: str) -> object:
        if len(names) == 1:
            return self.minio.remove_object(BUCKET, self.lock.key(names[0]))
        errors = list(self.minio.remove_objects(BUCKET, [DeleteObject(self.lock.key(name)) for name in names]))
        if errors:
            assert [error.code for error in errors] == ["StaleFencingToken"] * len(names)
            raise OSError(str(errors[0].code))
        return errors


class PyArrow(Client):
    """The AWS SDK for C++, by which PyIceberg writes its files."""

    exact = False

    def __init__(self, *what: Any) -> None:
        super().__init__(*what)
        keys = {"access_key": self.login.access_key_id, "secret_key": self.login.secret_access_key}
        more = {"session_token": self.login.session_token, "endpoint_override": self.origin, "region": REGION}
        self.files = fs.S3FileSystem(**keys, **more)

    def put(self, name: str, file: Path) -> object:
        with self.files.open_output_stream(self.place(name)) as stream:
            return stream.write(file.read_bytes())

    def write_dataset(self, name: str) -> None:
        """Replace what is there. Without ``create_dir=False`` it makes markers of all parents, which are not ours."""
        table = pa.table({"n": [1, 2, 3], "day": ["a", "a", "b"]})
        dataset.write_dataset(
            table, self.place(name), format="parquet", partitioning=["day"], filesystem=self.files, create_dir=False,
            existing_data_behavior="delete_matching",
        )  # fmt: skip

    def get(self, name: str) -> bytes:
        with self.files.open_input_stream(self.place(name)) as stream:
            return bytes(stream.read())

    def copy(self, source: str, target: str) -> object:
        return self.files.copy_file(self.place(source), self.place(target))

    def delete(self, *names: str) -> object:
        return [self.files.delete_file(self.place(name)) for name in names]


class Program(Client):
    """In arguments ``@`` is the lock's place in the bucket."""

    exact = False
    scheme = "s3://"

    def run(self, *arguments: str) -> str:
        place = f"{self.scheme}{BUCKET}/{self.lock.prefix}"
        ended = self.ended(*(place + one.removeprefix("@") if one.startswith("@") else one for one in arguments))
        if ended.status:
            raise OSError(ended.error)
        return ended.out

    @abstractmethod
    def ended(self, *arguments: str) -> Ended: ...

    def get(self, name: str) -> bytes:
        self.fetch(f"@{name}", self.home / "down")
        return (self.home / "down").read_bytes()

    @abstractmethod
    def fetch(self, source: str, target: Path) -> object: ...


class AwsCli(Program):
    """Its libraries are imported once: it starts as a user's does in ``test_page.py``."""

    def shell(self) -> Shell:
        trusting = {"AWS_CA_BUNDLE": self.authority} if self.authority else {}
        return Shell(self.home, environment(self.login) | trusting)

    def ended(self, *arguments: str) -> Ended:
        return self.starting.run(self.shell(), AWS, "--endpoint-url", self.origin, *arguments)

    def put(self, name: str, file: Path) -> object:
        return self.run("s3", "cp", str(file), f"@{name}")

    def fetch(self, source: str, target: Path) -> object:
        return self.run("s3", "cp", source, str(target))

    def copy(self, source: str, target: str) -> object:
        return self.run("s3", "cp", f"@{source}", f"@{target}")

    def delete(self, *names: str) -> object:
        return self.run("s3", "rm", *((f"@{names[0]}",) if len(names) == 1 else ("--recursive", "@")))


class AwsCliByProcess(AwsCli):
    """With fenced credentials that it gets by itself."""

    def shell(self) -> Shell:
        (self.home / ".aws").mkdir(exist_ok=True)
        command = f"{sys.executable} -m gateway credentials --url {self.origin}"
        (self.home / ".aws/config").write_text(
            f"[default]\ncredential_process = {command} --resource {self.lock.resource} --token {TOKEN}\n"
        )
        return Shell(self.home, {"GATEWAY_API_KEY": API_KEY})


class Rclone(Program):
    """It tries whole commands again, three times, unless told otherwise, and does not sign headers of ``--header``.

    ``no_head``: the store of these tests names the version "null" where there are none, and then does not know it.
    """

    scheme = "gateway:"

    def ended(self, *arguments: str) -> Ended:
        path = program("rclone", "run `make clients`, or apt-get install rclone")
        (self.home / "rclone.conf").write_text(
            f"[gateway]\ntype = s3\nprovider = Other\nendpoint = {self.origin}\nregion = {REGION}\nenv_auth = true\n"
            "upload_cutoff = 8M\nchunk_size = 8M\nno_head = true\n"
        )
        trusting = {"SSL_CERT_FILE": self.authority} if self.authority else {}
        shell = Shell(self.home, environment(self.login) | trusting)
        return shell.run(path, "--config", str(self.home / "rclone.conf"), "--retries", "1", *arguments)

    def put(self, name: str, file: Path) -> object:
        return self.run("copyto", str(file), f"@{name}")

    def fetch(self, source: str, target: Path) -> object:
        return self.run("copyto", source, str(target))

    def copy(self, source: str, target: str) -> object:
        return self.run("copyto", f"@{source}", f"@{target}")

    def delete(self, *names: str) -> object:
        return self.run(*(("deletefile", f"@{names[0]}") if len(names) == 1 else ("delete", "@")))


class S3cmd(Program):
    """Of files that it could not delete with others it says nothing. It reads the ACL of an object before it copies it.

    ``copied``: the store of these tests knows no ACL of an object that went up in parts.
    """

    exact = False
    copied = "a b+c.txt"

    def ended(self, *arguments: str) -> Ended:
        path = Path(formats.python()).with_name("s3cmd")
        host = urlsplit(self.origin).netloc
        (self.home / "s3cfg").write_text(
            f"[default]\nhost_base = {host}\nhost_bucket = {host}\nbucket_location = {REGION}\nuse_https = False\n"
        )
        shell = Shell(self.home, environment(self.login))
        return shell.run(str(path), "--config", "s3cfg", "--no-progress", "--multipart-chunk-size-mb=5", *arguments)

    def put(self, name: str, file: Path) -> object:
        return self.run("put", str(file), f"@{name}")

    def fetch(self, source: str, target: Path) -> object:
        return self.run("get", "--force", source, str(target))

    def copy(self, source: str, target: str) -> object:
        return self.run("cp", f"@{source}", f"@{target}")

    def delete(self, *names: str) -> object:
        return self.run(*(("del", f"@{names[0]}") if len(names) == 1 else ("del", "--recursive", "@")))


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """The forks, with the imports that the AWS CLI needs."""
    libraries = ("awscli.clidriver", "awscli.handlers", "awscli.customizations.s3.subcommands")
    with forks(tmp_path_factory.mktemp("aws"), *libraries) as one:
        yield one


Kind: TypeAlias = type[Client]
Opened: TypeAlias = Callable[[Kind], Any]


@pytest.fixture
def opened(lock: Lock, login: Login, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    made: list[Client] = []

    def open_(kind: Kind) -> Client:
        starting = request.getfixturevalue("starting") if issubclass(kind, AwsCli) else None
        made.append(kind(lock, login, tmp_path, starting))  # type: ignore[arg-type]
        return made[-1]

    yield open_
    for one in made:
        one.close()


@pytest.fixture
def boto(opened: Opened) -> Boto3:
    client: Boto3 = opened(Boto3)
    return client


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory to copy: one file that goes up whole, one in a directory, one in parts."""
    directory = tmp_path / "tree"
    (directory / "below").mkdir(parents=True)
    (directory / "a b+c.txt").write_bytes(b"hello")
    (directory / "below/ü.txt").write_bytes(b"below")
    (directory / "parts").write_bytes(b"0123456789abcdef" * 600_000)
    for path in directory.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))  # before they go up, even where the store knows only whole seconds
    return directory


def marked(kind: Kind, *values: object, marks: Sequence[pytest.MarkDecorator] = ()) -> Any:
    own = {Boto3: [], Rclone: [pytest.mark.installed], S3cmd: [pytest.mark.installed]}.get(kind, [pytest.mark.thorough])
    return pytest.param(kind, *values, marks=[*own, *marks], id="-".join([kind.__name__, *map(str, values)]))


ALL: list[Kind] = [Boto3, S3fs, MinioPy, PyArrow, AwsCli, AwsCliByProcess, Rclone]
NIGHTLY = (pytest.mark.nightly, pytest.mark.thorough)


@pytest.mark.parametrize("kind", [marked(S3cmd), *(marked(kind, marks=NIGHTLY) for kind in ALL)])
def test_files(opened: Opened, kind: Kind, lock: Lock, large: Path, tree: Path) -> None:
    client = opened(kind)
    for _ in range(2):
        client.put("a b+c.txt", tree / "a b+c.txt")
        assert lock.body("a b+c.txt") == b"hello"
    client.put("large", large)
    assert client.get("large") == large.read_bytes()
    client.copy(client.copied, "copied")
    assert client.get("copied") == client.get(client.copied)
    client.delete("copied")
    # PyArrow leaves a marker for the directory.
    assert set(lock.objects()) - {""} == {"a b+c.txt", "large"}
    client.delete("a b+c.txt", "large")
    assert set(lock.objects()) <= {""}
    assert lock.rejections() == []


Form: TypeAlias = Callable[[Any, Path], object]
"""A write by a client that has a tree of files."""

COMMON: dict[str, Form] = {
    "put": lambda client, tree: client.put("there", tree / "a b+c.txt"),
    "put in parts": lambda client, tree: client.put("there", tree / "parts"),
    "copy": lambda client, _: client.copy("source", "there"),
    "delete": lambda client, _: client.delete("there"),
    "delete many": lambda client, _: client.delete("there", "source"),
}
TAGS = {"TagSet": [{"Key": "colour", "Value": "red"}]}
FORMS: dict[Kind, dict[str, Form]] = {
    Boto3: {
        "put_object": lambda client, _: client.s3.put_object(**client.at("there"), Body=b"zombie"),
        "put_object of a new key": lambda client, _: client.s3.put_object(**client.at("new"), Body=b"zombie"),
        "put_object on a condition": lambda client, _: client.s3.put_object(**client.at("new"), IfNoneMatch="*"),
        "put_object of 9 MiB": lambda client, _: client.s3.put_object(**client.at("there"), Body=b"x" * 9 * MEBIBYTE),
        "copy in parts": lambda client, _: client.s3.copy(
            client.at("source"), **client.at("there"), Config=ALL_IN_PARTS
        ),
        "upload_fileobj": lambda client, _: client.s3.upload_fileobj(io.BytesIO(b"x"), **client.at("there")),
        "put_object_tagging": lambda client, _: client.s3.put_object_tagging(**client.at("there"), Tagging=TAGS),
        "put_object_acl": lambda client, _: client.s3.put_object_acl(**client.at("there"), ACL="private"),
    },
    S3fs: {
        "open": lambda client, _: client.write("there", b"zombie"),
        "pipe, only if new": lambda client, _: client.files.pipe_file(client.place("new"), b"x", mode="create"),
        "mv": lambda client, _: client.files.mv(client.place("source"), client.place("there")),
        "touch": lambda client, _: client.files.touch(client.place("new")),
        "append": lambda client, _: client.write("there", b"zombie", "ab"),
    },
    MinioPy: {
        "put_object of unknown length": lambda client, _: client.put_stream("there", b"zombie"),
        "compose_object": lambda client, _: client.compose("there", "source"),
    },
    PyArrow: {
        "create_dir": lambda client, _: client.files.create_dir(client.place("below/new"), recursive=False),
        "write_dataset": lambda client, _: client.write_dataset("new"),
    },
    AwsCli: {
        "sync": lambda client, tree: client.run("s3", "sync", str(tree), "@"),
        "mv up": lambda client, tree: client.run("s3", "mv", str(tree / "a b+c.txt"), "@there"),
        "mv within": lambda client, _: client.run("s3", "mv", "@source", "@there"),
        "mv down": lambda client, tree: client.run("s3", "mv", "@source", str(tree / "down")),
    },
    Rclone: {
        "sync": lambda client, tree: client.run("sync", str(tree), "@"),
        "moveto": lambda client, _: client.run("moveto", "@source", "@there"),
        "move a tree": lambda client, tree: client.run("move", str(tree), "@"),
        "touch": lambda client, _: client.run("touch", "@new"),
    },
    S3cmd: {
        "sync": lambda client, tree: client.run("sync", "--delete-removed", f"{tree}/", "@"),
        "mv": lambda client, _: client.run("mv", "@source", "@there"),
        "modify": lambda client, _: client.run("modify", "--add-header=x-amz-meta-colour:red", "@there"),
        "tags": lambda client, _: client.run("settagging", "@there", "colour=red"),
    },
}
OF_MANY = {"delete many": 2, "sync": 3, "move a tree": 3}
"""Writes that are several, with the number of refusals."""
ONE_BY_ONE = (S3fs, PyArrow, S3cmd)
"""They have no call that deletes many and says of each what has become of it."""


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        # boto3 has every form, and the others' own ones are theirs alone.
        marked(kind, form, marks=NIGHTLY if kind is not Boto3 and form in COMMON else ())
        for kind, own in FORMS.items()
        for form in (*COMMON, *own)
        if kind not in ONE_BY_ONE or form != "delete many"
    ],
)
def test_after_a_takeover_every_write_is_refused(opened: Opened, lock: Lock, tree: Path, kind: Kind, form: str) -> None:
    lock.seed(**{"there": b"precious", "source": b"source", "below/k": b"precious"})
    client = opened(kind)
    refusals, write = OF_MANY.get(form, 1), {**COMMON, **FORMS[kind]}[form]
    with lock.overtaken(refusals):
        with pytest.raises(REFUSALS, match=r"StaleFencingToken|overtaken"):
            write(client, tree)
        assert not client.exact or len(lock.rejections()) == refusals, "a refusal is final: nothing is tried again"
    assert (tree / "a b+c.txt").exists(), "a move that failed has moved nothing"


# boto3


def test_objects(boto: Boto3, lock: Lock) -> None:
    s3, at = boto.s3, boto.at("a b+c/ü.txt")
    put = s3.put_object(**at, Body=b"hello", Metadata={"colour": "red"}, ContentType="text/plain")
    head = s3.head_object(**at)
    assert (head["ETag"], head["ContentLength"], head["ContentType"]) == (put["ETag"], 5, "text/plain")
    assert head["Metadata"] == {"colour": "red"}
    assert s3.get_object(**at, Range="bytes=1-3")["Body"].read() == b"ell"
    copied = s3.copy_object(Bucket=BUCKET, Key=lock.key("copy"), CopySource=at)
    assert copied["CopyObjectResult"]["ETag"] == put["ETag"]
    s3.delete_object(**at)
    assert set(lock.objects()) == {"copy"}
    boto.s3.put_object(**boto.at("other"), Body=b"x")
    for name in ("list_objects_v2", "list_objects"):
        pages: Any = s3.get_paginator(name)
        found = pages.paginate(Bucket=BUCKET, Prefix=lock.prefix, PaginationConfig={"PageSize": 1})
        full = [[one["Key"] for one in page["Contents"]] for page in found if "Contents" in page]
        assert full == [[lock.key("copy")], [lock.key("other")]]
    gone: Any = boto.delete("copy", "other")
    assert {one["Key"] for one in gone["Deleted"]} == {lock.key("copy"), lock.key("other")}
    assert lock.objects() == {}


def test_conditional_writes(boto: Boto3, lock: Lock) -> None:
    at = boto.at("k")
    first = boto.s3.put_object(**at, Body=b"one", IfNoneMatch="*")
    boto.s3.put_object(**at, Body=b"two", IfMatch=first["ETag"])
    for method, more in (
        ("put_object", {"Body": b"x", "IfNoneMatch": "*"}),
        ("put_object", {"Body": b"x", "IfMatch": first["ETag"]}),
        ("delete_object", {"IfMatch": first["ETag"]}),
    ):
        with pytest.raises(ClientError, match="PreconditionFailed"):
            getattr(boto.s3, method)(**at, **more)
    assert lock.body("k") == b"two"
    assert lock.rejections() == [], "a condition that fails is no stale token"


def presigned(lock: Lock, method: str, name: str, token: str | None = TOKEN, **more: str) -> str:
    """A URL whose query carries the token: boto3's own presigning has no place for another parameter."""
    url = f"{lock.gateway.origin}/{BUCKET}/{lock.key(name)}"
    request = AWSRequest(method, url, params=more | ({"fencing-token": token} if token else {}))
    S3SigV4QueryAuth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION, expires=600).add_auth(request)
    return str(request.prepare().url)


def test_presigned_urls_that_carry_a_token(lock: Lock) -> None:
    assert send("PUT", presigned(lock, "PUT", "k"), content=b"hello").status_code == 200
    assert send("GET", presigned(lock, "GET", "k", None)).content == b"hello"
    only_new = send("PUT", presigned(lock, "PUT", "k", **{"If-None-Match": "*"}), content=b"x")
    assert (only_new.status_code, "PreconditionFailed" in only_new.text) == (412, True)
    signed = presigned(lock, "PUT", "k")
    for changed in (f"{signed}&fencing-holder=me", signed.replace("/k?", "/another?")):
        assert send("PUT", changed, content=b"x").status_code == 403
    without = send("PUT", presigned(lock, "PUT", "k", None), content=b"x")
    assert (without.status_code, "FencingTokenRequired" in without.text) == (428, True)
    with lock.overtaken(refusals=2):
        for method in ("PUT", "DELETE"):
            refused = send(method, presigned(lock, method, "k"), content=b"zombie")
            assert (refused.status_code, "StaleFencingToken" in refused.text) == (412, True)
    assert send("DELETE", presigned(lock, "DELETE", "k", NEWER)).status_code == 204
    # In the store a tombstone may stand there: a request of the older holder may be waiting for absence.
    assert send("GET", presigned(lock, "GET", "k", None)).status_code == 404


def test_presigned_urls_and_forms_of_credentials_that_carry_a_token(boto: Boto3, lock: Lock) -> None:
    """The session token is a part of the URL, or a field of the form: the browser needs to know nothing."""
    put, get, delete = (
        boto.s3.generate_presigned_url(f"{name}_object", boto.at("k")) for name in ("put", "get", "delete")
    )
    form = boto.s3.generate_presigned_post(BUCKET, lock.key("k"))
    post: dict[str, Any] = {"url": form["url"], "data": form["fields"]}
    assert send("PUT", put, content=b"by URL").status_code == 200
    assert send("GET", get).content == b"by URL"
    assert send("POST", **post, files={"file": b"by form"}).status_code == 204
    assert lock.body("k") == b"by form"
    with lock.overtaken(refusals=3):
        assert send("PUT", put, content=b"zombie").status_code == 412
        assert send("DELETE", delete).status_code == 412
        assert send("POST", **post, files={"file": b"zombie"}).status_code == 412
        assert send("GET", get).content == b"by form", "reads go on"


# Deeds of one of the others only


@pytest.mark.thorough
def test_s3fs_creates_a_file_once_and_removes_no_directory_of_another(opened: Opened, lock: Lock) -> None:
    client = opened(S3fs)
    client.files.pipe_file(client.place("k"), b"one", mode="create")
    with pytest.raises(FileExistsError):
        client.files.pipe_file(client.place("k"), b"two", mode="create")
    assert lock.body("k") == b"one"
    lock.seed(there=b"precious")
    with lock.overtaken(refusals=2):
        assert client.files.rm(client.place(""), recursive=True) == [], "it does not say what it could not delete"


SYNC_AND_MOVE: dict[Kind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    AwsCli: (("s3", "sync", "--delete"), ("s3", "mv")),
    Rclone: (("sync",), ("moveto",)),
    S3cmd: (("sync", "--delete-removed"), ("mv",)),
}


@pytest.mark.thorough
def test_pyarrow_makes_directories_again(opened: Opened, lock: Lock) -> None:
    """It puts an empty marker each time. MinIO has rules of its own for these."""
    lock.seed(**{"below/k": b"precious"})
    client = opened(PyArrow)
    for _ in range(2):
        client.files.create_dir(client.place("below/d"), recursive=False)
        client.files.create_dir(client.place("below/d"), recursive=False)
        client.write_dataset("below/d")
        client.write_dataset("below/d")
        assert dataset.dataset(client.place("below/d"), filesystem=client.files).count_rows() == 3
        client.files.delete_dir(client.place("below/d"))
    assert set(lock.objects()) <= {"below/", "below/k"}
    assert lock.rejections() == []


@pytest.mark.parametrize("kind", [marked(kind) for kind in SYNC_AND_MOVE])
def test_synchronise_and_move(opened: Opened, kind: Kind, lock: Lock, tree: Path, tmp_path: Path) -> None:
    client = opened(kind)
    sync, move = SYNC_AND_MOVE[kind]
    client.run(*sync, f"{tree}/", "@sync/")
    assert set(lock.objects()) == {"sync/a b+c.txt", "sync/below/ü.txt", "sync/parts"}
    assert client.run(*sync, f"{tree}/", "@sync/") == "", "nothing has changed"
    (tree / "a b+c.txt").unlink()
    client.run(*sync, f"{tree}/", "@sync/")
    (tmp_path / "synced").mkdir()
    client.run(*sync, "@sync/", f"{tmp_path}/synced/")
    assert sorted(path.name for path in (tmp_path / "synced").rglob("*")) == ["below", "parts", "ü.txt"]
    client.run(*move, "@sync/below/ü.txt", "@moved")
    assert set(lock.objects()) == {"sync/parts", "moved"}


@pytest.mark.thorough
def test_after_a_takeover_there_are_no_credentials(opened: Opened, lock: Lock, tree: Path) -> None:
    lock.seed(there=b"precious")
    client = opened(AwsCliByProcess)
    with lock.overtaken(), pytest.raises(OSError, match="has been overtaken by 34"):
        client.put("there", tree / "a b+c.txt")


@pytest.mark.installed
def test_a_header_that_rclone_does_not_sign_is_refused(opened: Opened, lock: Lock, tree: Path) -> None:
    with pytest.raises(OSError, match="status code: 403"):
        opened(Rclone).run("--header", "Fencing-Token: 35", "copyto", str(tree / "a b+c.txt"), "@k")
    assert lock.objects() == {}


@pytest.mark.installed
def test_rclone_asks_for_the_creation_of_its_bucket(opened: Opened, lock: Lock, tree: Path) -> None:
    """It does so before each of these, also with fenced credentials, and takes the answer for success."""
    client = opened(Rclone)
    client.run("touch", "@touched")
    client.run("copyto", str(tree / "parts"), "@parts")
    client.run("mkdir", "@")
    piping = f"echo piped | rclone --config rclone.conf rcat gateway:{client.place('piped')}"
    assert Shell(client.home, environment(client.login)).run("sh", "-c", piping).status == 0
    assert set(lock.objects()) == {"touched", "parts", "piped"}
    assert lock.body("piped") == b"piped\n"
    assert lock.rejections() == []


@pytest.mark.installed
def test_s3cmd_does_not_write_with_the_token_that_it_has_read(opened: Opened, lock: Lock, tmp_path: Path) -> None:
    """It sends headers of HeadObject back when it copies. The gateway's own must be left out."""
    lock.seed(there=b"old")
    newer = lock.gateway.connect(lock.session(NEWER))
    newer.put_object(**opened(Boto3).at("there"), Body=b"precious")
    modify = ("modify", "--add-header=x-amz-meta-colour:red", "@there")
    client = opened(S3cmd)
    with pytest.raises(OSError, match=r"different fencing tokens|another token or holder"):
        client.run(*modify)
    assert newer.head_object(**opened(Boto3).at("there"))["Metadata"] == {}
    without = ("--remove-header=fencing-token", "--remove-header=fencing-resource")
    S3cmd(lock, lock.fenced("35"), tmp_path, client.starting).run(*without, *modify)
    assert newer.head_object(**opened(Boto3).at("there"))["Metadata"]["colour"] == "red"
    newer.close()


# Over TLS, where bodies come in other forms: in chunks with a trailer, unsigned, or with an MD5


@contextmanager
def putting(kind: Kind, lock: Lock, home: Path, starting: Forks) -> Iterator[Callable[[Path], object]]:
    client = kind(lock, lock.fenced(), home, starting)
    yield lambda file: client.put("there", file)
    client.close()


@contextmanager
def putting_by_node(_: Kind, lock: Lock, home: Path, starting: Forks) -> Iterator[Callable[[Path], object]]:
    login = lock.fenced()
    trusting = {"NODE_EXTRA_CA_CERTS": str(lock.gateway.authority), "NODE_NO_WARNINGS": "1"}
    with node_objects(Shell(home, environment(login) | trusting)) as node:

        def put(file: Path) -> None:
            done = node.do("uploadInParts", lock, login, file)
            if done.error:
                raise OSError(done.found, done.error)

        yield put


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "putting"),
    [
        *((kind, putting) for kind in (Boto3, AwsCli, S3fs, MinioPy)),
        pytest.param(Rclone, putting, marks=pytest.mark.installed),
        pytest.param(Client, putting_by_node, marks=pytest.mark.installed),
    ],
)
def test_over_tls(
    secure_gateway: Gateway, large: Path, tmp_path: Path, starting: Forks, kind: Kind, putting: Any
) -> None:
    lock = secure_gateway.lock()
    with putting(kind, lock, tmp_path, starting) as put:
        for body in (b"hello", large.read_bytes()):
            large.write_bytes(body)
            put(large)
            assert lock.body("there") == body
        with lock.overtaken(refusals=2):
            for body in (b"zombie", large.read_bytes() + b"zombie"):
                large.write_bytes(body)
                with pytest.raises(REFUSALS, match=r"StaleFencingToken|overtaken"):
                    put(large)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_retries_after_a_lost_answer(lock: Lock, login: Login, large: Path, method: str) -> None:
    """boto3 sends again what it has heard nothing of; the holder's own second try is no stale write."""
    lock.seed(there=b"old")
    path = f"/{BUCKET}/{lock.key('there')}"
    expected = f"{path}?uploadId=" if method == "POST" else path
    with losing(lock.gateway.origin, f"{method} {expected}".encode()) as (origin, network):
        s3 = connect(origin, login)
        match method:
            case "PUT":
                s3.put_object(Bucket=BUCKET, Key=lock.key("there"), Body=b"new")
            case "POST":
                s3.upload_file(str(large), BUCKET, lock.key("there"), Config=IN_PARTS)
            case "DELETE":
                s3.delete_object(Bucket=BUCKET, Key=lock.key("there"))
        s3.close()
        assert network.lost == 1
    assert lock.body("there") == {"PUT": b"new", "POST": large.read_bytes(), "DELETE": None}[method]
    assert lock.rejections() == []
