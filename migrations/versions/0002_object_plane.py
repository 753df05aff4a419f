"""Every way to write an object: mutations that carry no condition, uploads in parts, tombstones on a list, the record
of bucket administration.

A gateway of the revision before would settle the new kinds of intents wrongly. So the functions it announces with and
takes over with go, and it fails closed until it is replaced.
"""

from alembic import op

revision = "0002"
down_revision = "0001"

TABLES = """
-- How the mutation is made unable to take effect: see gateway.fencing.intent.Kind.
ALTER TABLE fencing.intent
    ADD COLUMN kind text NOT NULL DEFAULT 'conditional' CHECK (kind IN ('conditional', 'upload', 'amendment')),
    -- The multipart upload that a mutation of kind 'upload' completes.
    ADD COLUMN upload_id text CHECK ((upload_id IS NOT NULL) = (kind = 'upload')),
    -- So long after signed_at, by the store's clock, the store has refused the mutation if it has not arrived.
    ADD COLUMN dead_after interval NOT NULL DEFAULT interval '30 minutes'
;
-- A multipart upload that was opened through the gateway, and not completed or given up yet as far as is known.
CREATE TABLE fencing.upload (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    upload_id text COLLATE "C" NOT NULL,
    -- Stands in the metadata of the object the upload will be.
    write_id uuid NOT NULL,
    -- What was presented when it was opened: valid for its parts and its completion, if those present nothing.
    epoch integer,
    value bigint,
    holder text,
    caller text NOT NULL,
    -- Opened by the gateway itself, to take in one large body: nobody else knows of it, and nobody else cleans it up.
    staged boolean NOT NULL,
    touched_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at timestamptz,
    PRIMARY KEY (resource, bucket, key, upload_id)
)
;
CREATE INDEX upload_touched ON fencing.upload (touched_at)
;
CREATE INDEX upload_staged ON fencing.upload (bucket, key) WHERE staged
;
-- Keys at which a tombstone may stand. A row comes before its tombstone and goes after it, so none is ever missed.
CREATE TABLE fencing.tombstone (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- When it was listed, or the sweeper has taken it up last.
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (resource, bucket, key)
)
;
CREATE INDEX tombstone_listed ON fencing.tombstone (bucket, key)
;
CREATE INDEX tombstone_at ON fencing.tombstone (at)
;
-- Who changed a bucket and its settings. Written before the store is asked.
CREATE TABLE fencing.administration (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    caller text NOT NULL,
    operation text NOT NULL,
    bucket text NOT NULL,
    target text NOT NULL,
    client text,
    request_id text NOT NULL
)
"""

# Announce an S3 mutation: claim, and write the intent down unless something must be settled before. It is conditioned
# on what its sender has seen at the key (p_looked), else on what is remembered of it, else on absence.
# In observe mode whatever the fence says is returned but not obeyed; such a write counts as the fence's own token, so
# that the next holder settles it like any other. A null token is possible there only.
BEGIN = """
CREATE FUNCTION fencing.begin_v2(
    p_resource text, p_epoch integer, p_value bigint, p_holder text, p_caller text, p_strict boolean,
    p_observe boolean, p_bucket text, p_key text, p_write_id uuid, p_attempt integer,
    p_looked boolean, p_etag text, p_tombstone boolean,
    p_kind text, p_upload_id text, p_dead_after interval, p_entombs boolean, p_store_time timestamptz,
    OUT decision text, OUT fence fencing.fence, OUT pending fencing.intent[], OUT signed_at timestamptz,
    OUT forbidden text[], OUT etag text, OUT tombstone boolean
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    claimed record;
    own_epoch integer := p_epoch;
    own_value bigint := p_value;
BEGIN
    IF p_value IS NULL THEN
        SELECT * INTO fence FROM fencing.fence f WHERE f.resource = p_resource FOR SHARE;
    ELSE
        claimed := fencing.claim_v1(p_resource, p_epoch, p_value, p_holder, p_caller, p_strict, p_write_id);
        decision := claimed.decision;
        fence := claimed.fence;
    END IF;
    IF decision IS NULL OR decision NOT IN ('raised', 'held') THEN
        IF NOT p_observe THEN
            RETURN;
        END IF;
        own_epoch := coalesce(fence.epoch, 0);
        own_value := coalesce(fence.value, 0);
    END IF;
    FOR attempt IN 1..2 LOOP
        pending := ARRAY(
            SELECT i FROM fencing.intent i
            WHERE i.resource = p_resource
              AND ((i.bucket = p_bucket AND i.key = p_key) OR (i.epoch, i.value) < (own_epoch, own_value))
            ORDER BY i.bucket, i.key
        );
        EXIT WHEN cardinality(pending) > 0;
        etag := p_etag;
        tombstone := p_tombstone;
        IF NOT p_looked THEN
            SELECT o.etag, o.tombstone INTO etag, tombstone FROM fencing.object o
            WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key;
        END IF;
        tombstone := coalesce(tombstone, false);
        INSERT INTO fencing.intent (
            resource, bucket, key, write_id, attempt, epoch, value, expected, kind, upload_id, dead_after)
        VALUES (p_resource, p_bucket, p_key, p_write_id, p_attempt, own_epoch, own_value, etag, p_kind, p_upload_id,
            p_dead_after)
        ON CONFLICT (resource, bucket, key) DO NOTHING
        RETURNING intent.signed_at INTO signed_at;
        EXIT WHEN FOUND;
    END LOOP;
    IF p_entombs AND signed_at IS NOT NULL THEN
        INSERT INTO fencing.tombstone (resource, bucket, key) VALUES (p_resource, p_bucket, p_key)
        ON CONFLICT (resource, bucket, key) DO NOTHING;
    END IF;
    -- Nearly always there is nothing to forget.
    IF EXISTS (
        SELECT FROM fencing.forbidden o WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key
    ) THEN
        PERFORM fencing.forget_v1(p_resource, p_bucket, p_key, p_store_time);
    END IF;
    forbidden := ARRAY(
        SELECT o.etag FROM fencing.forbidden o
        WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key
    );
END
$function$
"""

DROP_BEGIN = """
DROP FUNCTION fencing.begin_v1(
    text, integer, bigint, text, text, boolean, boolean, text, text, uuid, integer, text, timestamptz
)
"""


def upgrade() -> None:
    for statement in (*TABLES.split("\n;\n"), BEGIN, DROP_BEGIN):
        op.get_bind().exec_driver_sql(statement)
    op.get_bind().exec_driver_sql("ALTER FUNCTION fencing.raise_v1 RENAME TO raise_v2")
