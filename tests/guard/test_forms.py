"""Every way to write a guarded table, and ways past its triggers: each is checked, refused, or does not exist."""

import asyncio

import asyncpg
import pytest

from gateway.errors import ConfigurationError
from gateway.findings import CheckStatus
from gateway.guard.installation import examine_guards
from tests.guard.stage import Session, Stage, declare_and_write, hold, hold_and_write, refused, session
from tests.tiers import first


async def test_what_other_triggers_make_of_a_row_is_what_counts(guarded: Stage, app: Session) -> None:
    await guarded.execute("""
        CREATE FUNCTION moves() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN NEW.order_id := 6; RETURN NEW; END';
        CREATE TRIGGER zz_moves BEFORE INSERT OR UPDATE ON shipments FOR EACH ROW EXECUTE FUNCTION moves();
    """)
    for statement in ("UPDATE shipments SET state = 'x' WHERE id = 1", "INSERT INTO shipments VALUES (9, 5)"):
        async with refused("FN422", "touches order/6"):
            await hold_and_write(app, statement, ("order/5", 34))


async def test_what_triggers_of_other_tables_write_is_checked(guarded: Stage, app: Session) -> None:
    await guarded.execute(f"""
        CREATE TABLE arrivals (shipment bigint);
        CREATE FUNCTION arrive() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS
            'BEGIN UPDATE shipments SET state = ''there'' WHERE id = NEW.shipment; RETURN NEW; END';
        CREATE CONSTRAINT TRIGGER arrive AFTER INSERT ON arrivals DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW EXECUTE FUNCTION arrive();
        GRANT ALL ON arrivals TO {guarded.app_role};
    """)
    async with refused("FN428", "order/5"):
        await app.execute("INSERT INTO arrivals VALUES (1)")
    await hold_and_write(app, "INSERT INTO arrivals VALUES (1)", ("order/5", 34))
    assert await guarded.rows("SELECT state FROM shipments WHERE id = 1") == [("there",)]


async def test_views_and_generated_columns(stage: Stage, app: Session) -> None:
    await stage.execute(f"""
        CREATE TABLE lots (number text, part bigint,
            key text PRIMARY KEY GENERATED ALWAYS AS (number || '.' || part) STORED);
        CREATE VIEW some_lots AS SELECT * FROM lots WHERE part > 0;
        GRANT ALL ON lots, some_lots TO {stage.app_role};
    """)
    await stage.install("lots")
    async with refused("FN428", "public.lots/a.1"):
        await app.execute("INSERT INTO some_lots VALUES ('a', 1)")
    await hold_and_write(app, "INSERT INTO some_lots VALUES ('a', 1)", ("public.lots/a.1", 1))
    async with refused("FN422", "public.lots/a.2"):
        await hold_and_write(app, "UPDATE some_lots SET part = 2", ("public.lots/a.1", 1))


async def test_partitions(stage: Stage, app: Session) -> None:
    """One of them is partitioned itself, and one comes after the guard."""
    await stage.execute(f"""
        CREATE TABLE events (id bigint, day date, v text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
        CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
        CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')
            PARTITION BY HASH (id);
        CREATE TABLE events_2_0 (v text, id bigint NOT NULL, day date NOT NULL);
        ALTER TABLE events_2 ATTACH PARTITION events_2_0 FOR VALUES WITH (MODULUS 1, REMAINDER 0);
        INSERT INTO events VALUES (1, '2024-01-05', 'a'), (2, '2024-02-05', 'b');
        GRANT ALL ON ALL TABLES IN SCHEMA public TO {stage.app_role};
    """)
    await stage.install("events")
    await stage.install("events")
    first, second = "public.events/2024-01-05/1", "public.events/2024-02-05/2"
    for relation in ("events", "events_2", "events_2_0"):
        async with refused("FN428", second):
            await app.execute(f"UPDATE {relation} SET v = 'x' WHERE id = 2")
        async with refused("FN422", "touches every row"):
            await app.execute(f"TRUNCATE {relation}")
        async with refused("FN428", "had not been claimed"):
            await declare_and_write(app, f"UPDATE {relation} SET v = 'x' WHERE id = 99", first, 1)
    moved = "public.events/2024-02-05/1"
    async with refused("FN422", moved):
        await hold_and_write(app, "UPDATE events SET day = '2024-02-05' WHERE id = 1", (first, 1))
    await hold_and_write(app, "UPDATE events SET day = '2024-02-05' WHERE id = 1", (first, 1), (moved, 1))
    async with session(stage.gateway) as gateway:
        await stage.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {stage.gateway_role}")
        assert await gateway.execute("DELETE FROM events") == "DELETE 2"
    await stage.execute(f"""
        CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM ('2024-03-01') TO ('2024-04-01');
        GRANT ALL ON events_3 TO {stage.app_role};
    """)
    async with refused("FN428"):
        await app.execute("INSERT INTO events_3 VALUES (3, '2024-03-05', 'c')")


