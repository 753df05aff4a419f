"""Leases over real HTTP: what holders and others get, and what they cannot ask for."""

import asyncio
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from gateway.fencing.sequencer import Sequencer, Signer
from tests.leases.asking import Service, problem, value
from tests.leases.conftest import SIGNING_KEY

pytestmark = pytest.mark.asyncio(loop_scope="module")


HELD, LOST, FORBIDDEN = (409, "lock-held"), (410, "lease-lost"), (403, "forbidden")


class TestAcquiring:
    async def test_a_lock_nobody_has(self, service: Service, job: str) -> None:
        answer = await service.writer.acquire(job, "host 7", ttl=20)
        assert answer.status_code == 201
        assert answer.headers["cache-control"] == "no-store"
        lease = answer.json()
        proof = Sequencer.parse(lease.pop("sequencer"))
        assert Signer([SIGNING_KEY]).is_authentic(proof)
        assert (proof.resource, str(proof.token)) == (job, lease["token"])
        lasts = datetime.fromisoformat(lease.pop("expires_at")) - datetime.fromisoformat(lease.pop("acquired_at"))
        assert lasts.total_seconds() == pytest.approx(20, abs=0.01)
        assert lease.pop("expires_in") == pytest.approx(20, abs=0.01)
        assert UUID(lease.pop("lease"))
        assert lease == {"resource": job, "holder": "host 7", "mode": "exclusive", "token": "1"}

    @pytest.mark.parametrize("wish", [{}, {"request": "r-1"}])
    async def test_asking_again_gets_the_same_lease(self, service: Service, job: str, wish: dict[str, str]) -> None:
        """An answer may be lost on its way. A client that retries gets no second token and no second hold."""
        first = await service.writer.acquire(job, "a", **wish)
        again = await service.writer.acquire(job, "a", **wish)
        assert (first.status_code, again.status_code) == (201, 200)
        for same in ("lease", "token", "acquired_at"):
            assert first.json()[same] == again.json()[same]
        assert (await service.writer.release(first.json())).status_code == 204
        assert (await service.writer.lock(job))["holders"] == [], "one release ends it, however often it was asked for"

    async def test_a_lock_somebody_has(self, service: Service, job: str) -> None:
        lease = await service.writer.got(job, "a", ttl=20)
        answer = await service.other.acquire(job, "b")
        assert problem(answer) == HELD
        told = answer.json()
        assert {name: told[name] for name in ("resource", "mode", "holder", "token", "position")} == {
            "resource": job,
            "mode": "exclusive",
            "holder": "a",
            "token": lease["token"],
            "position": 1,
        }
        assert 0 < float(told["expires_in"]) <= 20
        assert 1 <= int(answer.headers["retry-after"]) <= 20
        assert lease["lease"] not in answer.text

    async def test_there_is_no_token_after_the_last(self, service: Service, job: str) -> None:
        await service.rows("INSERT INTO fencing.lock (resource, value) VALUES ($1, $2)", job, 2**63 - 1)
        answer = await service.writer.acquire(job, "a")
        assert problem(answer) == (409, "tokens-exhausted")
        assert "epoch" in answer.json()["advice"]


class TestKeeping:
    async def test_renewing(self, service: Service, job: str) -> None:
        lease = await service.writer.got(job, "a", ttl=60)
        for wish, lasts in (({"ttl": 500}, 500), ({}, 500), ({"ttl": 62.5}, 62.5)):
            renewed = await service.writer.renew(lease, **wish)
            assert renewed.status_code == 200
            assert renewed.json()["expires_in"] == pytest.approx(lasts, abs=0.01)
            assert renewed.json()["token"] == lease["token"]
        bare = await service.writer.http.put(f"/v1/leases/{job}/{lease['lease']}")
        assert bare.status_code == 200, "a body is not needed"

    async def test_only_its_own_caller_may_touch_a_lease(self, service: Service, job: str) -> None:
        lease = await service.writer.got(job, "a")
        assert problem(await service.other.renew(lease)) == FORBIDDEN
        assert problem(await service.other.release(lease)) == FORBIDDEN
        assert problem(await service.other.release(lease | {"lease": str(uuid4())})) == LOST
        assert (await service.writer.release(lease)).status_code == 204
        assert problem(await service.writer.release(lease)) == LOST

    async def test_many_at_once(self, service: Service, job: str) -> None:
        kept = [await service.writer.got(f"{job}/{number}", "a", ttl=100) for number in range(3)]
        gone = await service.writer.got(f"{job}/gone", "a")
        await service.writer.release(gone)
        foreign = await service.other.got(f"{job}/foreign", "a")
        named = [{"resource": one["resource"], "lease": one["lease"]} for one in (*reversed(kept), gone, foreign)]
        named[0]["ttl"] = 199
        named.append(named[1])
        answer = await service.writer.http.put("/v1/leases", json={"leases": named})
        assert answer.status_code == 200
        leases = answer.json()["leases"]
        assert [{name: one[name] for name in ("resource", "lease")} for one in leases] == [
            {name: one[name] for name in ("resource", "lease")} for one in named
        ]
        assert [one["expires_in"] and round(one["expires_in"]) for one in leases] == [199, 100, 100, None, None, 100]
        assert (await service.writer.http.put("/v1/leases", json={"leases": []})).json() == {"leases": []}


