"""``gateway naming apply`` puts the configured names in force, and no fence is forgotten on the way."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import asyncpg
import pytest
from pydantic import SecretStr

from gateway.doctor.examination import examine
from gateway.doctor.findings import CheckStatus
from gateway.errors import ConfigurationError
from gateway.guard import installation
from gateway.guard.installation import GuardRequest
from gateway.naming import buckets, plan, tables
from gateway.naming.plan import PlannedChange
from tests.naming.conftest import BY_ACCOUNT, BY_ORDER, KEYS_BY_ACCOUNT, Gateway, Place
from tests.objects.clients import connect, in_thread, outcome
from tests.postgres import GATEWAY
from tests.processes import called
from tests.running import API_KEY
from tests.tables.asking import answered, send
from tests.tiers import first

SESSIONS = "SELECT FROM pg_stat_activity WHERE datname = current_database()"


async def planned(place: Place, sections: Mapping[str, Any]) -> list[PlannedChange]:
    async with plan.naming_changes(place.config(**sections)) as changes:
        return await changes.planned()


async def apply(place: Place, sections: Mapping[str, Any], *, new_locks: bool = False) -> None:
    async with plan.naming_changes(place.config(**sections)) as changes:
        for one in await changes.planned():
            await changes.apply(one, new_locks=new_locks)


async def test_rows_keep_the_highest_of_their_fences(place: Place) -> None:
    async with place.gateway() as before:
        for row, token in ((1, 7), (2, 9), (3, 4)):
            answered(await before.patch(row, token), 204)
        await apply(place, BY_ACCOUNT)
        answered(await before.patch(1, 99), 503, "naming-changed")
    assert await place.fences() == {
        "public.orders/1": "7", "public.orders/2": "9", "public.orders/3": "4", "account/10": "9", "account/30": "4",
    }  # fmt: skip
    async with place.gateway(**BY_ACCOUNT) as after:
        answered(await after.patch_account(10, 8), 412, "token-stale")
        answered(await after.patch_account(30, 4), 204)
        assert not await planned(place, BY_ACCOUNT)


async def test_a_running_gateway_serves_the_new_names_at_once(place: Place) -> None:
    async with place.gateway() as before, place.gateway(**BY_ORDER) as after:
        answered(await before.patch(1, 7), 204)
        answered(await after.patch(1, 8), 503, "naming-changed")
        await apply(place, BY_ORDER)
        async with asyncio.timeout(30):
            while (await after.patch(1, 7)).status_code == 503:
                await asyncio.sleep(0.05)
        answered(await after.patch(1, 6), 412, "token-stale")


async def test_fences_of_deleted_rows_are_carried_over_by_their_names(place: Place) -> None:
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
        await send(before.client, "DELETE", "/orders?id=eq.1", token=9)
    [change] = await planned(place, BY_ORDER)
    assert (change.count.carried, change.left) == (1, 0)
    await apply(place, BY_ORDER)
    async with place.gateway(**BY_ORDER) as after:
        late = await send(after.client, "POST", "/orders", {"id": 1, "account": 10}, token=8)
        answered(late, 412, "token-stale")


async def test_what_cannot_be_carried_over_is_not_forgotten_silently(place: Place) -> None:
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
        await send(before.client, "DELETE", "/orders?id=eq.1", token=9)
        answered(await before.patch(2, 5), 204)
    [change] = await planned(place, BY_ACCOUNT)
    assert (change.count.carried, change.left) == (1, 1)
    with pytest.raises(ConfigurationError, match="1 fences have names"):
        await apply(place, BY_ACCOUNT)
    async with place.gateway() as before:
        answered(await before.patch(2, 5), 204)  # nothing was closed


async def test_new_locks_begin_a_new_epoch(place: Place) -> None:
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
    await apply(place, BY_ACCOUNT, new_locks=True)
    async with place.gateway(**BY_ACCOUNT) as after:
        answered(await after.patch_account(10, 99), 412, "token-stale")
        answered(await after.patch_account(30, 99), 412, "token-stale")  # a row that had no fence
        answered(await after.patch_account(10, "1.1"), 204)


async def test_a_token_that_was_issued_counts_as_shown(place: Place) -> None:
    """The new lock must not issue a number that a holder of the old lock already has."""
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
        api = before.origin
        for holder in ("a", "b"):
            response = await before.client.post(f"{api}/v1/leases/public.orders/1", json={"holder": holder, "ttl": 60})
            lease = response.json()
            if holder == "a":
                await before.client.delete(f"{api}/v1/leases/public.orders/1/{lease['lease']}")
        assert lease["token"] == "9"
        [change] = await planned(place, BY_ACCOUNT)
        assert change.holders == {"public.orders/1": "b"}
        await apply(place, BY_ACCOUNT)
    async with place.gateway(**BY_ACCOUNT) as after:
        response = await after.client.post(f"{after.origin}/v1/leases/account/10", json={"holder": "c", "ttl": 60})
        assert response.json()["token"] == "10"
        answered(await after.patch_account(10, 10), 204)
        answered(await after.patch_account(10, 9), 412, "token-stale")


async def test_keys_keep_the_highest_of_their_fences(place: Place) -> None:
    async with place.gateway() as before:
        for key, token in (("10/a", 7), ("10/b", 9), ("20/a", 4), ("plain", 3)):
            assert (await before.put(key, token))[0] == 200
        client = connect(before.origin, "11")
        assert (await outcome(client.delete_object, Bucket="bucket", Key="20/a"))[0] == 204
        await apply(place, KEYS_BY_ACCOUNT)
        assert (await before.put("10/a", 99))[0] == 503
    async with place.gateway(**KEYS_BY_ACCOUNT) as after:
        assert (await after.put("10/a", 8))[0] == 412
        assert (await after.put("10/a", 9, b"new"))[0] == 200
        assert (await after.put("20/a", 10))[0] == 412  # the fence of a deleted key
        assert (await after.put("plain", 2))[0] == 412
    fences = await place.fences()
    assert (fences["account/10"], fences["account/20"], fences["s3/bucket/plain"]) == ("9", "11", "3")


async def test_an_object_write_under_way_is_settled_first(place: Place) -> None:
    """A gateway died after its announcement: its request may still be on its way to the store."""
    async with place.gateway() as before:
        assert (await before.put("10/a", 7))[0] == 200
        etag = (await in_thread(connect(before.origin).head_object, Bucket="bucket", Key="10/a"))["ETag"].strip('"')
    await place.rows(
        """INSERT INTO fencing.intent (resource, bucket, key, write_id, attempt, epoch, value, expected)
        VALUES ('s3/bucket/10/a', 'bucket', '10/a', gen_random_uuid(), 1, 0, 7, $1)""",
        etag,
    )
    [change] = await planned(place, KEYS_BY_ACCOUNT)
    assert change.pending == 1
    await apply(place, KEYS_BY_ACCOUNT)
    assert not await place.rows("SELECT FROM fencing.intent")
    [forbidden] = await place.rows("SELECT resource, etag FROM fencing.forbidden")
    assert tuple(forbidden) == ("account/10", etag)
    async with place.gateway(**KEYS_BY_ACCOUNT) as after:
        state = await in_thread(connect(after.origin).head_object, Bucket="bucket", Key="10/a")
        assert state["ETag"].strip('"') != etag


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("kind", [tables, buckets], ids=["rows", "keys"])
@pytest.mark.parametrize("step", first(["carry_over", "close"]))
async def test_killed_at_any_step_it_goes_on_or_back(
    place: Place, monkeypatch: pytest.MonkeyPatch, kind: ModuleType, step: str
) -> None:
    rules = BY_ACCOUNT if kind is tables else KEYS_BY_ACCOUNT

    async def write(gateway: Gateway, token: int, *, changed: bool) -> int:
        if kind is buckets:
            return (await gateway.put("10/a", token))[0]
        return (await (gateway.patch_account(10, token) if changed else gateway.patch(1, token))).status_code

    async def die() -> None:
        original = getattr(kind, step)

        async def killed(*arguments: Any) -> None:
            if step == "close":
                await original(*arguments)
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(kind, step, killed)
            with pytest.raises(Killed):
                await apply(place, rules)
        for changed in (False, True):
            async with place.gateway(**(rules if changed else {})) as gateway:
                assert await write(gateway, 8, changed=changed) == 503

    async with place.gateway() as before:
        assert await write(before, 7, changed=False) < 300
    await die()
    await apply(place, {})
    async with place.gateway() as back:
        assert await write(back, 6, changed=False) == 412
        assert await write(back, 7, changed=False) < 300
    await die()
    await apply(place, rules)
    async with place.gateway(**rules) as on:
        assert await write(on, 6, changed=True) == 412
        assert await write(on, 7, changed=True) < 300


async def test_a_barrier_beside_the_change_is_before_it_or_after(place: Place) -> None:
    """A barrier that is acknowledged before the new names are in force holds under them."""
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)

        async def barrier() -> bool:
            response = await before.client.post(
                f"{before.origin}/v1/fences/public.orders/1/barrier", json={"token": "9"}
            )
            assert response.status_code == 200, response.text
            return bool(
                await place.rows("SELECT FROM fencing.table_naming WHERE naming ->> 'literals' LIKE '%account%'")
            )

        late, _ = await asyncio.gather(barrier(), apply(place, BY_ACCOUNT))
    if not late:
        assert (await place.fences())["account/10"] == "9"


async def test_a_write_that_has_not_proved_its_naming_is_refused(place: Place) -> None:
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
        holding = await asyncpg.connect(place.dsn)
        async with holding.transaction():
            await holding.execute("SELECT FROM orders WHERE id = 2 FOR UPDATE")
            # In a transaction of its own: a shared one does not wait for so long.
            writing = asyncio.create_task(before.patch(2, 9, "late", "handling=strict, max-affected=1"))
            await place.until(SESSIONS + " AND wait_event_type = 'Lock'")
            applying = asyncio.create_task(apply(place, BY_ACCOUNT))
            await place.until("SELECT FROM fencing.table_naming WHERE change IS NOT NULL")
            assert not applying.done()
        answered(await writing, 503, "naming-changed")
        await applying
        await holding.close()
    assert (await place.fences())["account/10"] == "7"
    assert not await place.rows("SELECT FROM orders WHERE note = 'late'")


async def test_a_write_that_has_proved_its_naming_is_waited_for(place: Place) -> None:
    await place.execute(
        """CREATE FUNCTION linger() RETURNS trigger LANGUAGE plpgsql SET lock_timeout = 0 AS
        $$ BEGIN IF NEW.note = 'slow' THEN PERFORM pg_advisory_xact_lock(1); END IF; RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER linger AFTER UPDATE ON orders DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION linger()"""
    )
    holding = await asyncpg.connect(place.dsn)
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
        async with holding.transaction():
            await holding.execute("SELECT pg_advisory_xact_lock(1)")
            writing = asyncio.create_task(before.patch(2, 9, "slow"))
            await place.until(SESSIONS + " AND wait_event = 'advisory'")
            applying = asyncio.create_task(apply(place, BY_ACCOUNT))
            await place.until(SESSIONS + " AND wait_event_type = 'Lock' OFFSET 1")
            assert not applying.done()
        await applying
        answered(await writing, 204)
    await holding.close()
    assert (await place.fences())["account/10"] == "9"


async def test_a_guard_with_the_old_names_comes_first(place: Place) -> None:
    """It would judge direct sessions by fences that no longer rise."""
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
    settings = place.config()
    owner = settings.model_copy(update={"postgres": settings.postgres.model_copy(update={"dsn": SecretStr(place.dsn)})})
    await installation.install(owner, GuardRequest("public.orders", role=GATEWAY))
    with pytest.raises(ConfigurationError, match=r"its guard names rows public\.orders/\{id\}"):
        await apply(place, BY_ACCOUNT)
    await installation.remove(owner, "public.orders", None)
    await apply(place, BY_ACCOUNT)


async def test_the_doctor_names_the_difference(place: Place) -> None:
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
        assert (await before.put("10/a", 7))[0] == 200
    for sections, names in (({}, ["names"]), ({**BY_ACCOUNT, **KEYS_BY_ACCOUNT}, ["public.orders", "bucket"])):
        report = await examine(place.config(**sections))
        found = [one for section in report.sections for one in section.checks if one.name.startswith("names")]
        assert [one.name.removeprefix("names of ") for one in found] == names
        assert {one.status for one in found} == {CheckStatus.PROBLEM if sections else CheckStatus.OK}


async def test_other_keys_keep_their_epoch(place: Place) -> None:
    async with place.gateway() as before:
        assert (await before.put("10/a", 7))[0] == 200
        assert (await before.put("plain", 3))[0] == 200
    await apply(place, KEYS_BY_ACCOUNT, new_locks=True)
    async with place.gateway(**KEYS_BY_ACCOUNT) as after:
        assert (await after.put("plain", 3))[0] == 200
        assert (await after.put("10/a", 99))[0] == 412
        assert (await after.put("10/a", "1.1"))[0] == 200


async def test_the_commands(place: Place, tmp_path: Path) -> None:
    async with place.gateway() as before:
        answered(await before.patch(1, 7), 204)
    file = tmp_path / "gateway.toml"
    settings = place.config()
    file.write_text(
        f"""[postgres]
dsn = "{settings.postgres.dsn.get_secret_value()}"
[[callers]]
name = "writer"
api_key = "{API_KEY}"
[[tables]]
name = "public.orders"
resource = "account/{{account}}"
"""
    )
    shown = await asyncio.to_thread(called, "naming", "plan", "--config", str(file))
    assert shown.returncode == 1
    for fragment in ("public.orders/{id integer}", "account/{account integer}", "1 fences and locks"):
        assert fragment in shown.stdout
    wrong = await asyncio.to_thread(called, "naming", "apply", "public.nothing", "--config", str(file))
    assert (wrong.returncode, "its naming is the one in force" in wrong.stderr) == (2, True)
    done = await asyncio.to_thread(called, "naming", "apply", "public.orders", "--config", str(file))
    assert done.returncode == 0, done.stderr
    again = await asyncio.to_thread(called, "naming", "plan", "--config", str(file))
    assert (again.returncode, again.stdout) == (0, "The configured names are the ones in force.\n")
    [entry] = await place.rows("SELECT details FROM fencing.record WHERE kind = 'administration'")
    assert '"ApplyNaming"' in entry["details"]
    assert "account/{account integer}" in entry["details"]
