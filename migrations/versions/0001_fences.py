"""Fences, intents, forbidden ETags, known objects, rejections; the functions that are contended.

Names of resources, buckets and keys are compared byte by byte, whatever the database's locale: COLLATE "C".
"""

from alembic import op

revision = "0001"
down_revision = None

TABLES = """
CREATE TABLE fencing.fence (
    resource text COLLATE "C" PRIMARY KEY,
    epoch integer NOT NULL CHECK (epoch >= 0),
    value bigint NOT NULL CHECK (value >= 0),
    holder text,
    caller text,
    raised_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The write that used up this token on a strict resource; null while only a barrier has.
    write_id uuid
) WITH (fillfactor = 70)
;
-- An S3 mutation that may be under way. At most one for a key.
CREATE TABLE fencing.intent (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    write_id uuid NOT NULL,
    epoch integer NOT NULL,
    value bigint NOT NULL,
    -- The ETag the mutation is conditioned on; null is absence.
    expected text,
    signed_at timestamptz NOT NULL DEFAULT now(),
    -- A write that starts again is another intent: whoever settled the first must not remove the second.
    attempt integer NOT NULL,
    -- Somebody has begun to settle it: what it writes may be bumped back at any moment.
    settling boolean NOT NULL DEFAULT false,
    PRIMARY KEY (resource, bucket, key)
    -- Each write inserts and deletes a row here: cleaned up by number, not by share of a table that is mostly empty.
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)
;
-- ETags that must not come back on a key, because a delayed request is conditioned on them; '' is absence.
CREATE TABLE fencing.forbidden (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    etag text COLLATE "C" NOT NULL,
    forbidden_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (resource, bucket, key, etag)
)
;
-- The ETag a key had after the last write through the gateway. A cache: rows may vanish at any time.
CREATE TABLE fencing.object (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    etag text,
    tombstone boolean NOT NULL,
    PRIMARY KEY (resource, bucket, key)
) WITH (fillfactor = 70)
;
CREATE TABLE fencing.rejection (
    resource text COLLATE "C" NOT NULL,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason text NOT NULL,
    enforced boolean NOT NULL,
    epoch integer,
    value bigint,
    holder text,
    caller text NOT NULL,
    method text NOT NULL,
    target text NOT NULL,
    client text,
    request_id text NOT NULL,
    payload_size bigint,
    payload_sha256 text,
    fence_epoch integer,
    fence_value bigint,
    fence_holder text,
    fence_caller text,
    fence_raised_at timestamptz,
    PRIMARY KEY (resource, id)
)
;
CREATE INDEX rejection_recent ON fencing.rejection (at DESC, id DESC)
"""

# Must agree to the letter with gateway.fencing.resource.escape.
ESCAPE = """
CREATE FUNCTION fencing.escape_v1(value text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE WHEN value COLLATE "C" ~ '^[A-Za-z0-9._~!$&''()*+;:@-]*$' THEN value ELSE (
    SELECT string_agg(
        CASE WHEN letter COLLATE "C" ~ '^[A-Za-z0-9._~!$&''()*+;:@-]$' THEN letter
             ELSE regexp_replace(upper(encode(convert_to(letter, 'UTF8'), 'hex')), '(..)', '%\\1', 'g') END,
        '' ORDER BY position)
    FROM unnest(string_to_array(value, NULL)) WITH ORDINALITY AS letters (letter, position)
) END
"""

# The check and the raise. VOLATILE plpgsql on purpose: each statement inside takes a fresh snapshot, so what the
# predecessor committed while we waited for its lock is seen. The order is the whole point:
#   1. read without a lock; only a higher token may go for the exclusive lock (two writers that both hold FOR SHARE
#      and then both raise would deadlock);
#   2. raise, if the row is still lower once its lock is ours;
#   3. lock FOR SHARE and judge. Writers of one holder run side by side, and the next raise waits for all of them.
CLAIM = """
CREATE FUNCTION fencing.claim_v1(
    p_resource text, p_epoch integer, p_value bigint, p_holder text, p_caller text, p_strict boolean, p_write_id uuid,
    OUT decision text, OUT fence fencing.fence, OUT pending boolean
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    raised boolean := false;
BEGIN
    SELECT * INTO fence FROM fencing.fence f WHERE f.resource = p_resource;
    IF NOT FOUND THEN
        INSERT INTO fencing.fence (resource, epoch, value, holder, caller, write_id)
        VALUES (p_resource, p_epoch, p_value, p_holder, p_caller, p_write_id)
        ON CONFLICT (resource) DO NOTHING;
        raised := FOUND;
    END IF;
    IF NOT raised AND (fence.epoch IS NULL OR (fence.epoch, fence.value) < (p_epoch, p_value)) THEN
        UPDATE fencing.fence f
        SET epoch = p_epoch, value = p_value, holder = p_holder, caller = p_caller, write_id = p_write_id,
            raised_at = clock_timestamp()
        WHERE f.resource = p_resource AND (f.epoch, f.value) < (p_epoch, p_value);
        raised := FOUND;
    END IF;
    IF p_strict AND NOT raised THEN
        UPDATE fencing.fence f SET write_id = p_write_id
        WHERE f.resource = p_resource AND (f.epoch, f.value) = (p_epoch, p_value) AND f.write_id IS NULL
          AND (f.holder IS NULL OR p_holder IS NULL OR f.holder = p_holder);
    END IF;
    SELECT * INTO STRICT fence FROM fencing.fence f WHERE f.resource = p_resource FOR SHARE;
    decision := CASE
        WHEN raised THEN 'raised'
        WHEN (p_epoch, p_value) < (fence.epoch, fence.value) THEN 'token-stale'
        WHEN p_holder <> fence.holder THEN 'token-duplicate'
        WHEN p_strict AND fence.write_id IS DISTINCT FROM p_write_id THEN 'token-used'
        ELSE 'held' END;
    pending := EXISTS (
        SELECT FROM fencing.intent i WHERE i.resource = p_resource AND (i.epoch, i.value) < (p_epoch, p_value)
    );
END
$function$
"""

