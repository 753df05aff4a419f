"""The doctor reads the policies and ACLs of real stores."""

import json
from typing import Any
from uuid import uuid4

import pytest
from pydantic import SecretStr

from gateway.config.stores import ObjectStore
from gateway.doctor.bucket_writers import check_bucket_writers
from gateway.doctor.findings import Check, CheckStatus
from gateway.objects.store.operations import Upstream
from tests.stores.store import REGION, Store


async def examined(store: Store, bucket: str, *trusted: str) -> Check:
    settings = ObjectStore(
        endpoint=store.endpoint,
        region=REGION,
        access_key_id=store.owner.access_key_id,
        secret_access_key=SecretStr(store.owner.secret_access_key),
    )
    async with Upstream(settings) as upstream:
        [check] = await check_bucket_writers(upstream, bucket, trusted)
    return check


@pytest.fixture
def bucket(store: Store) -> str:
    name = f"writers-{uuid4().hex[:12]}"
    store.connect().create_bucket(Bucket=name)
    return name


def put_policy(store: Store, bucket: str, **changed: Any) -> None:
    statement = {
        "Effect": "Allow",
        "Principal": {"AWS": ["*"]},
        "Action": ["s3:PutObject"],
        "Resource": [f"arn:aws:s3:::{bucket}/*"],
        **changed,
    }
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    store.connect().put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))


async def test_a_fresh_bucket_is_open_to_the_users_that_the_store_does_not_show(store: Store, bucket: str) -> None:
    check = await examined(store, bucket)
    assert (check.status, "does not say which of its users" in check.detail) == (CheckStatus.WARNING, True), check
    assert (await examined(store, bucket, "store")).status is CheckStatus.OK


async def test_a_policy_that_lets_everybody_write_is_found(store: Store, bucket: str) -> None:
    put_policy(store, bucket, Action=["s3:GetObject"])
    assert (await examined(store, bucket, "store")).status is CheckStatus.OK
    put_policy(store, bucket)
    check = await examined(store, bucket, "store")
    assert (check.status, check.detail) == (CheckStatus.WARNING, "* may PutObject by the policy")
    assert (await examined(store, bucket, "store", "*")).status is CheckStatus.OK
