-- Intents: what is written down about an object write before its request is sent to the store, and what is left of
-- it.

-- An object write that may be under way. At most one for each key.
CREATE TABLE fencing.intent (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    write_id uuid NOT NULL,
    epoch integer NOT NULL,
    value bigint NOT NULL,
    -- The ETag that the request is conditioned on; null is absence.
    expected text,
    signed_at timestamptz NOT NULL DEFAULT now(),
    -- A write that starts again is another intent: a session that settled the first must not remove the second.
    attempt integer NOT NULL,
    -- A settlement has begun: what the write leaves may be bumped back at any moment.
    settling boolean NOT NULL DEFAULT false,
    -- How the request is made unable to take effect: see gateway.fencing.intent.Kind.
    kind text NOT NULL DEFAULT 'conditional' CHECK (kind IN ('conditional', 'upload', 'amendment')),
    -- The multipart upload that a request of kind 'upload' completes.
    upload_id text,
    -- So long after signed_at, by the store's clock, the store refuses the request if it has not arrived.
    dead_after interval NOT NULL DEFAULT interval '30 minutes',
    PRIMARY KEY (resource, bucket, key),
    CHECK ((upload_id IS NOT NULL) = (kind = 'upload'))
    -- Each write inserts and deletes a row: vacuumed after a number of rows, not after a share of a nearly empty table.
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- ETags that must not come back on a key, because a delayed request is conditioned on them; '' is absence.
CREATE TABLE fencing.forbidden (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    etag text COLLATE "C" NOT NULL,
    forbidden_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (resource, bucket, key, etag)
);

-- Conditions of requests that were sent and are over; '' is absence. Such a request may be delivered a second time.
-- So its ETag should not come back to the key before dead_at, by the store's clock. From then on the store refuses
-- the signatures of such requests.
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
    -- Each write inserts a row, and the sweeper deletes it half an hour later.
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);
CREATE INDEX spent_dead ON fencing.spent (dead_at);

-- Forget which ETags are forbidden on a key, once that is a day ago. The store refuses every request older than the
-- prohibition a quarter of an hour after it; a day is a generous quarter of an hour.
-- Takes the key, and the store's own clock, since the store judges signatures. A null time forgets nothing.
CREATE FUNCTION fencing.forget_v1(p_resource text, p_bucket text, p_key text, p_store_time timestamptz) RETURNS void
LANGUAGE sql VOLATILE BEGIN ATOMIC
    DELETE FROM fencing.forbidden o
    WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key
      AND o.forbidden_at < p_store_time - interval '24 hours';
END;

-- Announce an object write: claim the resource, and write the intent down unless something must be settled first.
--
-- Takes what claim_v1 takes, and:
--   p_observe     refusals are returned and not obeyed. Such a write counts as the fence's own token, so that the next
--                 holder settles it like any other. Only here may the token be null.
--   p_looked      the sender has looked at the key and saw p_etag and p_tombstone. Otherwise the condition is what is
--                 remembered of the key, else absence.
--   p_entombs     the write leaves a tombstone, which is listed before it is there.
--   p_removes     the write makes its key absent, and leaves a tombstone where absence is spent.
--   p_outcomes    the ETags that the write can leave; null asks for all spent conditions of the key.
--   p_store_time  the store's clock, null if it is not known.
-- Returns the decision and the fence as claim_v1 does, and:
--   pending       intents that must be settled first: the write is not announced.
--   signed_at     when the intent was written down; null: it was not.
--   forbidden     the ETags that must not come back on the key.
--   etag, tombstone  what the write is conditioned on.
--   spent         which of p_outcomes are spent.
CREATE FUNCTION fencing.begin_v1(
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
$function$;

-- Raise a fence without writing, which is a barrier's transaction.
-- Takes what claim_v1 takes.
-- Returns its decision, the fence, and the object writes with lower tokens that are still pending; the barrier
-- settles them before it answers.
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
$function$;
