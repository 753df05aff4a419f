"""Webhooks: everything on record arrives, signed, in order, at least once, whatever receivers and gateways do."""

import asyncio
import ssl
from typing import Any

import httpx
import pytest
import trustme

from gateway.db.database import Database
from gateway.observe.events import WebhookDelivered, WebhookFailed
from gateway.webhooks.delivery import Courier
from tests.crash.processes import Nursery
from tests.record.entries import put
from tests.record.receiver import (
    SECRET,
    TAKEN,
    Receiver,
    disconnect,
    receiving,
    standing,
    status,
    telling,
    time_passes,
    webhook,
)
from tests.running import API_KEY, config, running
from tests.waiting import PATIENCE


async def test_what_is_put_on_record_arrives_signed_and_in_order(dsn: str, database: Database) -> None:
    await put(database, 3)
    async with receiving() as receiver, telling(dsn, webhook("ops", receiver.url)):
        await put(database, 5)
        await receiver.until(lambda: len(receiver.entries()) == 5)
        (entry, *_), (message, *_) = receiver.entries(), receiver.taken
    assert [entry["position"] for entry in receiver.entries()] == [4, 5, 6, 7, 8], "not with history"
    assert (message.type, message.data["webhook"], message.data["missed"]) == ("fencing.entries", "ops", 0)
    assert (entry["resource"], entry["holder"], entry["token"], entry["target"]) == (
        "job/nightly",
        "host-a",
        "33",
        "/v1/tables/runs",
    )
    assert message.headers["content-type"] == "application/json"


async def test_a_message_is_sent_again_as_it_was_until_it_is_taken(dsn: str, database: Database) -> None:
    elsewhere = "Location: http://127.0.0.1:9/"
    replies: list[Any] = [status(500), status(307, elsewhere), status(404), disconnect, b"not HTTP at all\r\n\r\n"]
    async with receiving() as receiver, telling(dsn, webhook("ops", receiver.url)) as (_, events):
        receiver.replies = list(replies)
        await put(database, 2)
        for number in range(1, len(replies) + 1):
            await failures(receiver, events, number)
            # Entries recorded meanwhile must not get into the repeated message.
            await put(database)
            await time_passes(database)
        await receiver.until(lambda: len(receiver.entries()) == 2 + len(replies))
        assert await standing(database, "failures") == 0
        assert await standing(database, "failing_since") is None
    first = receiver.attempts[: len(replies) + 1]
    assert len({attempt.id for attempt in first}) == 1
    assert all(attempt.positions == [1, 2] for attempt in first)
    assert [entry["position"] for entry in receiver.entries()] == list(range(1, 3 + len(replies)))
    assert [(event.failures, event.error) for event in failed(events)] == [
        (1, "answered with 500"),
        (2, "answered with 307"),
        (3, "answered with 404"),
        (4, "no answer (RemoteProtocolError)"),
        (5, "no answer (RemoteProtocolError)"),
    ]
    assert [event.wait for event in failed(events)] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert next(event.failures for event in events if isinstance(event, WebhookDelivered)) == len(replies)


async def test_a_receiver_may_ask_for_rest(dsn: str, database: Database) -> None:
    async with receiving() as receiver, telling(dsn, webhook("ops", receiver.url)) as (_, events):
        receiver.replies = [status(503, "Retry-After: 3000")]
        await put(database)
        await receiver.until(lambda: failed(events))
        assert failed(events)[0].wait == 3000
        await receiver.until(lambda: len(receiver.attempts) == 1)
        left = await standing(database, "extract(epoch FROM not_before - clock_timestamp())")
        assert 2900 < left <= 3000


