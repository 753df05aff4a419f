"""What requests were conditioned on that are over, for as long as one of them may be delivered a second time.

Gateways of the revision before go on with ``begin_v2``. They neither remember such conditions nor look at them.
"""

from alembic import op

revision = "0018"
down_revision = "0017"

TABLES = """
-- Conditions of requests that have been sent and are over; '' is absence. Such an ETag had better not come back to its
-- key before dead_at, by the store's clock: from then on the store refuses the signatures of those requests.
CREATE TABLE fencing.spent (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    etag text COLLATE "C" NOT NULL,
    -- The lowest token that such a request had.
    epoch integer NOT NULL,
    value bigint NOT NULL,
    dead_at timestamptz NOT NULL,
    PRIMARY KEY (resource, bucket, key, etag)
    -- Each write inserts a row here, and the sweeper deletes it half an hour later.
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000)
;
CREATE INDEX spent_dead ON fencing.spent (dead_at)
"""

# As begin_v2. Also says which of p_outcomes, the ETags that the mutation could leave, are spent; of null, which are at
# all. p_removes: the mutation makes its key absent, and leaves a tombstone where absence is spent.
BEGIN = """
CREATE FUNCTION fencing.begin_v3(
    p_resource text, p_epoch integer, p_value bigint, p_holder text, p_caller text, p_strict boolean,
    p_observe boolean, p_bucket text, p_key text, p_write_id uuid, p_attempt integer,
    p_looked boolean, p_etag text, p_tombstone boolean,
    p_kind text, p_upload_id text, p_dead_after interval, p_entombs boolean, p_store_time timestamptz,
    p_removes boolean, p_outcomes text[],
    OUT decision text, OUT fence fencing.fence, OUT pending fencing.intent[], OUT signed_at timestamptz,
    OUT forbidden text[], OUT etag text, OUT tombstone boolean, OUT spent fencing.spent[]
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
    -- Two statements, so that the index finds a few outcomes among many conditions of a key that is written often.
    IF p_outcomes IS NULL THEN
        spent := ARRAY(
            SELECT s FROM fencing.spent s
            WHERE s.resource = p_resource AND s.bucket = p_bucket AND s.key = p_key
              AND (p_store_time IS NULL OR s.dead_at >= p_store_time)
            ORDER BY s.dead_at, s.etag
        );
    ELSE
        spent := ARRAY(
            SELECT s FROM fencing.spent s
            WHERE s.resource = p_resource AND s.bucket = p_bucket AND s.key = p_key AND s.etag = ANY (p_outcomes)
              AND (p_store_time IS NULL OR s.dead_at >= p_store_time)
            ORDER BY s.dead_at, s.etag
        );
    END IF;
    p_entombs := p_entombs OR (p_removes AND EXISTS (SELECT FROM unnest(spent) AS s WHERE s.etag = ''));
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


def upgrade() -> None:
    for statement in (*TABLES.split("\n;\n"), BEGIN):
        op.get_bind().exec_driver_sql(statement)
