"""The health of written buckets, which only callers see."""

import httpx

from gateway.demo.embedded import EmbeddedPostgres
from tests.doubles.s3 import S3Double
from tests.integration.objects.clients import call, connect, outcome
from tests.integration.objects.object_gateway import staged
from tests.waiting import PATIENCE


async def test_callers_are_told_what_the_stores_of_their_buckets_lack(postgres_server: EmbeddedPostgres) -> None:
    double = S3Double(buckets=["bucket", "unread"])
    double.behave(ignored_conditions=frozenset({"DeleteObject"}))
    async with staged(postgres_server, double) as stage, stage.api() as api:
        assert (await api.get("/v1/health")).json() == {"postgres": "ok", "s3": "ok"}
        await call(connect(stage.origin, "1").put_object, Key="k", Body=b"x")
        assert (await api.get("/v1/health")).json() == {
            "postgres": "ok",
            "s3": "ok",
            "buckets": {
                "bucket": {
                    "writable": True,
                    "missing": {
                        "delete-if-match": "Deletes leave tombstones.",
                        "delete-race": "Deletes leave tombstones.",
                    },
                }
            },
        }
        async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as anybody:
            assert (await anybody.get("/v1/health")).json() == {"postgres": "ok", "s3": "ok"}


async def test_a_bucket_that_cannot_be_fenced_is_no_reason_to_be_ill(postgres_server: EmbeddedPostgres) -> None:
    double = S3Double(buckets=["bucket"])
    double.behave(ignored_conditions=frozenset({"PutObject:If-Match"}))
    async with staged(postgres_server, double) as stage, stage.api() as api:
        assert (await outcome(connect(stage.origin, "1").put_object, Key="k", Body=b"x"))[0] == 501
        health = await api.get("/v1/health")
        assert health.status_code == 200
        bucket = health.json()["buckets"]["bucket"]
        assert bucket["writable"] is False
        assert bucket["missing"]["put-if-match"] == "Fenced writes to this bucket are refused."
        assert (await api.get("/v1/ready")).status_code == 204
