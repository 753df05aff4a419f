"""A real object store that tests run against, whatever its kind."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which
from typing import Any

import boto3
from botocore.config import Config
from mypy_boto3_s3 import S3Client

REGION = "us-east-1"
_GO_BINARIES = Path.home() / "go" / "bin"


@dataclass(frozen=True, slots=True)
class User:
    """Whom the store knows by this key pair."""

    name: str
    access_key_id: str
    secret_access_key: str


OWNER = User("owner", "AKIAOWNEROWNEROWNER0", "owner-secret-key-of-forty-characters-000")


@dataclass(frozen=True, slots=True)
class Store:
    """A running store. ``owner`` may do everything. ``distrust`` is what a gateway is told of it."""

    name: str
    endpoint: str
    owner: User = OWNER
    distrust: tuple[str, ...] = ()

    def connect(self) -> S3Client:
        """A client of the store itself."""
        return connect(self.endpoint, self.owner)


class StoreMissing(Exception):
    """The store's programs are not on this machine; the message says how to install them."""


@cache
def _session() -> boto3.Session:
    """One session, because reading the service model is what makes a client slow to build."""
    return boto3.Session(region_name=REGION)


def connect(origin: str, user: User, session_token: str | None = None, **settings: Any) -> S3Client:
    """A boto3 client that sends each request once, and its bodies plainly, as old stores need it."""
    plain = Config(
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"},
        signature_version="s3v4",
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        read_timeout=60,
    )
    return _session().client(
        "s3",
        endpoint_url=origin,
        aws_access_key_id=user.access_key_id,
        aws_secret_access_key=user.secret_access_key,
        aws_session_token=session_token,
        config=plain.merge(Config(**settings)),
    )


def program(name: str, installation: str) -> str:
    """The path of a program, also where ``go install`` puts it. Raises ``StoreMissing``."""
    found = which(name) or which(name, path=str(_GO_BINARIES))
    if found is None:
        raise StoreMissing(f"{name} is not installed: {installation}")
    return found
