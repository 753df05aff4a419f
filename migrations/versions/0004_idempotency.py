"""Answers that are kept by their key, so that a write sent again is not carried out again."""

from alembic import op

revision = "0004"
down_revision = "0003"

TABLES = """
-- The row goes in first and the answer last, in the transaction of the write itself: whoever sees the row sees the answer.
CREATE TABLE fencing.idempotency (
    caller text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- What was asked for, without the token: a retry comes from the next holder as well.
    fingerprint bytea NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    status smallint,
    -- The headers of the answer, as a JSON array of pairs.
    headers text,
    body bytea,
    PRIMARY KEY (caller, key)
)
;
CREATE INDEX idempotency_at ON fencing.idempotency (at)
"""


def upgrade() -> None:
    for statement in TABLES.split("\n;\n"):
        op.get_bind().exec_driver_sql(statement)
