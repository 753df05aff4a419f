"""Every client over TLS, where bodies come in other forms: in chunks with a trailer, unsigned, or with an MD5."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import boto3
import pytest
import s3fs
import urllib3
from botocore.exceptions import ClientError
from minio import Minio
from minio.error import S3Error

from tests.clients.commands import Shell, environment, program
from tests.clients.gateway import BUCKET, REGION, Gateway, Lock, Login
from tests.clients.node import objects

pytestmark = pytest.mark.thorough


def shell(lock: Lock, login: Login, home: Path, trust: str) -> Shell:
    """``trust``: the variable by which a program learns whom to trust."""
    return Shell(home, environment(login) | {trust: str(lock.gateway.authority), "NODE_NO_WARNINGS": "1"})


def by_boto3(lock: Lock, login: Login, file: Path) -> str:
    s3 = lock.gateway.connect(login)
    try:
        s3.upload_file(str(file), BUCKET, lock.key("there"))
    except (ClientError, boto3.exceptions.S3UploadFailedError) as error:
        return str(error)
    finally:
        s3.close()
    return ""


def by_aws(lock: Lock, login: Login, file: Path) -> str:
    aws = shell(lock, login, file.parent, "AWS_CA_BUNDLE")
    target = f"s3://{BUCKET}/{lock.key('there')}"
    return aws.run("aws", "--endpoint-url", lock.gateway.origin, "s3", "cp", str(file), target).error


def by_s3fs(lock: Lock, login: Login, file: Path) -> str:
    files = s3fs.S3FileSystem(
        key=login.access_key_id,
        secret=login.secret_access_key,
        token=login.session_token,
        endpoint_url=lock.gateway.origin,
        client_kwargs={"region_name": REGION, "verify": str(lock.gateway.authority)},
        skip_instance_cache=True,
    )
    try:
        files.put(str(file), f"{BUCKET}/{lock.key('there')}")
    except OSError as error:
        return str(error.__cause__)
    finally:
        s3fs.S3FileSystem.close_session(files.loop, files.s3)
    return ""


def by_minio(lock: Lock, login: Login, file: Path) -> str:
    host = urlsplit(lock.gateway.origin).netloc
    trusting = urllib3.PoolManager(ca_certs=str(lock.gateway.authority))
    keys = (login.access_key_id, login.secret_access_key, login.session_token)
    minio = Minio(host, *keys, region=REGION, http_client=trusting)
    try:
        minio.fput_object(BUCKET, lock.key("there"), str(file))
    except S3Error as error:
        return str(error)
    return ""


def by_rclone(lock: Lock, login: Login, file: Path) -> str:
    path = program("rclone", "run `make clients`, or apt-get install rclone")
    options = "provider=Other,env_auth=true,no_check_bucket=true,no_head=true,upload_cutoff=8M"
    remote = f":s3,{options},endpoint='{lock.gateway.origin}',region={REGION}:{BUCKET}/{lock.key('there')}"
    return (
        shell(lock, login, file.parent, "SSL_CERT_FILE")
        .run(path, "--quiet", "--retries", "1", "copyto", str(file), remote)
        .error
    )


def by_javascript(lock: Lock, login: Login, file: Path) -> str:
    with objects(shell(lock, login, file.parent, "NODE_EXTRA_CA_CERTS")) as node:
        done = node.do("uploadInParts", lock, login, file)
    return " ".join([*done.refused, done.error]).strip()


INSTALLED = [pytest.param(write, marks=pytest.mark.installed) for write in (by_rclone, by_javascript)]
CLIENTS = [by_boto3, by_aws, by_s3fs, by_minio, *INSTALLED]


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("write", CLIENTS)
def test_over_tls(secure_gateway: Gateway, large: Path, write: Callable[[Lock, Login, Path], str], size: str) -> None:
    lock = secure_gateway.lock()
    login = lock.fenced()
    if size == "small":
        large.write_bytes(b"hello")
    assert write(lock, login, large) == ""
    assert lock.body("there") == large.read_bytes()
    large.write_bytes(large.read_bytes() + b"zombie")
    with lock.overtaken():
        assert "StaleFencingToken" in write(lock, login, large)
