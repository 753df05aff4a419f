-- Intents: what is written down about an object write before its request is sent to the store, and what is left of
-- it.

-- An object write that may be under way. A key has one of them, or several that wait for the same ETag or complete the
-- same upload. Each but the first settles the ones before it, if it takes effect.
CREATE TABLE fencing.intent (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    write_id uuid NOT NULL,
    -- Intents that were lost have the lowest token there is, in epoch -1: all raises and writes settle them.
    -- Housekeeping has the highest token there is: no holder is newer, so that only writes of its key have to settle it.
    epoch integer NOT NULL,
    value bigint NOT NULL,
    -- The ETag that the request is conditioned on; null is absence.
    expected text,
    -- By the store's clock. The request carries this time.
    signed_at timestamptz NOT NULL DEFAULT now(),
    -- A write that starts again is another intent: a session that settled the first must not remove the second.
    attempt integer NOT NULL,
    -- A settlement has begun: what the write leaves may be replaced at any moment.
    settling boolean NOT NULL DEFAULT false,
    -- How the request is made unable to take effect: see gateway.fencing.intent.Kind.
    kind text NOT NULL DEFAULT 'conditional' CHECK (kind IN ('conditional', 'upload', 'amendment', 'lost')),
    -- The multipart upload that a request of kind 'upload' completes.
    upload_id text,
    -- So long after signed_at, by the store's clock, the request has had its effect or never has it.
    dead_after interval NOT NULL DEFAULT interval '105 seconds',
    -- 0 for the newest one of the key, so that two writes cannot both find the key free.
    rank integer NOT NULL DEFAULT 0,
    -- By the database's clock.
    announced_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (resource, bucket, key, rank),
    CHECK ((upload_id IS NOT NULL) = (kind = 'upload'))
    -- Each write inserts and deletes a row: vacuumed after a number of rows, not after a share of a nearly empty table.
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- ETags that must not come back on a key, because a delayed request is conditioned on them; '' is absence. They may come
-- back after dead_at, by the store's clock. From then on no such request can take effect.
CREATE TABLE fencing.forbidden (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    etag text COLLATE "C" NOT NULL,
    dead_at timestamptz NOT NULL,
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
    -- Each write inserts a row, and the sweeper deletes it some minutes later.
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);
CREATE INDEX spent_dead ON fencing.spent (dead_at);

-- Announce an object write: claim the resource, and write the intent down unless something must be settled first.
--
-- Takes what claim_v1 takes, and:
--   p_observe       refusals are returned and not obeyed. Such a write counts as the fence's own token, so that the next
--                   holder settles it like any other. Only here may the token be null.
--   p_looked        the sender has looked at the key and saw p_etag and p_tombstone. Otherwise the condition is what is
--                   remembered of the key, else absence.
--   p_dead_after    as of the intent.
--   p_entombs       the write leaves a tombstone, which is listed before it is there.
--   p_removes       the write makes its key absent, and leaves a tombstone where absence is spent or forbidden.
--   p_outcomes      the ETags that the write can leave; null asks for all spent conditions of the key.
--   p_housekeeping  the write belongs to no holder: it waits for intents of its key only, and only writes of its key
--                   wait for it.
--   p_calm          write nothing down if an ETag of the key is forbidden that is not its present one.
--   p_over, p_over_attempts  intents that the write itself settles. They wait for the ETag that was seen, or
--                   complete the same upload. Others are pending.
--   p_signed_at     the store's clock as of the call, with which the request is signed; null: the database's.
--   p_store_time    the store's clock as of its last answer, null if it is not known.
-- Returns the decision and the fence as claim_v1 does, and:
--   pending       intents that must be settled first: the write is not announced.
--   signed_at     the time in the request's signature; null: the write is not announced. It is p_signed_at, and the time
--                 that the call has waited for locks.
--   forbidden     the ETags that must not come back on the key.
--   etag, tombstone  what the write is conditioned on.
--   spent         which of p_outcomes are spent.
CREATE FUNCTION fencing.begin_v2(
    p_resource text, p_epoch integer, p_value bigint, p_holder text, p_caller text, p_strict boolean,
    p_observe boolean, p_bucket text, p_key text, p_write_id uuid, p_attempt integer,
    p_looked boolean, p_etag text, p_tombstone boolean,
    p_kind text, p_upload_id text, p_dead_after interval, p_entombs boolean, p_removes boolean, p_outcomes text[],
    p_housekeeping boolean, p_calm boolean, p_over uuid[], p_over_attempts integer[],
    p_signed_at timestamptz, p_store_time timestamptz,
    OUT decision text, OUT fence fencing.fence, OUT pending fencing.intent[], OUT signed_at timestamptz,
    OUT forbidden fencing.forbidden[], OUT etag text, OUT tombstone boolean, OUT spent fencing.spent[]
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    claimed record;
    own_epoch integer := p_epoch;
    own_value bigint := p_value;
    over_ids uuid[] := '{}';
    highest integer;
    waited text;
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
    -- Locked, so that none of them goes before this intent is there: else a third writer could find the key free.
    IF cardinality(p_over) > 0 THEN
        over_ids := ARRAY(
            SELECT i.write_id FROM fencing.intent i
            JOIN unnest(p_over, p_over_attempts) AS o (write_id, attempt) USING (write_id, attempt)
            WHERE i.resource = p_resource AND i.bucket = p_bucket AND i.key = p_key
              AND CASE i.kind WHEN 'conditional' THEN p_looked AND i.expected IS NOT DISTINCT FROM p_etag
                  WHEN 'upload' THEN i.upload_id = p_upload_id ELSE false END
            FOR UPDATE OF i
        );
    END IF;
    -- Nearly always there is nothing to forget.
    IF EXISTS (
        SELECT FROM fencing.forbidden o WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key
    ) THEN
        DELETE FROM fencing.forbidden o
        WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key AND o.dead_at < p_store_time;
    END IF;
    FOR attempt IN 1..2 LOOP
        pending := ARRAY(
            SELECT i FROM fencing.intent i
            WHERE i.resource = p_resource
              AND ((i.bucket = p_bucket AND i.key = p_key)
                  OR ((i.epoch, i.value) < (own_epoch, own_value) AND NOT p_housekeeping) OR i.kind = 'lost')
              AND NOT (i.bucket = p_bucket AND i.key = p_key AND i.write_id = ANY (over_ids))
            ORDER BY i.bucket, i.key, i.rank
        );
        EXIT WHEN cardinality(pending) > 0;
        etag := p_etag;
        tombstone := p_tombstone;
        IF NOT p_looked THEN
            SELECT o.etag, o.tombstone INTO etag, tombstone FROM fencing.object o
            WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key;
        END IF;
        tombstone := coalesce(tombstone, false);
        EXIT WHEN p_calm AND etag IS NOT NULL AND NOT tombstone AND EXISTS (
            SELECT FROM fencing.forbidden o
            WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key AND o.etag NOT IN ('', begin_v2.etag)
        );
        IF cardinality(over_ids) > 0 THEN
            SELECT max(i.rank) INTO highest FROM fencing.intent i
            WHERE i.resource = p_resource AND i.bucket = p_bucket AND i.key = p_key;
            UPDATE fencing.intent i SET rank = highest + 1
            WHERE i.resource = p_resource AND i.bucket = p_bucket AND i.key = p_key AND i.rank = 0;
        END IF;
        INSERT INTO fencing.intent (
            resource, bucket, key, write_id, attempt, epoch, value, expected, kind, upload_id, dead_after, signed_at)
        VALUES (p_resource, p_bucket, p_key, p_write_id, p_attempt,
            CASE WHEN p_housekeeping THEN 2147483647 ELSE own_epoch END,
            CASE WHEN p_housekeeping THEN 9223372036854775807 ELSE own_value END,
            etag, p_kind, p_upload_id, p_dead_after,
            coalesce(p_signed_at + (clock_timestamp() - statement_timestamp()), now()))
        ON CONFLICT (resource, bucket, key, rank) DO NOTHING
        RETURNING intent.signed_at INTO signed_at;
        EXIT WHEN FOUND;
    END LOOP;
    IF signed_at IS NOT NULL AND cardinality(over_ids) > 0 THEN
        UPDATE fencing.intent i SET settling = true
        WHERE i.resource = p_resource AND i.bucket = p_bucket AND i.key = p_key AND i.write_id = ANY (over_ids);
        INSERT INTO fencing.forbidden AS f (resource, bucket, key, etag, dead_at)
        SELECT p_resource, p_bucket, p_key, coalesce(i.expected, ''), max(i.signed_at + i.dead_after)
        FROM fencing.intent i
        WHERE i.resource = p_resource AND i.bucket = p_bucket AND i.key = p_key AND i.write_id = ANY (over_ids)
          AND i.kind = 'conditional'
        GROUP BY i.expected
        ON CONFLICT ON CONSTRAINT forbidden_pkey DO UPDATE SET dead_at = greatest(f.dead_at, excluded.dead_at)
        RETURNING f.etag INTO waited;
    END IF;
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
    forbidden := ARRAY(
        SELECT o FROM fencing.forbidden o
        WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key ORDER BY o.etag
    );
    p_entombs := p_entombs OR waited = '' OR (p_removes AND (
        EXISTS (SELECT FROM unnest(spent) AS s WHERE s.etag = '')
        OR EXISTS (SELECT FROM unnest(forbidden) AS o WHERE o.etag = '')));
    IF p_entombs AND signed_at IS NOT NULL THEN
        INSERT INTO fencing.tombstone (resource, bucket, key) VALUES (p_resource, p_bucket, p_key)
        ON CONFLICT (resource, bucket, key) DO NOTHING;
    END IF;
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
        ORDER BY i.bucket, i.key, i.rank
    ) ELSE '{}' END;
END
$function$;
