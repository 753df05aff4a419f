"""A pytest plug-in for a checkout of ceph/s3-tests: every request of every boto3 client presents a fencing token.

It is loaded into the suite's own process and environment, so it needs nothing of ours.
"""

import importlib
import os
from contextlib import suppress
from typing import Any

import boto3
from botocore.exceptions import ClientError


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Keep the tests that ``CHOSEN_TESTS`` names, if it is set."""
    chosen = os.environ.get("CHOSEN_TESTS")
    if chosen is not None:
        items[:] = [item for item in items if item.name in chosen.split()]


def pytest_configure() -> None:
    """Without ``FENCING_TOKEN`` the suite runs as it is."""
    token = os.environ.get("FENCING_TOKEN")
    if token is None:
        return

    def present(params: dict[str, Any], **_: object) -> None:
        params["headers"]["Fencing-Token"] = token

    boto3.DEFAULT_SESSION = boto3.Session()
    boto3.DEFAULT_SESSION.events.register("before-call.s3", present)
    _clean_at_the_store(os.environ["CLEANING_ENDPOINT"])


def _clean_at_the_store(endpoint: str) -> None:
    """Remove buckets at the store itself. One that cannot be removed must not fail every test after it."""
    functional: Any = importlib.import_module("s3tests.functional")
    nuke = functional.nuke_bucket

    def nuke_at_the_store(_client: object, bucket: str) -> None:
        config = functional.config
        client = boto3.Session().client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=config.main_access_key,
            aws_secret_access_key=config.main_secret_key,
        )
        with suppress(ClientError):
            nuke(client, bucket)

    functional.nuke_bucket = nuke_at_the_store