async def test_the_hint_names_what_is_held(guarded: Stage, app: Session) -> None:
    """At most three names, because a session may hold many."""
    for count, held in ((1, "You hold job/0."), (5, "You hold job/0, job/1, job/2 and 2 more.")):
        async with refused("FN422") as refusal, app.transaction():
            for number in range(count):
                await hold(app, f"job/{number}", 5)
            await app.execute("UPDATE shipments SET state = 'sent'")
        assert refusal.hint.endswith(held)


# Ways past the triggers of a table whose rows are checked by the statement: each is refused, or does not exist.


ALL = "SELECT id, order_id, state FROM shipments ORDER BY 1"


async def test_a_guarded_table_gets_no_parent(guarded: Stage, app: Session) -> None:
    """Writes through a parent would fire only the parent's triggers for statements."""
    await guarded.execute("""
        CREATE TABLE parent (LIKE shipments);
        CREATE TABLE whole (LIKE shipments) PARTITION BY LIST (order_id);
    """)
    for statement in ("ALTER TABLE shipments INHERIT parent", "ALTER TABLE whole ATTACH PARTITION shipments DEFAULT"):
        with pytest.raises(asyncpg.PostgresError, match="fencing_guard_"):
            await guarded.execute(statement)


async def test_a_table_with_a_parent_is_checked_row_by_row(stage: Stage, app: Session) -> None:
    await stage.execute(f"""
        CREATE TABLE parent (LIKE shipments);
        ALTER TABLE shipments INHERIT parent;
        GRANT ALL ON parent TO {stage.app_role};
    """)
    await stage.install("shipments")
    async with refused("FN428"):
        await app.execute("UPDATE parent SET state = 'sent' WHERE order_id = 5")
    async with app.transaction():
        await hold(app, "order/5", 34)
        assert await app.execute("UPDATE parent SET state = 'sent' WHERE order_id = 5") == "UPDATE 2"
        async with refused("FN422", "order/6"), app.transaction():
            await app.execute("UPDATE parent SET state = 'sent'")


async def test_a_child_that_comes_later_is_seen_through_the_table_and_reported(guarded: Stage, app: Session) -> None:
    """The guard sees what is written through the table. Writes of the child itself pass by."""
    await guarded.execute(f"""
        CREATE TABLE child () INHERITS (shipments);
        INSERT INTO child VALUES (80, 6);
        GRANT ALL ON child TO {guarded.app_role};
    """)
    async with refused("FN422", "touches order/6"):
        await hold_and_write(app, "UPDATE shipments SET state = 'x' WHERE id = 80", ("order/5", 34))
    check, _ = await examine_guards(guarded.config().default)
    assert check.status is CheckStatus.PROBLEM
    assert "fencing_guard_row on child" in check.detail


async def test_names_from_values_that_triggers_do_not_see_are_refused(stage: Stage, app: Session) -> None:
    if app.get_server_version().major < 18:
        pytest.skip("PostgreSQL has virtual columns from 18 on")
    await stage.execute("""
        ALTER TABLE shipments DROP COLUMN order_id;
        ALTER TABLE shipments ADD order_id bigint GENERATED ALWAYS AS (id + 1) VIRTUAL;
    """)
    with pytest.raises(ConfigurationError, match="The column order_id is generated and virtual"):
        await stage.install("shipments")