async def test_a_receiver_that_is_gone_is_left_alone_until_it_accepts_a_test(dsn: str, database: Database) -> None:
    async with (
        receiving() as receiver,
        receiving() as other,
        telling(dsn, webhook("ops", receiver.url), webhook("other", other.url)) as (outbox, events),
    ):
        receiver.replies = [status(410), status(410)]
        await put(database)
        await receiver.until(lambda: failed(events))
        assert failed(events)[0].wait is None
        await time_passes(database)
        await put(database)
        await other.until(lambda: len(other.entries()) == 2)  # so it has been looked what there is to do
        assert (await outbox.test("ops")).status == 410
        assert await standing(database, "paused_at IS NOT NULL")
        stands = next(one for one in await outbox.standings() if one.name == "ops")
        assert (stands.behind, stands.last_error, stands.failures) == (2, "answered with 410", 1)
        assert (await outbox.test("ops")).error is None
        await receiver.until(lambda: len(receiver.entries()) == 2)
    assert [attempt.type for attempt in receiver.attempts] == [
        "fencing.entries",
        "fencing.test",
        "fencing.test",
        "fencing.entries",
        "fencing.entries",
    ], "the message that had failed is sent as it was"


async def test_who_never_answers_and_who_answers_late(dsn: str, database: Database) -> None:
    answered = asyncio.Event()

    async def hang(writer: asyncio.StreamWriter) -> None:
        await answered.wait()
        writer.write(TAKEN)

    async with receiving() as receiver:
        hook, receiver.usually = webhook("ops", receiver.url), hang
        async with telling(dsn, hook, courier=Courier(timeout=0.2)) as (_, events):
            await put(database)
            await receiver.until(lambda: receiver.attempts and failed(events))
        receiver.usually = TAKEN
        answered.set()
        await time_passes(database)
        async with telling(dsn, hook):
            await receiver.until(lambda: receiver.taken)
    assert {event.error for event in failed(events)} == {"no answer within 0.2 seconds"}
    assert len({attempt.id for attempt in receiver.attempts}) == 1, "a receipt that comes too late is none"


