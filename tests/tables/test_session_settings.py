"""Code in the database may change settings, but resource names are made with those of the gateway."""

import pytest

from gateway.db.database import SHARED_SESSIONS, Database
from tests.tables.asking import Send, answered, change, row, rows

MOMENT = "2024-01-02 03:00:00+00"
NAME = "public.moments/2024-01-02%2003:00:00+00"
LASTING = """
    PERFORM set_config('TimeZone', 'Asia/Tokyo', false), set_config('DateStyle', 'German', false),
        set_config('bytea_output', 'escape', false), set_config('synchronous_commit', 'off', false),
        set_config('search_path', 'fencing', false), set_config('lock_timeout', '7', false);
"""
SETTINGS = ("TimeZone", "DateStyle", "bytea_output", "synchronous_commit", "search_path", "lock_timeout")
PINNED = f"SELECT {', '.join(f'current_setting($${name}$$)' for name in SETTINGS)}"
TABLES = f"""
CREATE TABLE moments (at timestamptz PRIMARY KEY, v int);
INSERT INTO moments VALUES ('{MOMENT}', 0);
CREATE FUNCTION careless() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {LASTING} RETURN NEW; END$$;
CREATE FUNCTION lasting() RETURNS int LANGUAGE plpgsql AS $$BEGIN {LASTING} RETURN 1; END$$;
"""
CARELESS = {
    "a trigger before a row": "CREATE TRIGGER t BEFORE UPDATE ON settings FOR EACH ROW EXECUTE FUNCTION careless()",
    "a trigger after a row": "CREATE TRIGGER t AFTER UPDATE ON settings FOR EACH ROW EXECUTE FUNCTION careless()",
    "a trigger after a statement": "CREATE TRIGGER t AFTER UPDATE ON settings EXECUTE FUNCTION careless()",
    "a trigger at the end of the transaction": (
        "CREATE CONSTRAINT TRIGGER t AFTER UPDATE ON settings DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION careless()"
    ),
    "a partition's trigger": (
        "DROP TABLE settings; CREATE TABLE settings (name text PRIMARY KEY, value text) PARTITION BY LIST (name); "
        "CREATE TABLE one PARTITION OF settings DEFAULT; INSERT INTO settings VALUES ('colour', 'red'); "
        "CREATE TRIGGER t AFTER UPDATE ON one FOR EACH ROW EXECUTE FUNCTION careless()"
    ),
    "a view": ("ALTER TABLE settings RENAME TO below; CREATE VIEW settings AS SELECT * FROM below WHERE lasting() = 1"),
}


@pytest.fixture
async def tables(tables: Database) -> Database:
    await change(tables, TABLES)
    return tables


@pytest.mark.thorough
@pytest.mark.parametrize("code", CARELESS)
async def test_settings_of_code_end_with_its_write(write: Send, tables: Database, code: str) -> None:
    await change(tables, CARELESS[code])
    pinned = await rows(tables, PINNED)
    target = f"/moments?at=eq.{MOMENT.replace('+', '%2B')}"
    # With one token, so that all but the first could take the fast path.
    for _ in range(SHARED_SESSIONS + 1):
        answered(await write("PATCH", "/settings?name=eq.colour", {"value": "x"}, token=5), 204)
        assert await rows(tables, PINNED) == pinned
        answer = await write("PATCH", target, {"v": 1}, token=5)
        answered(answer, 204)
        assert answer.headers["fencing-resource"] == NAME


async def test_unknown_code_that_changes_settings_costs_the_session(write: Send, tables: Database) -> None:
    """A default is no trigger, and may call anything all the same."""
    await change(tables, "ALTER TABLE shipments ALTER state SET DEFAULT 'new' || public.lasting()")
    for _ in range(SHARED_SESSIONS + 1):
        answered(await write("POST", "/shipments", {"order_id": 7}, token=5), 201)
        assert (await row(tables, "SELECT current_setting('TimeZone')"))[0] == "UTC"
        answered(await write("PATCH", f"/moments?at=eq.{MOMENT.replace('+', '%2B')}", {"v": 1}, token=5), 204)