class TestLooking:
    async def test_a_lock_nobody_ever_had(self, service: Service, job: str) -> None:
        assert await service.writer.lock(job) == {
            "resource": job, "mode": None, "token": None, "holders": [], "waiters": 0, "queue": [],
            "delayed_for": None,
        }  # fmt: skip

    async def test_a_lock_that_is_held(self, service: Service, job: str) -> None:
        lease = await service.writer.got(job, "a", ttl=100)
        answer = await service.other.http.get(f"/v1/leases/{job}")
        assert lease["lease"] not in answer.text
        view = answer.json()
        (hold,) = view.pop("holders")
        assert view == {
            "resource": job, "mode": "exclusive", "token": "1", "waiters": 0, "queue": [], "delayed_for": None,
        }  # fmt: skip
        assert 0 < hold.pop("expires_in") <= 100
        shown = ("acquired_at", "expires_at")
        assert [datetime.fromisoformat(hold.pop(name)) for name in shown] == [
            datetime.fromisoformat(lease[name]) for name in shown
        ]
        assert hold == {"holder": "a", "caller": "writer", "mode": "exclusive", "token": "1"}

    async def test_listing_by_prefix_in_pages(self, service: Service, job: str) -> None:
        names = [f"{job}/{end}" for end in ("B", "a", "a_", "ab", "z")]
        leases = [await service.writer.got(name, "a") for name in (*reversed(names), f"{job}/free")]
        await service.writer.release(leases[-1])
        await service.writer.got(f"{job}/lapsed", "a", ttl=0.1)
        await asyncio.sleep(0.11)
        found, after = [], ""
        while after is not None:
            answer = await service.writer.http.get(
                "/v1/leases", params={"prefix": f"{job}/", "after": after, "limit": 2}
            )
            assert not [lease for lease in leases if lease["lease"] in answer.text]
            page = answer.json()
            found += [lock["resource"] for lock in page["locks"]]
            after = page["after"]
        assert found == names

    async def test_a_name_that_ends_like_a_lease(self, service: Service, job: str) -> None:
        resource = f"{job}/{uuid4()}"
        lease = await service.writer.got(resource, "a")
        assert problem(await service.writer.http.delete(f"/v1/leases/{resource}")) == LOST, "a lease of another lock"
        assert (await service.writer.release(lease)).status_code == 204


class TestBreaking:
    async def test_a_lost_lock_stays_closed_for_a_while_where_that_is_configured(self, service: Service) -> None:
        """For writers that cannot be fenced: they get the time to notice."""
        resource = f"delayed/{uuid4().hex}"
        lease = await service.writer.got(resource, "a")
        assert (await service.operator.break_lock(resource, lease["token"])).json()["delayed_for"] > 0
        refused = await service.writer.acquire(resource, "b")
        assert (problem(refused), refused.json()["delayed"]) == (HELD, True)
        waiting = asyncio.ensure_future(service.writer.got(resource, "b", wait=30))
        await service.writer.until(resource, waiters=1)
        (lock,) = await service.rows(
            "UPDATE fencing.lock SET delayed_until = clock_timestamp() + interval '0.5 s' WHERE resource = $1 "
            "RETURNING delayed_until",
            resource,
        )
        waited = await waiting
        assert value(waited) == 2
        assert datetime.fromisoformat(waited["acquired_at"]) > lock["delayed_until"]
        assert (await service.writer.release(waited)).status_code == 204
        assert (await service.writer.acquire(resource, "c")).status_code == 201, "nothing was lost"


