"""Captured payloads, which can be erased without breaking the record, and counts of writes by the minute."""

from alembic import op

revision = "0010"
down_revision = "0009"

TABLES = """
-- What was kept of the payload of a refused write. Its entry in the record has only the length and the SHA-256 of it, so
-- that this can be erased when it must be, and the record stays whole.
CREATE TABLE fencing.payload (
    entry uuid PRIMARY KEY,
    day date NOT NULL DEFAULT (clock_timestamp() AT TIME ZONE 'UTC')::date,
    media_type text NOT NULL,
    body bytea NOT NULL,
    truncated boolean NOT NULL
)
;
CREATE INDEX payload_day ON fencing.payload (day)
;
-- How many writes came to what, by the minute. Each gateway process has rows of its own.
CREATE TABLE fencing.traffic (
    minute timestamptz NOT NULL,
    gateway text NOT NULL,
    plane text NOT NULL,
    rule text NOT NULL,
    accepted bigint NOT NULL,
    refused bigint NOT NULL,
    observed bigint NOT NULL,
    PRIMARY KEY (minute, gateway, plane, rule)
)
"""

# The gateway's role may add payloads, and read them. What goes is old: no argument makes a payload go within a week.
DROP_PAYLOADS = """
CREATE FUNCTION fencing.drop_payloads_v1(p_days integer, p_limit integer) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
    WITH dropped AS (
        DELETE FROM fencing.payload WHERE entry IN (
            SELECT entry FROM fencing.payload
            WHERE day < (clock_timestamp() AT TIME ZONE 'UTC')::date - greatest(p_days, 7)
            LIMIT p_limit
        ) RETURNING 1
    )
    SELECT count(*) FROM dropped
$function$
"""
REVOKE = "REVOKE ALL ON FUNCTION fencing.drop_payloads_v1 FROM PUBLIC"


def upgrade() -> None:
    for statement in (*TABLES.split("\n;\n"), DROP_PAYLOADS, REVOKE):
        op.get_bind().exec_driver_sql(statement)
