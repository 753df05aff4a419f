"""The snapshot of the database's catalog has what the table plane needs."""

import pytest

from gateway.db import catalog
from gateway.db.database import Database
from gateway.tables.catalog.references import Graph
from gateway.tables.catalog.snapshot import ForeignKey, Snapshot, Table, Trigger

DDL = """
CREATE SCHEMA shop; CREATE SCHEMA hidden;
CREATE TYPE shop.state AS ENUM ('new', 'sent');
CREATE TABLE shop.orders (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, region int NOT NULL, state shop.state DEFAULT 'new',
    parent bigint REFERENCES shop.orders ON DELETE SET NULL, twice bigint GENERATED ALWAYS AS (region * 2) STORED,
    UNIQUE (id, region)
);
COMMENT ON TABLE shop.orders IS 'What was ordered';
COMMENT ON COLUMN shop.orders.state IS 'How far it is';
CREATE TABLE shop.items (
    id bigint PRIMARY KEY, order_id bigint, region int,
    CONSTRAINT of_order FOREIGN KEY (region, order_id) REFERENCES shop.orders (region, id) ON UPDATE CASCADE
);
CREATE TABLE shop.bills (order_id bigint PRIMARY KEY REFERENCES shop.orders);
CREATE TABLE hidden.parcels (order_id bigint PRIMARY KEY REFERENCES shop.orders ON DELETE CASCADE);
CREATE TABLE shop.labels (id int PRIMARY KEY, parcel bigint REFERENCES hidden.parcels ON DELETE CASCADE);
CREATE TABLE shop.logs (id int, day date, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE shop.logs_1 PARTITION OF shop.logs FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE shop.notes (id int PRIMARY KEY, log int, day date,
    FOREIGN KEY (log, day) REFERENCES shop.logs ON DELETE CASCADE);
CREATE VIEW shop.recent AS SELECT id, state FROM shop.orders;
CREATE VIEW shop.counted AS SELECT count(*) AS n FROM shop.orders;
CREATE FUNCTION shop.loud() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.region := 1; RETURN NEW; END';
CREATE FUNCTION shop.busy() RETURNS trigger LANGUAGE plpgsql AS
    'BEGIN INSERT INTO hidden.parcels VALUES (1); RETURN NEW; END';
CREATE FUNCTION fencing.look() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER a_loud BEFORE INSERT ON shop.items FOR EACH ROW EXECUTE FUNCTION shop.loud();
CREATE TRIGGER b_busy AFTER UPDATE ON shop.items FOR EACH STATEMENT EXECUTE FUNCTION shop.busy();
CREATE TRIGGER c_off AFTER UPDATE ON shop.items FOR EACH ROW EXECUTE FUNCTION shop.busy();
ALTER TABLE shop.items DISABLE TRIGGER c_off;
CREATE TRIGGER d_look BEFORE INSERT ON shop.bills FOR EACH STATEMENT EXECUTE FUNCTION fencing.look();
CREATE TRIGGER e_emptied AFTER TRUNCATE ON shop.bills FOR EACH STATEMENT EXECUTE FUNCTION shop.busy();
CREATE RULE also AS ON DELETE TO shop.notes DO ALSO SELECT 1;
ALTER TABLE shop.notes ENABLE ROW LEVEL SECURITY;
"""


@pytest.fixture
async def shop(database: Database) -> dict[str, Table]:
    await database.run(lambda transaction: transaction.execute(DDL))
    snapshot = Snapshot.from_rows(await catalog.relations(database, ["shop"]), await catalog.references(database))
    assert {schema for schema, _ in snapshot.tables} == {"shop"}
    found = {name: table for (_, name), table in snapshot.tables.items()}
    references(snapshot.graph, found)
    return found