class TestWithdrawing:
    async def test_what_was_granted_is_released(self, service: Service, job: str) -> None:
        lease = await service.writer.got(job, "a", request="r-1")
        for ineffective in (
            service.writer.withdraw(job, "a", "r-2"),
            service.writer.withdraw(job, "b", "r-1"),
            service.other.withdraw(job, "a", "r-1"),
        ):
            assert (await ineffective).status_code == 204
        assert (await service.writer.renew(lease)).status_code == 200
        assert (await service.writer.withdraw(job, "a", "r-1")).status_code == 204
        assert problem(await service.writer.renew(lease)) == LOST


async def test_the_id_of_a_lease_is_told_to_its_holder_only(service: Service, job: str) -> None:
    """Any caller that knows the id can end the lease, so the id is in no event, no record and no error."""
    old = await service.writer.got(job, "a", ttl=0.1)
    await asyncio.sleep(0.11)
    new = await service.writer.got(job, "b")
    told = [
        (await service.writer.renew(old)).text,
        (await service.other.renew(new)).text,
        (await service.other.acquire(job, "c")).text,
        (await service.operator.break_lock(job, "7")).text,
        (await service.operator.break_lock(job, new["token"])).text,
        repr(await service.rows("SELECT e::text FROM fencing.event AS e WHERE resource = $1", job)),
        repr(service.events),
    ]
    for lease in (old, new):
        assert not [text for text in told if lease["lease"] in text]


# Impossible requests: the gateway answers 400 with advice, before any holder gets or loses a lock.


MALFORMED, MISNAMED = (400, "request-malformed"), (400, "resource-malformed")
YEAR = 365 * 24 * 3600


@pytest.mark.parametrize(
    "body",
    [
        *(
            f'{{"holder": "a", "ttl": {ttl}}}'
            for ttl in (0, -1, 0.05, YEAR, 3000.1, "NaN", "Infinity", "1e999", "-1e999")
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


async def test_a_list_of_renewals_that_cannot_be(service: Service) -> None:
    one = {"resource": "job/none", "lease": str(uuid4())}
    most = await service.writer.http.put("/v1/leases", json={"leases": [one] * 1000})
    assert {lease["expires_in"] for lease in most.json()["leases"]} == {None}
    wrong: list[Any] = [None, {}, [7], [{}], [{"resource": "a", "lease": "x"}], [{"resource": "a"}], [one] * 1001]
    for leases in wrong:
        assert problem(await service.writer.http.put("/v1/leases", json={"leases": leases})) == MALFORMED
    misnamed = await service.writer.http.put("/v1/leases", json={"leases": [one | {"resource": "a b"}]})
    assert problem(misnamed) == MISNAMED


async def test_a_withdrawal_a_listing_and_a_lease_that_cannot_be(service: Service, job: str) -> None:
    bodies: list[Any] = [{"holder": "a"}, {"request": "r"}, {"holder": "a", "request": "a\0b"}, []]
    for body in bodies:
        assert problem(await service.writer.http.post(f"/v1/withdrawals/{job}", json=body)) == MALFORMED
    for query in ("limit=0", "limit=1001", "limit=x", "prefix=%00", "after=%00"):
        assert problem(await service.writer.http.get(f"/v1/leases?{query}")) == MALFORMED
    for path in (f"/v1/leases/{job}/7", f"/v1/leases/{job}/{uuid4()}0"):
        assert problem(await service.writer.http.put(path, json={})) == MALFORMED
        assert problem(await service.writer.http.delete(path)) == MALFORMED


@pytest.mark.parametrize(
    "body",
    [
        *({"expected": "1", **more} for more in ({}, {"reason": ""}, {"reason": "a\0b"}, {"reason": "r" * 501})),
        *({"expected": expected, "reason": "r"} for expected in ("x", 1)),
    ],
)
async def test_a_break_that_cannot_be(service: Service, job: str, body: dict[str, Any]) -> None:
    await service.writer.got(job, "a")
    expected = (400, "token-malformed") if body["expected"] == "x" else MALFORMED
    assert problem(await service.operator.http.post(f"/v1/breaks/{job}", json=body)) == expected
    assert len((await service.writer.lock(job))["holders"]) == 1


async def test_a_body_that_never_ends(service: Service, job: str) -> None:
    answer = await service.writer.http.post(f"/v1/leases/{job}", content=b" " * (1024 * 1024 + 1))
    assert problem(answer) == (413, "body-too-large")


@pytest.mark.parametrize(("method", "path"), [("PUT", "/job"), ("DELETE", "/job"), ("PATCH", "/job/1"), ("POST", "")])
async def test_what_is_no_method_of_a_lock(service: Service, method: str, path: str) -> None:
    assert problem(await service.writer.http.request(method, f"/v1/leases{path}")) == (405, "request-malformed")
