"""Every way to write a table: COPY, MERGE, cascades, partitions, views, other triggers, the log of a replication."""

import pytest

from tests.guard.stage import Session, Stage, hold, refused, session


async def test_copy(guarded: Stage, app: Session) -> None:
    rows = [(10, 5, "a"), (11, 6, "b")]
    async with refused("FN428"):
        await app.copy_records_to_table("shipments", records=rows)
    async with refused("FN422", "touches order/6"), app.transaction():
        await hold(app, "order/5", 34)
        await app.copy_records_to_table("shipments", records=rows)
    async with app.transaction():
        await hold(app, "order/5", 34)
        await hold(app, "order/6", 34)
        await app.copy_records_to_table("shipments", records=rows)
    assert await guarded.rows("SELECT count(*) FROM shipments") == [(6,)]


async def test_merge(guarded: Stage, app: Session) -> None:
    merge = """
        MERGE INTO shipments AS s USING (VALUES (1, 5), (3, 6), (20, 5)) AS v (id, order_id) ON s.id = v.id
        WHEN MATCHED AND s.order_id = 5 THEN DELETE
        WHEN MATCHED THEN UPDATE SET state = 'merged'
        WHEN NOT MATCHED THEN INSERT VALUES (v.id, v.order_id)
    """
    if app.get_server_version() < (15, 0):
        pytest.skip("PostgreSQL has MERGE from 15 on")
    async with refused("FN422", "touches order/6"), app.transaction():
        await hold(app, "order/5", 34)
        await app.execute(merge)
    async with app.transaction():
        await hold(app, "order/5", 34)
        await hold(app, "order/6", 34)
        assert await app.execute(merge) == "MERGE 3"


async def test_cascades(guarded: Stage, app: Session) -> None:
    """A foreign key deletes or changes rows of a guarded table. The guard asks for the token of the causing session."""
    await guarded.execute(f"""
        CREATE TABLE orders (id bigint PRIMARY KEY);
        INSERT INTO orders VALUES (5), (6), (7), (8);
        ALTER TABLE shipments ADD FOREIGN KEY (order_id) REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE;
        GRANT ALL ON orders TO {guarded.app_role};
    """)
    assert await app.execute("DELETE FROM orders WHERE id = 8") == "DELETE 1", "no shipment belongs to it"
    for statement in ("DELETE FROM orders WHERE id = 5", "UPDATE orders SET id = 9 WHERE id = 5"):
        async with refused("FN428", "order/5"):
            await app.execute(statement)
    async with refused("FN422", "order/9"), app.transaction():
        await hold(app, "order/5", 34)
        await app.execute("UPDATE orders SET id = 9 WHERE id = 5")
    async with app.transaction():
        await hold(app, "order/5", 34)
        await app.execute("DELETE FROM orders WHERE id = 5")
    assert await guarded.rows("SELECT FROM shipments WHERE order_id = 5") == []


async def test_what_other_triggers_make_of_a_row_is_what_counts(guarded: Stage, app: Session) -> None:
    await guarded.execute("""
        CREATE FUNCTION moves() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN NEW.order_id := 6; RETURN NEW; END';
        CREATE TRIGGER zz_moves BEFORE INSERT OR UPDATE ON shipments FOR EACH ROW EXECUTE FUNCTION moves();
    """)
    for statement in ("UPDATE shipments SET state = 'x' WHERE id = 1", "INSERT INTO shipments VALUES (9, 5)"):
        async with refused("FN422", "touches order/6"), app.transaction():
            await hold(app, "order/5", 34)
            await app.execute(statement)


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
    async with app.transaction():
        await hold(app, "order/5", 34)
        await app.execute("INSERT INTO arrivals VALUES (1)")
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
    async with app.transaction():
        await hold(app, "public.lots/a.1", 1)
        await app.execute("INSERT INTO some_lots VALUES ('a', 1)")
    async with refused("FN422", "public.lots/a.2"), app.transaction():
        await hold(app, "public.lots/a.1", 1)
        await app.execute("UPDATE some_lots SET part = 2")


@pytest.fixture
async def events(stage: Stage) -> Stage:
    """A guarded table in partitions, one of which is partitioned itself."""
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
    return stage


async def test_partitions(events: Stage, app: Session) -> None:
    first, second = "public.events/2024-01-05/1", "public.events/2024-02-05/2"
    for relation in ("events", "events_2", "events_2_0"):
        async with refused("FN428", second):
            await app.execute(f"UPDATE {relation} SET v = 'x' WHERE id = 2")
        async with refused("FN422", "touches every row"):
            await app.execute(f"TRUNCATE {relation}")
        async with refused("FN428", "had not been claimed"), app.transaction():
            await app.execute(f"SET LOCAL fencing.resource = '{first}'; SET LOCAL fencing.token = '1'")
            await app.execute(f"UPDATE {relation} SET v = 'x' WHERE id = 99")
    moved = "public.events/2024-02-05/1"
    async with refused("FN422", moved), app.transaction():
        await hold(app, first, 1)
        await app.execute("UPDATE events SET day = '2024-02-05' WHERE id = 1")
    async with app.transaction():
        await hold(app, first, 1)
        await hold(app, moved, 1)
        await app.execute("UPDATE events SET day = '2024-02-05' WHERE id = 1")
    async with session(events.gateway) as gateway:
        await events.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {events.gateway_role}")
        assert await gateway.execute("DELETE FROM events") == "DELETE 2"


async def test_a_partition_that_comes_later_has_its_rows_checked(events: Stage, app: Session) -> None:
    await events.execute(f"""
        CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM ('2024-03-01') TO ('2024-04-01');
        GRANT ALL ON events_3 TO {events.app_role};
    """)
    async with refused("FN428"):
        await app.execute("INSERT INTO events_3 VALUES (3, '2024-03-05', 'c')")


async def test_rows_that_a_replication_applies_pass(guarded: Stage) -> None:
    """They have been checked where they come from; a session that says so is a superuser's."""
    async with session(guarded.owner) as owner:
        await owner.execute("SET session_replication_role = replica")
        assert await owner.execute("UPDATE shipments SET state = 'applied'") == "UPDATE 4"
    async with session(guarded.app) as app, refused("42501"):
        await app.execute("SET session_replication_role = replica")


async def test_the_hint_names_what_is_held(guarded: Stage, app: Session) -> None:
    """At most three names, because a session may hold many."""
    for count, held in ((1, "You hold job/0."), (5, "You hold job/0, job/1, job/2 and 2 more.")):
        async with refused("FN422") as refusal, app.transaction():
            for number in range(count):
                await hold(app, f"job/{number}", 5)
            await app.execute("UPDATE shipments SET state = 'sent'")
        assert refusal.hint.endswith(held)