async def test_a_receipt_counts_though_its_body_never_ends(dsn: str, database: Database) -> None:
    async def chatter(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
        while not writer.transport.is_closing():
            writer.write(b"x" * 65536)
            await writer.drain()

    async with receiving() as receiver, telling(dsn, webhook("ops", receiver.url)) as (_, events):
        receiver.replies = [chatter]
        await put(database)
        await receiver.until(lambda: any(isinstance(event, WebhookDelivered) for event in events))
        await put(database)
        await receiver.until(lambda: receiver.taken)
    assert [attempt.positions for attempt in receiver.attempts] == [[1], [2]]


@pytest.mark.thorough
async def test_a_gateway_that_is_killed_before_the_receipt_has_its_message_sent_again(
    dsn: str, database: Database
) -> None:
    hooks = [{"name": "ops", "url": "", "secret": SECRET}]
    async with receiving() as receiver:
        hooks[0]["url"] = receiver.url
        with Nursery({"dsn": dsn, "webhooks": hooks}) as nursery:
            victim = await asyncio.to_thread(nursery.hatch)

            async def kill(writer: asyncio.StreamWriter) -> None:
                await asyncio.to_thread(victim.kill)
                writer.write(TAKEN)

            receiver.replies = [kill]
            await known(database, "ops")
            await put(database, 150)
            await receiver.until(lambda: receiver.attempts)
            heir = await asyncio.to_thread(nursery.hatch)
            await asyncio.to_thread(victim.wait_down, "kill")
            await time_passes(database)
            await receiver.until(lambda: len(receiver.entries()) == 150)
            heir.kill()
    once, again, *_ = receiver.attempts
    assert once.id == again.id
    assert [entry["position"] for entry in receiver.entries()] == list(range(1, 151))


@pytest.mark.parametrize("answer", [status(410), TAKEN], ids=["refused", "received"])
async def test_a_gateway_that_was_paused_while_it_sent_moves_nothing(
    dsn: str, database: Database, answer: bytes
) -> None:
    """Its time is over, and another gateway has delivered, and more. Then it goes on, and gets its answer."""
    resumed = asyncio.Event()

    async def hold(writer: asyncio.StreamWriter) -> None:
        await resumed.wait()
        writer.write(answer)

    async with receiving() as receiver:
        hook = webhook("ops", receiver.url)
        async with telling(dsn, hook) as (_, zombie):
            receiver.replies = [hold]
            await put(database)
            await receiver.until(lambda: receiver.attempts)
            async with telling(dsn, hook):
                await time_passes(database)
                await receiver.until(lambda: receiver.taken)
                await put(database)
                await receiver.until(lambda: len(receiver.entries()) == 2)
                resumed.set()
                await receiver.until(lambda: zombie)
                await put(database)
                await receiver.until(lambda: len(receiver.entries()) == 3)
        assert await standing(database, "position") == 3
        assert [entry["position"] for entry in receiver.entries()] == [1, 2, 3]
        assert await standing(database, "paused_at") is None
        assert await standing(database, "failures") == 0


async def test_only_what_it_asks_for(dsn: str, database: Database) -> None:
    async with receiving() as receiver:
        hook = webhook("ops", receiver.url, prefix="job_%/", observed=False)
        async with telling(dsn, hook):
            for resource in ("other/1", "job_%", "jobs/1", "job_1/1", None):
                await put(database, resource=resource, sealed=False)
            await put(database, resource="job_%/1", enforced=False, sealed=False)
            await put(database, resource="job_%/2", kind="bypass", sealed=False)
            await put(database, resource="job_%/3")
            await put(database, resource="job_%/4")
            await receiver.until(lambda: len(receiver.entries()) == 2)
    assert [entry["resource"] for entry in receiver.entries()] == ["job_%/3", "job_%/4"]


async def test_what_is_not_for_it_is_passed_over_without_a_message(dsn: str, database: Database) -> None:
    async with receiving() as receiver, telling(dsn, webhook("ops", receiver.url, prefix="job/")) as (outbox, _):
        await put(database, 12_000, resource="other")
        async with asyncio.timeout(PATIENCE):
            while (await outbox.standings())[0].behind:
                await asyncio.sleep(0.01)
    assert receiver.attempts == []


async def test_what_retention_has_dropped_is_said(dsn: str, database: Database) -> None:
    async with receiving() as receiver:
        hook = webhook("ops", receiver.url)
        async with telling(dsn, hook):
            pass
        await put(database, 7)
        await dropped(database, below=6)
        async with telling(dsn, hook):
            await receiver.until(lambda: receiver.taken)
        await put(database, 4)
        await dropped(database, below=12)
        async with telling(dsn, hook):
            await receiver.until(lambda: len(receiver.taken) == 2)
    assert [(message.data["missed"], message.positions) for message in receiver.taken] == [(5, [6, 7]), (4, [])]


async def test_a_certificate_nobody_vouches_for(dsn: str, database: Database) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with receiving(context) as receiver, telling(dsn, webhook("ops", receiver.url)) as (_, events):
        await put(database)
        await receiver.until(lambda: failed(events))
    assert failed(events)[0].error.startswith("its certificate is not trusted: ")
    assert receiver.attempts == []


@pytest.mark.thorough
async def test_how_they_stand_is_for_auditors_and_trying_them_for_administrators(dsn: str, database: Database) -> None:
    async with receiving() as receiver:
        callers = [
            {"name": "writer", "api_key": "writer-key"},
            {"name": "auditor", "api_key": "audit-key", "groups": ["auditors"]},
            {"name": "admin", "api_key": "admin-key", "groups": ["admins"]},
        ]
        hooks = [{"name": "ops", "url": f"{receiver.url}?token=hidden", "secret": SECRET}]
        async with (
            running(config(dsn, callers=callers, webhooks=hooks)) as url,
            httpx.AsyncClient(base_url=url, timeout=PATIENCE) as ask,
        ):
            await known(database, "ops")
            # The auditor first: the denial of the writer is on record, and a moment later to be delivered.
            keys = {
                key: {"Authorization": f"Bearer {key}"} for key in ("audit-key", "writer-key", "admin-key", "wrong")
            }
            seen = {key: await ask.get("/v1/webhooks", headers=sent) for key, sent in keys.items()}
            tried = {key: await ask.post("/v1/webhooks/ops/test", headers=sent) for key, sent in keys.items()}
            admin = keys["admin-key"]
            unknown = await ask.post("/v1/webhooks/%3Cx%3E/test", headers=admin)
            await put(database, 2)
            # Denials are on record like other refusals: one view, and two tries.
            await receiver.until(lambda: len(receiver.entries()) == 5)
            assert sum(entry["reason"] == "denied" for entry in receiver.entries()) == 3
            receiver.usually = status(500)
            failed_test = (await ask.post("/v1/webhooks/ops/test", headers=admin)).json()
    assert [answer.status_code for answer in seen.values()] == [200, 403, 200, 401]
    assert [answer.status_code for answer in tried.values()] == [403, 403, 200, 401]
    (shown,) = seen["audit-key"].json()["webhooks"]
    assert (shown["name"], shown["position"], shown["behind"], shown["failures"]) == ("ops", 0, 0, 0)
    assert tried["admin-key"].json() == {"delivered": True, "status": 204, "error": None}
    assert (unknown.status_code, unknown.json()["code"]) == (404, "not-found")
    assert failed_test == {"delivered": False, "status": 500, "error": "answered with 500"}
    for told in (SECRET.removeprefix("whsec_"), "hidden"):
        assert not any(told in answer.text for answer in (*seen.values(), *tried.values(), unknown))
    # Denials come in one message or several, before the tests or after them.
    assert [message.type for message in receiver.attempts].count("fencing.test") == 2


async def test_a_zombie_is_told_of_and_so_is_the_alarm_that_it_raises(dsn: str, database: Database) -> None:
    async with receiving() as receiver:
        told: dict[str, Any] = {
            "webhooks": [{"name": "ops", "url": receiver.url, "secret": SECRET, "kinds": ["rejection", "barrier"]}],
            "alarms": [{"name": "any", "more_than": 0, "minutes": 1}],
        }
        headers = {"Authorization": f"Bearer {API_KEY}"}
        async with (
            running(config(dsn, **told)) as url,
            httpx.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE) as client,
        ):
            # Each of them begins at the end of the record, at a moment of its own.
            await known(database, "ops")
            await known(database, "any", "alarm")
            for token, holder in (("34", "b"), ("33", "a")):
                await client.post("/v1/fences/job/1/barrier", json={"token": token, "holder": holder})
            await receiver.until(lambda: any(message.type == "fencing.alarm.raised" for message in receiver.taken))
    takeover, refused = receiver.entries()
    assert (takeover["kind"], takeover["holder"], takeover["token"]) == ("barrier", "b", "34")
    assert (refused["kind"], refused["holder"], refused["fence_holder"]) == ("rejection", "a", "b")
    assert receiver.taken[-1].data["details"]["rejections"] == [refused["id"]]