# Several resources, always in one order: two writers that take the same rows in opposite orders would deadlock.
CLAIM_ALL = """
CREATE FUNCTION fencing.claim_all_v1(
    p_resources text[], p_epoch integer, p_value bigint, p_holder text, p_caller text, p_strict boolean, p_write_id uuid
) RETURNS TABLE (decision text, fence fencing.fence, pending boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT DISTINCT r COLLATE "C" FROM unnest(p_resources) AS u (r) ORDER BY 1 LOOP
        RETURN QUERY SELECT c.decision, c.fence, c.pending
            FROM fencing.claim_v1(name, p_epoch, p_value, p_holder, p_caller, p_strict, p_write_id) AS c;
    END LOOP;
END
$function$
"""

# What was forbidden so long ago that the store refuses the signature of every request that could wait for it: no
# request older than the forbidding is valid a quarter of an hour after it, and a day is a generous quarter of an hour.
# p_store_time is the store's own clock, since it is the store that judges signatures; null forgets nothing.
FORGET = """
CREATE FUNCTION fencing.forget_v1(p_resource text, p_bucket text, p_key text, p_store_time timestamptz) RETURNS void
LANGUAGE sql VOLATILE BEGIN ATOMIC
    DELETE FROM fencing.forbidden o
    WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key
      AND o.forbidden_at < p_store_time - interval '24 hours';
END
"""

# Announce an S3 mutation: claim, and write the intent down unless something must be settled before.
# In observe mode whatever the fence says is returned but not obeyed; such a write counts as the fence's own token, so
# that the next holder settles it like any other. A null token is possible there only.
BEGIN = """
CREATE FUNCTION fencing.begin_v1(
    p_resource text, p_epoch integer, p_value bigint, p_holder text, p_caller text, p_strict boolean,
    p_observe boolean, p_bucket text, p_key text, p_write_id uuid, p_attempt integer, p_expected text,
    p_store_time timestamptz,
    OUT decision text, OUT fence fencing.fence, OUT pending fencing.intent[], OUT signed_at timestamptz,
    OUT forbidden text[]
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
        INSERT INTO fencing.intent (resource, bucket, key, write_id, attempt, epoch, value, expected)
        VALUES (p_resource, p_bucket, p_key, p_write_id, p_attempt, own_epoch, own_value, p_expected)
        ON CONFLICT (resource, bucket, key) DO NOTHING
        RETURNING intent.signed_at INTO signed_at;
        EXIT WHEN FOUND;
    END LOOP;
    PERFORM fencing.forget_v1(p_resource, p_bucket, p_key, p_store_time);
    forbidden := ARRAY(
        SELECT o.etag FROM fencing.forbidden o
        WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key
    );
END
$function$
"""

# The barrier's transaction: raise without writing, and say what is still under way with a lower token.
RAISE = """
CREATE FUNCTION fencing.raise_v1(
    p_resource text, p_epoch integer, p_value bigint, p_holder text, p_caller text,
    OUT decision text, OUT fence fencing.fence, OUT pending fencing.intent[]
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    claimed record;
BEGIN
    claimed := fencing.claim_v1(p_resource, p_epoch, p_value, p_holder, p_caller, false, NULL);
    decision := claimed.decision;
    fence := claimed.fence;
    pending := CASE WHEN decision IN ('raised', 'held') THEN ARRAY(
        SELECT i FROM fencing.intent i
        WHERE i.resource = p_resource AND (i.epoch, i.value) < (p_epoch, p_value)
        ORDER BY i.bucket, i.key
    ) ELSE '{}' END;
END
$function$
"""

# Called inside a statement whose touched rows do not belong to the claimed resource: undoes the statement.
REFUSE_MISMATCH = """
CREATE FUNCTION fencing.refuse_mismatch_v1(touched text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'FN422', MESSAGE = coalesce(touched, '');
END
$function$
"""


def upgrade() -> None:
    for statement in (*TABLES.split("\n;\n"), ESCAPE, CLAIM, CLAIM_ALL, FORGET, BEGIN, RAISE, REFUSE_MISMATCH):
        op.get_bind().exec_driver_sql(statement)