async def test_settings_that_change_while_a_statement_runs_are_checked_again(guarded: Stage, app: Session) -> None:
    """A statement may change them between the check before its first row and the one after its last."""
    await hold(app, "order/5", 34)
    await hold(app, "order/6", 1)
    before = await guarded.rows(ALL)
    for resource, token, sqlstate in (("order/6", "2", "FN428"), ("order/6", "0", "FN412"), ("order/7", "34", "FN422")):
        async with refused(sqlstate), app.transaction():
            await app.execute("SET LOCAL fencing.resource = 'order/5'; SET LOCAL fencing.token = '34'")
            await app.execute(
                "UPDATE shipments SET state = set_config('fencing.resource', $1, true) "
                "|| set_config('fencing.token', $2, true) WHERE order_id = 6",
                resource, token,
            )  # fmt: skip
    assert await guarded.rows(ALL) == before


async def test_a_statement_that_ends_with_other_settings_than_its_rows_is_refused(guarded: Stage, app: Session) -> None:
    await hold(app, "order/5", 34)
    await hold(app, "order/6", 1)
    async with refused("FN422", "touches order/6"), app.transaction():
        await app.execute("SET LOCAL fencing.resource = 'order/6'; SET LOCAL fencing.token = '1'")
        await app.execute("""
            WITH written AS (UPDATE shipments SET state = 'x' WHERE order_id = 6 RETURNING id)
            SELECT set_config('fencing.resource', 'order/5', true), set_config('fencing.token', '34', true) FROM written
        """)


async def test_a_savepoint_gives_back_the_claim_and_its_lock(guarded: Stage, app: Session, other: Session) -> None:
    await hold(app, "order/5", 34)
    transaction = app.transaction()
    await transaction.start()
    savepoint = app.transaction()
    await savepoint.start()
    await hold(app, "order/5", 34)
    await app.execute("UPDATE shipments SET state = 'taken back' WHERE id = 1")
    await savepoint.rollback()
    await hold(other, "order/5", 35, "bob")
    # The text of what was held there, set again by hand.
    await app.execute("""SET LOCAL fencing.held = '{"order/5": {"token": "34", "holder": null}}'""")
    async with refused("FN412", "overtaken by 35"):
        await app.execute("UPDATE shipments SET state = 'late' WHERE id = 1")
    await transaction.rollback()
    assert await guarded.rows("SELECT state FROM shipments WHERE id = 1") == [("new",)]


async def test_rows_that_go_by_a_deferred_constraint_or_a_cascade_are_checked(stage: Stage, app: Session) -> None:
    await stage.execute(f"""
        CREATE TABLE orders (id bigint PRIMARY KEY);
        INSERT INTO orders VALUES (5), (6), (7);
        ALTER TABLE shipments ADD FOREIGN KEY (order_id) REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE
            DEFERRABLE INITIALLY DEFERRED;
        GRANT ALL ON orders TO {stage.app_role};
    """)
    await stage.install("shipments")
    before = await stage.rows(ALL)
    for statement in ("DELETE FROM orders WHERE id = 6", "UPDATE orders SET id = 60 WHERE id = 6"):
        async with refused("FN422", "order/6"):
            await hold_and_write(app, statement, ("order/5", 34))
    async with refused("FN422"):
        await hold_and_write(app, "TRUNCATE orders CASCADE", ("order/5", 34))
    assert await stage.rows(ALL) == before
    await hold_and_write(app, "DELETE FROM orders WHERE id = 5", ("order/5", 34))
    assert await stage.rows("SELECT count(*) FROM shipments") == [(2,)]


