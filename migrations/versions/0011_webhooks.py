"""Who is told of the record, and how far: a position for each webhook, a window for each alarm.

The record is a log, so that an outbox is a position in it: nothing is copied for anybody, and putting an entry on record
costs the same however many are told of it.
"""

from alembic import op

revision = "0011"
down_revision = "0010"

TABLES = """
CREATE TABLE fencing.webhook (
    name text COLLATE "C" PRIMARY KEY,
    -- Everything up to here has been received, or was not for it. Never goes back.
    position bigint NOT NULL,
    -- The day of that entry, by which the partitions before are left out.
    day date NOT NULL,
    -- The last entry of the message that is being sent, or was when it failed: sent again, it is the same message.
    sending bigint,
    failures integer NOT NULL DEFAULT 0,
    failing_since timestamptz,
    last_error text,
    not_before timestamptz,
    -- The receiver has said that it is gone: nothing is sent until a test message is accepted.
    paused_at timestamptz,
    delivered_at timestamptz,
    -- The gateway that delivers, and until when nobody else does. By this clock, and never a lock: HTTP takes its time.
    owner uuid,
    owned_until timestamptz
) WITH (fillfactor = 70)
;
CREATE TABLE fencing.alarm (
    name text COLLATE "C" PRIMARY KEY,
    position bigint NOT NULL,
    day date NOT NULL,
    -- The rule that the window was counted by: with another one it begins anew.
    prefix text NOT NULL,
    minutes integer NOT NULL,
    -- The window as of its end: how many in which of its steps.
    moment timestamptz NOT NULL,
    counts jsonb NOT NULL,
    -- Since when it is on, and what it has counted; the entry that says so.
    since timestamptz,
    total bigint NOT NULL DEFAULT 0,
    raised uuid
) WITH (fillfactor = 70)
"""


def upgrade() -> None:
    """Two small tables, one row for each name of the configuration. Never cleared away: there are as many as names."""
    for statement in TABLES.split("\n;\n"):
        op.execute(statement)
