"""Impossible requests: the gateway answers 400 with advice, before any holder gets or loses a lock."""

from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.leases.asking import Service, problem
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

MALFORMED, MISNAMED = (400, "request-malformed"), (400, "resource-malformed")
YEAR = 365 * 24 * 3600


@pytest.mark.parametrize(
    "body",
    [
        *(
            f'{{"holder": "a", "ttl": {ttl}}}'
            for ttl in (0, -1, 0.05, YEAR, 600.1, "NaN", "Infinity", "1e999", "-1e999")
        ),
        *(f'{{"holder": "a", "ttl": {ttl}}}' for ttl in ('"30"', "null", "true", "[]", "{}")),
        *(f'{{"holder": "a", "wait": {wait}}}' for wait in (-1, 30.1, YEAR, "NaN", '"1"', "null", "true")),
        *('{"holder": ""}', '{"holder": " a"}', '{"holder": "a "}', '{"holder": null}', '{"holder": 7}'),
        *('{"holder": "a\\u0000b"}', '{"holder": "é"}', '{"holder": "\\ud800"}', '{"holder": "a\\nb"}'),
        *(f'{{"holder": "{"a" * 201}"}}', '{"holder": "a", "request": ""}', '{"holder": "a", "request": "\\u0000"}'),
        *('{"holder": "a", "mode": "both"}', '{"holder": "a", "mode": null}', '{"holder": "a", "barrier": 1}'),
        *('{"holder": "a", "tll": 30}', '{"ttl": 30}', "[]", '"a"', "7", "null", "", "{", "\xff", '{"holder": "a"} x'),
    ],
)
async def test_a_wish_that_cannot_be(service: Service, job: str, body: str) -> None:
    answer = await service.writer.http.post(f"/v1/leases/{job}", content=body.encode("latin-1", "replace"))
    assert problem(answer) == MALFORMED
    assert (await service.writer.lock(job))["token"] is None


@pytest.mark.parametrize("ttl", ["0", "-1", "0.09", str(YEAR), "NaN", '"30"', "true"])
async def test_a_renewal_that_cannot_be(service: Service, job: str, ttl: str) -> None:
    lease = await service.writer.got(job, "a")
    one = f'{{"resource": "{job}", "lease": "{lease["lease"]}", "ttl": {ttl}}}'
    for path, body in (
        (f"/v1/leases/{job}/{lease['lease']}", f'{{"ttl": {ttl}}}'),
        ("/v1/leases", f'{{"leases": [{one}]}}'),
    ):
        assert problem(await service.writer.http.put(path, content=body)) == MALFORMED
    assert 1 < (await service.writer.lock(job))["holders"][0]["expires_in"] <= 30


@pytest.mark.parametrize("leases", [None, {}, [7], [{}], [{"resource": "a", "lease": "x"}], [{"resource": "a"}]])
async def test_a_list_of_renewals_that_cannot_be(service: Service, leases: Any) -> None:
    assert problem(await service.writer.http.put("/v1/leases", json={"leases": leases})) == MALFORMED


async def test_limits_of_a_list_of_renewals(service: Service) -> None:
    one = {"resource": "job/none", "lease": str(uuid4())}
    most = await service.writer.http.put("/v1/leases", json={"leases": [one] * 1000})
    assert {lease["expires_in"] for lease in most.json()["leases"]} == {None}
    assert problem(await service.writer.http.put("/v1/leases", json={"leases": [one] * 1001})) == MALFORMED
    misnamed = await service.writer.http.put("/v1/leases", json={"leases": [one | {"resource": "a b"}]})
    assert problem(misnamed) == MISNAMED


@pytest.mark.parametrize("name", ["job/%c3%a9", "a,b", "job/%6b", "job/%2f", "a%7Eb", "x" * 513, ""])
async def test_what_is_no_canonical_name(service: Service, name: str) -> None:
    lease = uuid4()
    for asked in (
        service.writer.http.post(f"/v1/leases/{name}", json={"holder": "a"}),
        service.writer.http.get(f"/v1/leases/{name}"),
        service.writer.http.put(f"/v1/leases/{name}/{lease}", json={}),
        service.writer.http.delete(f"/v1/leases/{name}/{lease}"),
        service.writer.http.post(f"/v1/withdrawals/{name}", json={"holder": "a", "request": "r"}),
        service.operator.http.post(f"/v1/breaks/{name}", json={"expected": "1", "reason": "r"}),
    ):
        assert problem(await asked) == MISNAMED


async def test_what_is_no_lease(service: Service, job: str) -> None:
    for path in (f"/v1/leases/{job}/7", f"/v1/leases/{job}/{uuid4()}0"):
        assert problem(await service.writer.http.put(path, json={})) == MALFORMED
        assert problem(await service.writer.http.delete(path)) == MALFORMED


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"expected": "x", "reason": "r"}, (400, "token-malformed")),
        ({"expected": "1"}, MALFORMED),
        ({"expected": "1", "reason": ""}, MALFORMED),
        ({"expected": "1", "reason": "a\0b"}, MALFORMED),
        ({"expected": "1", "reason": "r" * 501}, MALFORMED),
        ({"expected": 1, "reason": "r"}, MALFORMED),
    ],
)
async def test_a_break_that_cannot_be(
    service: Service, job: str, body: dict[str, Any], expected: tuple[int, str]
) -> None:
    await service.writer.got(job, "a")
    assert problem(await service.operator.http.post(f"/v1/breaks/{job}", json=body)) == expected
    assert len((await service.writer.lock(job))["holders"]) == 1


@pytest.mark.parametrize("body", [{"holder": "a"}, {"request": "r"}, {"holder": "a", "request": "a\0b"}, []])
async def test_a_withdrawal_that_cannot_be(service: Service, job: str, body: Any) -> None:
    assert problem(await service.writer.http.post(f"/v1/withdrawals/{job}", json=body)) == MALFORMED


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "prefix=%00", "after=%00"])
async def test_a_listing_that_cannot_be(service: Service, query: str) -> None:
    assert problem(await service.writer.http.get(f"/v1/leases?{query}")) == MALFORMED


async def test_a_body_that_never_ends(service: Service, job: str) -> None:
    answer = await service.writer.http.post(f"/v1/leases/{job}", content=b" " * (1024 * 1024 + 1))
    assert problem(answer) == (413, "body-too-large")


async def test_who_does_not_say_who_it_is(service: Service, job: str) -> None:
    lease = await service.writer.got(job, "a")
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        async with httpx.AsyncClient(base_url=service.origin, headers=headers, timeout=PATIENCE) as stranger:
            for asked in (
                stranger.post(f"/v1/leases/{job}", json={"holder": "a"}),
                stranger.get(f"/v1/leases/{job}"),
                stranger.get("/v1/leases"),
                stranger.put(f"/v1/leases/{job}/{lease['lease']}", json={}),
                stranger.put("/v1/leases", json={"leases": []}),
                stranger.delete(f"/v1/leases/{job}/{lease['lease']}"),
                stranger.post(f"/v1/withdrawals/{job}", json={"holder": "a", "request": "r"}),
                stranger.post(f"/v1/breaks/{job}", json={"expected": "1", "reason": "r"}),
            ):
                assert problem(await asked) == (401, "unauthenticated")


@pytest.mark.parametrize(("method", "path"), [("PUT", "/job"), ("DELETE", "/job"), ("PATCH", "/job/1"), ("POST", "")])
async def test_what_is_no_method_of_a_lock(service: Service, method: str, path: str) -> None:
    assert problem(await service.writer.http.request(method, f"/v1/leases{path}")) == (405, "request-malformed")