async def test_a_snapshot_has_all_of_the_catalog(shop: dict[str, Table]) -> None:
    """One test, because each database costs more than what is looked at in it."""
    orders, items = shop["orders"], shop["items"]
    columns(orders)
    keys(shop)
    loud, busy = (
        "BEGIN NEW.region := 1; RETURN NEW; END",
        "BEGIN INSERT INTO hidden.parcels VALUES (1); RETURN NEW; END",
    )
    assert items.triggers == (
        Trigger("a_loud", "before", each_row=True, writes=False, events=("insert",), source=loud),
        Trigger("b_busy", "after", each_row=False, writes=True, events=("update",), source=busy),
    )
    assert (items.has_statement_triggers, items.has_row_triggers) == (True, True)
    assert (orders.has_statement_triggers, orders.has_row_triggers) == (False, False)
    assert shop["bills"].triggers == ()
    (also,) = shop["notes"].rules
    assert (also.name, also.events, "DO  SELECT 1" in also.source) == ("also", ("delete",), True)
    assert (shop["notes"].has_rules, shop["notes"].row_security) == (True, True)
    logs = shop["logs"]
    assert (logs.kind, logs.children, logs.has_row_triggers) == ("p", (("shop", "logs_1"),), True)
    views = shop["recent"], shop["counted"]
    assert [(view.insertable, view.changeable, view.deletable) for view in views] == [(True,) * 3, (False,) * 3]
    assert all(view.runs_code_when_read and view.has_statement_triggers for view in views)
    assert not orders.runs_code_when_read


def references(graph: Graph, shop: dict[str, Table]) -> None:
    def referring(table: Table) -> list[tuple[str, str, str, str]]:
        found = graph.referring_to(table.oid)
        return sorted((one.name, one.source.name, one.on_delete, one.on_update) for one in found)

    orders = [
        ("of_order", "items", "a", "c"), ("orders_parent_fkey", "orders", "n", "a"),
        ("parcels_order_id_fkey", "parcels", "c", "a"),
    ]  # fmt: skip
    assert referring(shop["orders"]) == orders
    (of_order,) = (one for one in graph.references if one.name == "of_order")
    assert (of_order.columns, of_order.target_columns) == (("region", "order_id"), ("region", "id"))
    assert (of_order.operators[0], of_order.collations) == ("OPERATOR(pg_catalog.=)", (None, None))
    assert referring(shop["logs"]) == [("notes_log_day_fkey", "notes", "c", "a")], "once, not for each partition"
    assert [source for _, source, *_ in referring(shop["logs_1"])] == ["notes"]
    assert graph.family(shop["logs"].oid) == [shop["logs"].oid, shop["logs_1"].oid]
    assert referring(shop["recent"]) == orders, "a view writes the table behind it"
    (labels,) = (one for one in graph.references if one.source.name == "labels")
    assert labels.target.schema == "hidden"


def columns(orders: Table) -> None:
    assert (orders.description, orders.columns["state"].description) == ("What was ordered", "How far it is")
    assert [name for name, column in orders.columns.items() if column.nullable] == ["state", "parent", "twice"]
    state = orders.columns["state"]
    assert (state.type, state.default, state.is_enum) == ("shop.state", "'new'::shop.state", True)
    assert orders.columns["id"].default == "nextval('shop.orders_id_seq'::regclass)"
    assert orders.columns["twice"].generated


def keys(shop: dict[str, Table]) -> None:
    orders, items = shop["orders"], shop["items"]
    assert (orders.primary_key, orders.unique_keys) == (("id",), (("id", "region"),))
    assert orders.oid
    assert orders.primary_key_index
    assert items.foreign_keys == (
        ForeignKey("of_order", ("region", "order_id"), "shop", "orders", ("region", "id"), unique=False),
    )
    (bill,) = shop["bills"].foreign_keys
    assert (bill.unique, bill.target_table) == (True, "orders")
    assert [(key.name, key.target_table) for key in shop["notes"].foreign_keys] == [("notes_log_day_fkey", "logs")]
    assert [key.target_schema for key in shop["labels"].foreign_keys] == ["hidden"]