OF_ANOTHER = [
    (
        "MERGE INTO shipments s USING (VALUES (1, 5), (9, 6)) AS v (id, o) ON s.id = v.id "
        "WHEN MATCHED THEN UPDATE SET state = 'x' WHEN NOT MATCHED THEN INSERT (id, order_id) VALUES (v.id, v.o)"
    ),
    "MERGE INTO shipments s USING (VALUES (1), (3)) AS v (id) ON s.id = v.id WHEN MATCHED THEN DELETE",
    "INSERT INTO shipments VALUES (1, 5), (3, 5) ON CONFLICT (id) DO UPDATE SET state = 'x'",
    "WITH a AS (UPDATE shipments SET state = 'x' WHERE id = 1), b AS (DELETE FROM shipments WHERE id = 3) SELECT 1",
    "UPDATE shipments SET order_id = 5 WHERE order_id = 6",
    "UPDATE shipments SET order_id = 6 WHERE id = 1",
    "DELETE FROM shipments WHERE order_id IN (5, 6)",
    "INSERT INTO shipments VALUES (9, 6)",
]


async def test_one_row_of_another_resource_refuses_the_statement(
    guarded: Stage, app: Session, subtests: pytest.Subtests
) -> None:
    before = await guarded.rows(ALL)
    for statement in OF_ANOTHER:
        if statement.startswith("MERGE") and app.get_server_version().major < 15:
            continue
        with subtests.test(statement=statement):
            async with refused("FN422", "touches order/6"):
                await hold_and_write(app, statement, ("order/5", 34))
            assert await guarded.rows(ALL) == before


@pytest.mark.parametrize(
    "statement",
    first(
        [
            "UPDATE shipments SET order_id = 5 WHERE id = 1",
            "DELETE FROM shipments WHERE id = 1",
            "INSERT INTO shipments VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET order_id = 5",
            "MERGE INTO shipments s USING (VALUES (1)) AS v (id) ON s.id = v.id WHEN MATCHED THEN DELETE",
        ]
    ),
)
async def test_a_row_that_moves_while_a_statement_waits_for_it_is_checked_where_it_is(
    guarded: Stage, app: Session, other: Session, statement: str
) -> None:
    """The statement has found the row by its old snapshot. It writes the newest version, under another name."""
    if statement.startswith("MERGE") and app.get_server_version().major < 15:
        pytest.skip("PostgreSQL has MERGE from 15 on")
    await hold(app, "order/5", 34)
    async with asyncio.TaskGroup() as tasks, other.transaction():
        await hold(other, "order/5", 34)
        await hold(other, "order/6", 1)
        await other.execute("UPDATE shipments SET order_id = 6 WHERE id = 1")

        async def late() -> None:
            async with refused("FN422", "touches order/6"):
                await hold_and_write(app, statement, ("order/5", 34))

        waiter = tasks.create_task(late())
        await asyncio.sleep(0.2)
        assert not waiter.done()
    assert await guarded.rows("SELECT order_id FROM shipments WHERE id = 1") == [(6,)]


async def test_a_copy_of_many_rows_is_checked(guarded: Stage, app: Session) -> None:
    rows = [(number, 5, "copied") for number in range(100, 1100)]
    async with refused("FN428"):
        await app.copy_records_to_table("shipments", records=rows)
    async with app.transaction():
        await hold(app, "order/5", 34)
        await app.copy_records_to_table("shipments", records=rows)
    async with refused("FN422", "touches order/6"), app.transaction():
        await hold(app, "order/5", 34)
        await app.copy_records_to_table("shipments", records=[(2000, 5, "x"), (2001, 6, "x")])
    assert await guarded.rows("SELECT count(*) FROM shipments WHERE state = 'copied'") == [(1000,)]


async def test_columns_and_tables_named_like_ours_stay_theirs(stage: Stage, app: Session) -> None:
    await stage.execute(f"""
        CREATE TABLE fencing_new (part1 bigint, observes text, fencing_old bigint, PRIMARY KEY (part1, observes));
        GRANT ALL ON fencing_new TO {stage.app_role};
    """)
    await stage.install("fencing_new")
    async with app.transaction():
        await hold(app, "public.fencing_new/1/a", 34)
        await app.execute("INSERT INTO fencing_new VALUES (1, 'a', 1)")
        await app.execute("UPDATE fencing_new SET fencing_old = 2")
    async with refused("FN422", "public.fencing_new/1/b"):
        await hold_and_write(app, "UPDATE fencing_new SET observes = 'b'", ("public.fencing_new/1/a", 34))
    async with refused("FN428"):
        await app.execute("DELETE FROM fencing_new")
