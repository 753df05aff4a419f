"""A pytest plug-in for a checkout of ceph/s3-tests: every request of every boto3 client presents a fencing token.

It is loaded into the suite's own process and environment, so it needs nothing of ours.
"""

import importlib
import os

import boto3


def pytest_configure() -> None:
    """Without ``FENCING_TOKEN`` the suite runs as it is."""
    token = os.environ.get("FENCING_TOKEN")
    if token is None:
        return

    def present(params, **_):  # type: ignore[no-untyped-def]
        params["headers"]["Fencing-Token"] = token

    boto3.DEFAULT_SESSION = boto3.Session()
    boto3.DEFAULT_SESSION.events.register("before-call.s3", present)
    _clean_at_the_store(os.environ["CLEANING_ENDPOINT"])


def _clean_at_the_store(endpoint):  # type: ignore[no-untyped-def]
    """Remove buckets at the store itself: one that cannot be emptied must not fail every test after it."""
    functional = importlib.import_module("s3tests.functional")
    nuke = functional.nuke_bucket

    def nuke_at_the_store(_client, bucket):  # type: ignore[no-untyped-def]
        config = functional.config
        client = boto3.Session().client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id=config.main_access_key,
            aws_secret_access_key=config.main_secret_key,
        )
        nuke(client, bucket)

    functional.nuke_bucket = nuke_at_the_store