@pytest.mark.thorough
async def test_all_secrets_of_a_list_sign(dsn: str, database: Database) -> None:
    new = "whsec_" + "bmV3" * 12
    async with receiving() as receiver:
        hooks = [{"name": "ops", "url": receiver.url, "secret": [new, SECRET]}]
        async with running(config(dsn, webhooks=hooks)):
            await known(database, "ops")
            await put(database)
            await receiver.until(lambda: receiver.taken)
            receiver.secret = new
            await put(database)
            await receiver.until(lambda: len(receiver.taken) == 2)


async def test_who_is_told_of_nothing_asks_the_database_for_nothing(dsn: str) -> None:
    async with telling(dsn) as (outbox, events):
        assert await outbox.standings() == []
    assert events == []


def test_what_cannot_be_an_address_is_said_at_the_start() -> None:
    for address in ("ftp://x", "http://", "http://user@x/", "http://x/#f", "x", "http://[", ""):
        with pytest.raises(ValueError, match="webhooks"):
            config("postgresql://x", webhooks=[{"name": "ops", "url": address, "secret": SECRET}])


def failed(events: list[Any]) -> list[WebhookFailed]:
    return [event for event in events if isinstance(event, WebhookFailed)]


async def failures(receiver: Receiver, events: list[Any], number: int) -> None:
    """Wait until so many attempts have failed, or more: some are made by themselves meanwhile."""
    await receiver.until(lambda: len(failed(events)) >= number)


async def known(database: Database, name: str, what: str = "webhook") -> None:
    """Wait until a gateway has introduced the webhook, or the alarm."""
    async with asyncio.timeout(PATIENCE):
        while not await database.fetch(f"SELECT FROM fencing.{what} WHERE name = $1", name):
            await asyncio.sleep(0.01)


async def dropped(database: Database, below: int) -> None:
    """As retention leaves the record, but by position."""
    await database.fetch_write("ALTER TABLE fencing.entry DISABLE TRIGGER USER")
    await database.fetch_write("DELETE FROM fencing.entry WHERE position < $1", below)
