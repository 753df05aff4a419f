"""The health of written buckets, which only callers see."""

import httpx

from gateway.demo.embedded import EmbeddedPostgres
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import staged
from tests.running import config, running
from tests.waiting import PATIENCE


async def test_callers_are_told_what_the_stores_of_their_buckets_lack(postgres_server: EmbeddedPostgres) -> None:
    double = S3Double(buckets=["bucket", "unread"])
    double.behave(ignored_conditions=frozenset({"DeleteObject"}))
    async with staged(postgres_server, double) as stage, stage.api() as api:
        journal = {"mode": "off", "state": "ok", "term": 0, "snapshot": 0, "pending": 0, "lag_seconds": 0.0}
        assert (await api.get("/v1/health")).json() == {"postgres": "ok", "s3": "ok", "journal": journal}
        await call(connect(stage.origin, "1").put_object, Key="k", Body=b"x")
        assert (await api.get("/v1/health")).json() == {
            "postgres": "ok",
            "s3": "ok",
            "journal": journal,
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


async def test_probes_and_metrics_are_where_other_programs_have_them(postgres_server: EmbeddedPostgres) -> None:
    """Buckets of these names stay reachable: each request to a bucket is signed."""
    names = ["healthz", "livez", "readyz", "metrics"]
    async with staged(postgres_server, S3Double(buckets=names)) as stage, stage.api() as api:
        async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as anybody:
            assert (await anybody.get("/healthz")).json() == {"postgres": "ok", "s3": "ok"}
            assert (await anybody.head("/healthz")).status_code == 200
            assert (await anybody.get("/readyz")).status_code == 204
            assert (await anybody.get("/livez")).status_code == (await anybody.get("/v1/live")).status_code == 204
            assert (await anybody.get("/metrics")).status_code == (await anybody.get("/v1/metrics")).status_code == 401
            for of_a_bucket in ("/healthz/", "/metrics/key", "/readyz?list-type=2", "/%68ealthz"):
                assert (await anybody.get(of_a_bucket)).headers["content-type"] == "application/xml"
            assert (await anybody.put("/metrics")).headers["content-type"] == "application/xml"
        assert (await api.get("/metrics")).headers["content-type"] == (await api.get("/v1/metrics")).headers[
            "content-type"
        ]
        s3 = connect(stage.origin, "1")
        for name in names:
            await call(s3.put_object, Bucket=name, Key="k", Body=b"x")
            assert [one["Key"] for one in (await call(s3.list_objects, Bucket=name))["Contents"]] == ["k"]
            await call(s3.head_bucket, Bucket=name)
            link = s3.generate_presigned_url("list_objects", Params={"Bucket": name})
            async with httpx.AsyncClient(timeout=PATIENCE) as linked:
                assert "<Key>k</Key>" in (await linked.get(link)).text


async def test_probes_without_an_object_store(dsn: str) -> None:
    async with running(config(dsn)) as origin, httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as anybody:
        assert (await anybody.get("/healthz")).json() == {"postgres": "ok"}
        assert (await anybody.get("/readyz")).status_code == 204
        assert (await anybody.get("/metrics")).status_code == 401


async def test_the_root_leads_browsers_to_the_page(postgres_server: EmbeddedPostgres) -> None:
    html = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with staged(postgres_server, S3Double(buckets=["bucket"])) as stage:
        async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as browser:
            led = await browser.get("/", headers=html)
            assert (led.status_code, led.headers["location"]) == (307, "/ui/")
            assert (await browser.get("/")).headers["content-type"] == "application/xml"
            assert (await browser.get("/bucket", headers=html)).headers["content-type"] == "application/xml"
        s3 = connect(stage.origin)
        s3.meta.events.register("before-call.s3", lambda params, **_: params["headers"].update(html))
        assert [one["Name"] for one in (await call(s3.list_buckets))["Buckets"]] == ["bucket"]
