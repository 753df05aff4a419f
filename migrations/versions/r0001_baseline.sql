-- Frozen: what the first migration installs. gateway/db/schema says what each object is for, as it is today.

CREATE TABLE fencing.fence (
    resource text COLLATE "C" PRIMARY KEY,
    epoch integer NOT NULL CHECK (epoch >= 0),
    value bigint NOT NULL CHECK (value >= 0),
    holder text,
    caller text,
    raised_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The write that used up this token on a strict resource. Null while only a barrier has shown the token.
    write_id uuid
) WITH (fillfactor = 70);

CREATE FUNCTION fencing.escape_v1(value text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE
    WHEN starts_with(value, '.') AND value COLLATE "C" ~ '^[.][.]?~*$' THEN value || '~'
    WHEN value COLLATE "C" ~ '^[A-Za-z0-9._~!$&''()*+;:@-]*$' THEN value
    ELSE (
        SELECT string_agg(
            CASE WHEN letter COLLATE "C" ~ '^[A-Za-z0-9._~!$&''()*+;:@-]$' THEN letter
                 ELSE regexp_replace(upper(encode(convert_to(letter, 'UTF8'), 'hex')), '(..)', '%\1', 'g') END,
            '' ORDER BY position)
        FROM unnest(string_to_array(value, NULL)) WITH ORDINALITY AS letters (letter, position)
    )
END;

CREATE FUNCTION fencing.canonical_v1(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN octet_length(name) <= 512
    AND name COLLATE "C" ~ '^([A-Za-z0-9._~!$&''()*+;:@/-]|%[0-9A-F]{2})+$'
    AND name COLLATE "C" !~ '%(2[146-9ABDE]|3[0-9AB]|4[0-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])'
    AND name COLLATE "C" !~ '(^|/)[.][.]?(/|$)';

CREATE FUNCTION fencing.claim_v1(
    p_resource text, p_epoch integer, p_value bigint, p_holder text, p_caller text, p_strict boolean, p_write_id uuid,
    OUT decision text, OUT fence fencing.fence, OUT pending boolean
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    raised boolean := false;
    overtaken fencing.fence;
BEGIN
    SELECT * INTO fence FROM fencing.fence f WHERE f.resource = p_resource;
    IF NOT FOUND THEN
        INSERT INTO fencing.fence (resource, epoch, value, holder, caller, write_id)
        VALUES (p_resource, p_epoch, p_value, p_holder, p_caller, p_write_id)
        ON CONFLICT (resource) DO NOTHING;
        raised := FOUND;
    END IF;
    IF NOT raised AND (fence.epoch IS NULL OR (fence.epoch, fence.value) < (p_epoch, p_value)) THEN
        SELECT * INTO overtaken FROM fencing.fence f
        WHERE f.resource = p_resource AND (f.epoch, f.value) < (p_epoch, p_value) FOR NO KEY UPDATE;
        IF FOUND THEN
            UPDATE fencing.fence f
            SET epoch = p_epoch, value = p_value, holder = p_holder, caller = p_caller, write_id = p_write_id,
                raised_at = clock_timestamp()
            WHERE f.resource = p_resource;
            raised := true;
        END IF;
    END IF;
    IF p_strict AND NOT raised THEN
        UPDATE fencing.fence f SET write_id = p_write_id
        WHERE f.resource = p_resource AND (f.epoch, f.value) = (p_epoch, p_value) AND f.write_id IS NULL
          AND (f.holder IS NULL OR p_holder IS NULL OR f.holder = p_holder);
    END IF;
    SELECT * INTO STRICT fence FROM fencing.fence f WHERE f.resource = p_resource FOR SHARE;
    IF raised AND (overtaken.resource IS NOT NULL OR p_write_id IS NULL) THEN
        INSERT INTO fencing.intake (
            at, kind, resource, epoch, value, holder, caller,
            fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
        VALUES (fence.raised_at, CASE WHEN p_write_id IS NULL THEN 'barrier' ELSE 'raised' END, p_resource,
            p_epoch, p_value, p_holder, p_caller,
            overtaken.epoch, overtaken.value, overtaken.holder, overtaken.caller, overtaken.raised_at);
    END IF;
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
$function$;

CREATE FUNCTION fencing.claim_many_v1(
    p_resources text[], p_epochs integer[], p_values bigint[],
    p_holder text, p_caller text, p_strict boolean, p_write_id uuid
) RETURNS TABLE (decision text, fence fencing.fence, pending boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    rising bigint;
    known bigint;
    uniform boolean;
    run record;
    raised text[] := '{}';
    more text[];
    overtaking text[];
    moment timestamptz;
BEGIN
    IF cardinality(p_values) = 1 THEN
        p_epochs := array_fill(p_epochs[1], ARRAY[cardinality(p_resources)]);
        p_values := array_fill(p_values[1], ARRAY[cardinality(p_resources)]);
    END IF;
    SELECT count(*) FILTER (WHERE f.epoch IS NULL OR (f.epoch, f.value) < (u.epoch, u.value)), count(f.epoch)
    INTO rising, known
    FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
    LEFT JOIN LATERAL (
        SELECT t.epoch, t.value FROM fencing.fence t WHERE t.resource = u.resource COLLATE "C" OFFSET 0
    ) AS f ON true;
    IF known = 0 THEN
        BEGIN
            INSERT INTO fencing.fence (resource, epoch, value, holder, caller, write_id)
            SELECT u.resource, u.epoch, u.value, p_holder, p_caller, p_write_id
            FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
            ORDER BY u.resource COLLATE "C";
            raised := p_resources;
        EXCEPTION WHEN unique_violation THEN
            NULL;
        END;
    END IF;
    uniform := rising = cardinality(p_resources) OR (rising = 0 AND NOT p_strict);
    FOR run IN
        WITH presented AS (
            SELECT u.resource COLLATE "C" AS resource, u.epoch, u.value,
                f.resource IS NULL OR (f.epoch, f.value) < (u.epoch, u.value) AS rises,
                coalesce((u.epoch, u.value) < (f.epoch, f.value), false) AS stale
            FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
            LEFT JOIN LATERAL (SELECT * FROM fencing.fence t WHERE t.resource = u.resource COLLATE "C" OFFSET 0) AS f
                ON true
        ), sorted AS (
            SELECT p.resource, p.epoch, p.value,
                NOT p.stale AND (p.rises OR p_strict OR coalesce(
                    p.resource > min(p.resource) FILTER (WHERE p.rises) OVER ()
                    AND p.resource < max(p.resource) FILTER (WHERE p.rises) OVER (), false)) AS rises
            FROM presented p
        ), cut AS (
            SELECT s.*, row_number() OVER (ORDER BY s.resource)
                - row_number() OVER (PARTITION BY s.rises ORDER BY s.resource) AS nth
            FROM sorted s
        )
        SELECT rising > 0 AS rises, NULL COLLATE "C" AS first,
            p_resources AS resources, p_epochs AS epochs, p_values AS tokens
        WHERE uniform AND raised = '{}'
        UNION ALL
        SELECT c.rises, min(c.resource), array_agg(c.resource), array_agg(c.epoch), array_agg(c.value)
        FROM cut c WHERE NOT uniform GROUP BY c.rises, c.nth
        ORDER BY first
    LOOP
        IF run.rises THEN
            WITH added AS (
                INSERT INTO fencing.fence AS f (resource, epoch, value, holder, caller, write_id)
                SELECT u.resource, u.epoch, u.value, p_holder, p_caller, p_write_id
                FROM unnest(run.resources, run.epochs, run.tokens) AS u (resource, epoch, value)
                ORDER BY u.resource COLLATE "C"
                ON CONFLICT ON CONSTRAINT fence_pkey DO UPDATE SET epoch = excluded.epoch WHERE false
                RETURNING f.resource
            )
            SELECT coalesce(array_agg(a.resource), '{}') INTO more FROM added a;
            IF cardinality(more) < cardinality(run.resources) THEN
                moment := clock_timestamp();
                WITH overtaken AS MATERIALIZED (
                    SELECT u.epoch AS new_epoch, u.value AS new_value, f.*
                    FROM unnest(run.resources, run.epochs, run.tokens) AS u (resource, epoch, value)
                    CROSS JOIN LATERAL (
                        SELECT * FROM fencing.fence t WHERE t.resource = u.resource COLLATE "C" OFFSET 0
                    ) AS f
                    WHERE (f.epoch, f.value) < (u.epoch, u.value)
                ), recorded AS (
                    INSERT INTO fencing.intake (
                        at, kind, resource, epoch, value, holder, caller,
                        fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
                    SELECT moment, 'raised', o.resource, o.new_epoch, o.new_value, p_holder, p_caller,
                        o.epoch, o.value, o.holder, o.caller, o.raised_at
                    FROM overtaken o ORDER BY o.resource
                ), risen AS (
                    UPDATE fencing.fence f
                    SET epoch = o.new_epoch, value = o.new_value, holder = p_holder, caller = p_caller,
                        write_id = p_write_id, raised_at = moment
                    FROM overtaken o WHERE f.resource = o.resource
                    RETURNING f.resource
                )
                SELECT coalesce(array_agg(r.resource), '{}') INTO overtaking FROM risen r;
                more := more || overtaking;
            END IF;
            raised := raised || more;
            IF p_strict AND cardinality(more) < cardinality(run.resources) THEN
                UPDATE fencing.fence f SET write_id = p_write_id
                FROM unnest(run.resources, run.epochs, run.tokens) AS u (resource, epoch, value)
                WHERE f.resource = u.resource COLLATE "C" AND f.resource <> ALL (more)
                  AND (f.epoch, f.value) = (u.epoch, u.value) AND f.write_id IS NULL
                  AND (f.holder IS NULL OR p_holder IS NULL OR f.holder = p_holder);
            END IF;
        ELSE
            PERFORM FROM fencing.fence f WHERE f.resource = ANY (run.resources) ORDER BY f.resource FOR SHARE;
        END IF;
    END LOOP;
    IF cardinality(raised) = cardinality(p_resources)
        AND NOT EXISTS (SELECT FROM fencing.intent i WHERE i.resource = ANY (p_resources))
    THEN
        RETURN;
    END IF;
    RETURN QUERY
        SELECT judged.decision, judged.fence, judged.pending
        FROM (
            SELECT u.resource, f.fence, CASE
                -- A subquery is hashed, however long the list is.
                WHEN u.resource COLLATE "C" IN (SELECT m.r COLLATE "C" FROM unnest(raised) AS m (r)) THEN 'raised'
                WHEN (u.epoch, u.value) < ((f.fence).epoch, (f.fence).value) THEN 'token-stale'
                WHEN p_holder <> (f.fence).holder THEN 'token-duplicate'
                WHEN p_strict AND (f.fence).write_id IS DISTINCT FROM p_write_id THEN 'token-used'
                ELSE 'held' END AS decision,
                EXISTS (
                    SELECT FROM fencing.intent i
                    WHERE i.resource = u.resource COLLATE "C" AND (i.epoch, i.value) < (u.epoch, u.value)
                ) AS pending
            FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
            CROSS JOIN LATERAL (
                SELECT r AS fence FROM fencing.fence AS r WHERE r.resource = u.resource COLLATE "C" OFFSET 0
            ) AS f
        ) AS judged
        WHERE judged.pending OR judged.decision NOT IN ('raised', 'held')
        ORDER BY judged.resource COLLATE "C";
END
$function$;

CREATE FUNCTION fencing.is_overtaken_v1(p_resource text, p_epoch integer, p_value bigint)
RETURNS boolean LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RETURN EXISTS (
        SELECT FROM fencing.fence f WHERE f.resource = p_resource AND (f.epoch, f.value) > (p_epoch, p_value)
    );
END
$function$;

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

CREATE TABLE fencing.forbidden (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    etag text COLLATE "C" NOT NULL,
    forbidden_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (resource, bucket, key, etag)
);

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

CREATE FUNCTION fencing.forget_v1(p_resource text, p_bucket text, p_key text, p_store_time timestamptz) RETURNS void
LANGUAGE sql VOLATILE BEGIN ATOMIC
    DELETE FROM fencing.forbidden o
    WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key
      AND o.forbidden_at < p_store_time - interval '24 hours';
END;

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

CREATE TABLE fencing.object (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    etag text,
    tombstone boolean NOT NULL,
    -- Only a write through the gateway can have changed the key since, so that a bypass is measured by this row. False
    -- where an amendment looked at the key before it was announced, and where the write may have been settled.
    witnessed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (resource, bucket, key)
) WITH (fillfactor = 70);
CREATE INDEX object_place ON fencing.object (bucket, key);

CREATE TABLE fencing.upload (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    upload_id text COLLATE "C" NOT NULL,
    -- Stands in the metadata of the object that the upload becomes.
    write_id uuid NOT NULL,
    -- The token that was presented when it was opened. It is valid for parts and completion that present none.
    epoch integer,
    value bigint,
    holder text,
    caller text NOT NULL,
    -- The gateway itself opened it, to take in one large body: only the gateway knows of it and cleans it up.
    staged boolean NOT NULL,
    touched_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at timestamptz,
    -- The proof that the token was issued, which is asked about again with each part.
    sequencer text,
    PRIMARY KEY (resource, bucket, key, upload_id)
);
CREATE INDEX upload_touched ON fencing.upload (touched_at);
CREATE INDEX upload_staged ON fencing.upload (bucket, key) WHERE staged;

CREATE TABLE fencing.tombstone (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- When the tombstone was listed, or last taken up by the sweeper.
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (resource, bucket, key)
);
CREATE INDEX tombstone_listed ON fencing.tombstone (bucket, key);
CREATE INDEX tombstone_at ON fencing.tombstone (at);

CREATE TABLE fencing.patrol (
    bucket text COLLATE "C" PRIMARY KEY,
    after text COLLATE "C" NOT NULL DEFAULT '',
    taken_at timestamptz NOT NULL DEFAULT '-infinity'
);

CREATE FUNCTION fencing.refuse_mismatch_v1(touched text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'FN422', MESSAGE = coalesce(touched, '');
END
$function$;

CREATE FUNCTION fencing.check_unchanged_v1(
    p_table oid, p_name text, p_kind "char", p_rules boolean, p_children boolean, p_row_security boolean,
    p_columns xid[], p_keyed boolean, p_key oid, p_statement_triggers boolean, p_row_triggers boolean
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_class AS c
        WHERE c.oid = p_table AND c.oid = pg_catalog.to_regclass(p_name) AND c.relkind = p_kind
          AND (p_row_security OR NOT c.relrowsecurity)
          AND (p_rules OR NOT c.relhasrules)
          AND (p_children OR NOT c.relhassubclass)
          AND (NOT c.relhastriggers OR NOT EXISTS (
              SELECT FROM pg_catalog.pg_trigger AS g JOIN pg_catalog.pg_proc AS p ON p.oid = g.tgfoid
              WHERE g.tgrelid = p_table AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND g.tgtype & 28 <> 0
                AND ((NOT p_statement_triggers AND g.tgtype & 1 = 0)
                     OR (NOT p_row_triggers AND g.tgtype & 1 <> 0 AND g.tgtype & 66 <> 0))
                AND p.pronamespace <> 'fencing'::regnamespace
          ))
    ) AND ARRAY(
        SELECT a.xmin FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = p_table AND a.attnum > 0 ORDER BY a.attnum
    ) = p_columns
    AND (
        NOT p_keyed
        OR pg_catalog.pg_index_has_property(p_key, 'clusterable') IS NOT NULL
        OR p_key IS NULL
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = p_table AND i.indisprimary)
    ) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;

CREATE FUNCTION fencing.check_relation_v1(p_table oid, p_name text, p_kind "char", p_row_security boolean)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_class AS c
        WHERE c.oid = p_table AND c.oid = pg_catalog.to_regclass(p_name) AND c.relkind = p_kind
          AND (p_row_security OR NOT c.relrowsecurity)
    ) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;

CREATE FUNCTION fencing.reaches_foreign_v1(p_table oid) RETURNS boolean LANGUAGE sql STABLE AS $function$
    WITH RECURSIVE reached (oid) AS (
        SELECT p_table
        UNION
        SELECT next.oid
        FROM reached AS r CROSS JOIN LATERAL (
            SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = r.oid
            UNION ALL
            SELECT d.refobjid
            FROM pg_catalog.pg_rewrite AS w JOIN pg_catalog.pg_depend AS d ON d.objid = w.oid
            WHERE w.ev_class = r.oid AND d.classid = 'pg_catalog.pg_rewrite'::regclass
              AND d.refclassid = 'pg_catalog.pg_class'::regclass
        ) AS next (oid)
    )
    SELECT EXISTS (
        SELECT FROM reached AS r JOIN pg_catalog.pg_class AS c ON c.oid = r.oid WHERE c.relkind = 'f'
    )
$function$;

CREATE FUNCTION fencing.check_foreign_v1(p_table oid, p_reaches boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
    IF fencing.reaches_foreign_v1(p_table) = p_reaches THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;

CREATE TABLE fencing.idempotency (
    caller text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- The request without its token: a retry may come from the next holder.
    fingerprint bytea NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    status smallint,
    -- The headers of the answer, as a JSON array of pairs.
    headers text,
    body bytea,
    -- The resources that the write claimed, each with the number of the write of a list that claimed it; a JSON array
    -- of pairs. Giving the answer again raises those fences.
    claimed text NOT NULL DEFAULT '[]',
    PRIMARY KEY (caller, key)
);
CREATE INDEX idempotency_at ON fencing.idempotency (at);

CREATE TABLE fencing.intake (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text COLLATE "C" NOT NULL,
    plane text COLLATE "C",
    rule text COLLATE "C",
    resource text COLLATE "C",
    reason text COLLATE "C",
    enforced boolean,
    -- The writer: the one that was refused, or the new holder.
    epoch integer,
    value bigint,
    holder text COLLATE "C",
    caller text COLLATE "C",
    method text COLLATE "C",
    target text COLLATE "C",
    client text COLLATE "C",
    request_id text COLLATE "C",
    payload_size bigint,
    payload_sha256 text COLLATE "C",
    -- The fence that it met: the one that refused it, or the one it has overtaken.
    fence_epoch integer,
    fence_value bigint,
    fence_holder text COLLATE "C",
    fence_caller text COLLATE "C",
    fence_raised_at timestamptz,
    details jsonb,
    -- The record is indexed. A text that is too long for an index has to be refused here. Otherwise neither the entry
    -- nor the ones behind it could be sealed.
    CHECK (
        octet_length(kind) <= 2048 AND octet_length(plane) <= 2048 AND octet_length(rule) <= 2048
        AND octet_length(resource) <= 2048 AND octet_length(reason) <= 2048 AND octet_length(holder) <= 2048
        AND octet_length(caller) <= 2048 AND octet_length(request_id) <= 512)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_analyze_threshold = 1000000
);
CREATE INDEX intake_noted ON fencing.intake (request_id, resource) WHERE request_id LIKE 'transaction/%';

CREATE TABLE fencing.entry (
    position bigint NOT NULL,
    day date NOT NULL,
    hash bytea NOT NULL,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text COLLATE "C" NOT NULL,
    plane text COLLATE "C",
    rule text COLLATE "C",
    resource text COLLATE "C",
    reason text COLLATE "C",
    enforced boolean,
    -- The writer: the one that was refused, or the new holder.
    epoch integer,
    value bigint,
    holder text COLLATE "C",
    caller text COLLATE "C",
    method text COLLATE "C",
    target text COLLATE "C",
    client text COLLATE "C",
    request_id text COLLATE "C",
    payload_size bigint,
    payload_sha256 text COLLATE "C",
    -- The fence that it met: the one that refused it, or the one it has overtaken.
    fence_epoch integer,
    fence_value bigint,
    fence_holder text COLLATE "C",
    fence_caller text COLLATE "C",
    fence_raised_at timestamptz,
    details jsonb,
    PRIMARY KEY (day, position)
) PARTITION BY RANGE (day);

CREATE TABLE fencing.entry_other PARTITION OF fencing.entry DEFAULT;

CREATE INDEX entry_id ON fencing.entry (id);
CREATE INDEX entry_at ON fencing.entry (at);
CREATE INDEX entry_resource ON fencing.entry (resource, position);
CREATE INDEX entry_caller ON fencing.entry (caller, position);
CREATE INDEX entry_holder ON fencing.entry (holder, position);
CREATE INDEX entry_kind ON fencing.entry (kind, position);
CREATE INDEX entry_rule ON fencing.entry (rule, position);
CREATE INDEX entry_plane ON fencing.entry (plane);
CREATE INDEX entry_value ON fencing.entry (value);
CREATE INDEX entry_reason ON fencing.entry (reason, position) WHERE reason <> 'token-stale';
CREATE INDEX entry_observed ON fencing.entry (position) WHERE NOT enforced;
CREATE INDEX entry_takeover ON fencing.entry (resource, position) WHERE kind IN ('raised', 'barrier', 'epoch');
CREATE INDEX entry_position ON fencing.entry (position);

CREATE TABLE fencing.head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    position bigint NOT NULL,
    hash bytea NOT NULL,
    day date NOT NULL
) WITH (fillfactor = 10);
INSERT INTO fencing.head (position, hash, day)
VALUES (0, sha256('fencing-gateway record v1'), (clock_timestamp() AT TIME ZONE 'UTC')::date);

CREATE TABLE fencing.payload (
    entry uuid PRIMARY KEY,
    day date NOT NULL DEFAULT (clock_timestamp() AT TIME ZONE 'UTC')::date,
    media_type text NOT NULL,
    body bytea NOT NULL,
    truncated boolean NOT NULL
);
CREATE INDEX payload_day ON fencing.payload (day);

CREATE TABLE fencing.traffic (
    minute timestamptz NOT NULL,
    gateway text NOT NULL,
    plane text NOT NULL,
    rule text NOT NULL,
    accepted bigint NOT NULL,
    refused bigint NOT NULL,
    observed bigint NOT NULL,
    PRIMARY KEY (minute, gateway, plane, rule)
);

CREATE FUNCTION fencing.token_v1(epoch integer, value bigint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN epoch > 0 THEN epoch::text || '.' ELSE '' END || value::text;

CREATE FUNCTION fencing.moment_v1(moment timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

CREATE TYPE fencing.line AS (
    position bigint, id uuid, at text, kind text, plane text, rule text, resource text, reason text, enforced boolean,
    token text, holder text, caller text, method text, target text, client text, request_id text, payload_size bigint,
    payload_sha256 text, fence text, fence_holder text, fence_caller text, fence_raised_at text, details jsonb
);

CREATE FUNCTION fencing.line_v1(entry fencing.entry) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN row_to_json(ROW(
    entry.position, entry.id, fencing.moment_v1(entry.at), entry.kind, entry.plane, entry.rule, entry.resource,
    entry.reason, entry.enforced, fencing.token_v1(entry.epoch, entry.value), entry.holder, entry.caller, entry.method,
    entry.target, entry.client, entry.request_id, entry.payload_size, entry.payload_sha256,
    fencing.token_v1(entry.fence_epoch, entry.fence_value), entry.fence_holder, entry.fence_caller,
    fencing.moment_v1(entry.fence_raised_at), entry.details
)::fencing.line)::text;

CREATE TYPE fencing.hashed_line AS (
    position bigint, id uuid, at text, kind text, plane text, rule text, resource text, reason text, enforced boolean,
    token text, holder text, caller text, method text, target text, client text, request_id text, payload_size bigint,
    payload_sha256 text, fence text, fence_holder text, fence_caller text, fence_raised_at text, details jsonb, hash text
);

CREATE FUNCTION fencing.ndjson_v1(entry fencing.entry) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN row_to_json(ROW(
    entry.position, entry.id, fencing.moment_v1(entry.at), entry.kind, entry.plane, entry.rule, entry.resource,
    entry.reason, entry.enforced, fencing.token_v1(entry.epoch, entry.value), entry.holder, entry.caller, entry.method,
    entry.target, entry.client, entry.request_id, entry.payload_size, entry.payload_sha256,
    fencing.token_v1(entry.fence_epoch, entry.fence_value), entry.fence_holder, entry.fence_caller,
    fencing.moment_v1(entry.fence_raised_at), entry.details, encode(entry.hash, 'hex')
)::fencing.hashed_line)::text;

CREATE FUNCTION fencing.next_hash_v1(state bytea, beginning bytea, line text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RETURN sha256(coalesce(state, beginning) || convert_to(line, 'UTF8'));
END
$function$;

CREATE AGGREGATE fencing.chain_v1(beginning bytea, line text) (SFUNC = fencing.next_hash_v1, STYPE = bytea);

CREATE FUNCTION fencing.seal_v1(p_limit integer, p_wait boolean DEFAULT true, OUT sealed integer, OUT "position" bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $function$
DECLARE
    head fencing.head;
    newest bigint;
BEGIN
    sealed := 0;
    SELECT h.position INTO STRICT position FROM fencing.head h;
    PERFORM FROM fencing.intake i ORDER BY i.number LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_wait THEN
        SELECT * INTO STRICT head FROM fencing.head h FOR UPDATE;
    ELSE
        SELECT * INTO head FROM fencing.head h FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            sealed := NULL;
            RETURN;
        END IF;
    END IF;
    head.day := greatest(head.day, (clock_timestamp() AT TIME ZONE 'UTC')::date);
    SELECT max(i.number) INTO newest FROM (SELECT number FROM fencing.intake ORDER BY number LIMIT p_limit) AS i;
    WITH taken AS (
        DELETE FROM fencing.intake i WHERE i.number <= newest RETURNING i.*
    ), placed AS (
        SELECT ROW(
            head.position + row_number() OVER (ORDER BY t.number), head.day, '\x'::bytea,
            t.id, t.at, t.kind, t.plane, t.rule, t.resource, t.reason, t.enforced, t.epoch, t.value, t.holder,
            t.caller, t.method, t.target, t.client, t.request_id, t.payload_size, t.payload_sha256, t.fence_epoch,
            t.fence_value, t.fence_holder, t.fence_caller, t.fence_raised_at, t.details
        )::fencing.entry AS entry
        FROM taken t
    ), chained AS (
        SELECT p.entry, fencing.chain_v1(head.hash, fencing.line_v1(p.entry))
            OVER (ORDER BY (p.entry).position ROWS UNBOUNDED PRECEDING) AS hash
        FROM placed p
    ), added AS (
        INSERT INTO fencing.entry (
            position, day, hash, id, at, kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller,
            method, target, client, request_id, payload_size, payload_sha256, fence_epoch, fence_value, fence_holder,
            fence_caller, fence_raised_at, details
        )
        SELECT
            (c.entry).position, (c.entry).day, c.hash, (c.entry).id, (c.entry).at, (c.entry).kind, (c.entry).plane,
            (c.entry).rule, (c.entry).resource, (c.entry).reason, (c.entry).enforced, (c.entry).epoch,
            (c.entry).value, (c.entry).holder, (c.entry).caller, (c.entry).method, (c.entry).target, (c.entry).client,
            (c.entry).request_id, (c.entry).payload_size, (c.entry).payload_sha256, (c.entry).fence_epoch,
            (c.entry).fence_value, (c.entry).fence_holder, (c.entry).fence_caller, (c.entry).fence_raised_at,
            (c.entry).details
        FROM chained c
        RETURNING entry.position, entry.hash
    ), counted AS (
        SELECT count(*) AS entries, max(a.position) AS last FROM added a
    )
    SELECT c.entries, c.last, a.hash INTO sealed, head.position, head.hash
    FROM counted c JOIN added a ON a.position = c.last;
    IF sealed > 0 THEN
        UPDATE fencing.head h SET position = head.position, hash = head.hash, day = head.day;
        PERFORM pg_notify('fencing_record', head.position::text);
        position := head.position;
    ELSE
        -- Another session has sealed everything while this one waited.
        sealed := 0;
        SELECT h.position INTO STRICT position FROM fencing.head h;
    END IF;
END
$function$;
REVOKE ALL ON FUNCTION fencing.seal_v1 FROM PUBLIC;

CREATE FUNCTION fencing.refuse_change_v1() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('%s of the record is refused: it is only ever added to.', TG_OP),
        HINT = 'Old days are dropped by the gateway, after audit.retention days.';
END
$function$;
CREATE TRIGGER entry_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fencing.entry
FOR EACH STATEMENT EXECUTE FUNCTION fencing.refuse_change_v1();
CREATE TRIGGER entry_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fencing.entry_other
FOR EACH STATEMENT EXECUTE FUNCTION fencing.refuse_change_v1();

CREATE FUNCTION fencing.stretches_v1() RETURNS TABLE (name text, first date, last date)
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT c.relname::text,
        to_date(substr(c.relname::text, 7, 8), 'YYYYMMDD'), to_date(right(c.relname::text, 8), 'YYYYMMDD')
    FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'fencing.entry'::regclass AND c.relname ~ '^entry_[0-9]{8}(_[0-9]{8})?$';
END;

CREATE FUNCTION fencing.prepare_days_v1(p_ahead integer, p_most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $function$
DECLARE
    today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    made integer := 0;
    next date;
    following date;
    name text;
BEGIN
    FOR next IN SELECT today + n FROM generate_series(0, least(p_ahead, 366)) AS s (n) LOOP
        EXIT WHEN made >= p_most;
        CONTINUE WHEN EXISTS (SELECT FROM fencing.stretches_v1() s WHERE next BETWEEN s.first AND s.last);
        -- One session at a time. Sealing and reading go on.
        LOCK TABLE fencing.entry IN SHARE UPDATE EXCLUSIVE MODE;
        CONTINUE WHEN EXISTS (SELECT FROM fencing.stretches_v1() s WHERE next BETWEEN s.first AND s.last)
            OR EXISTS (SELECT FROM fencing.entry_other o WHERE o.day = next);
        following := next + 1;
        WHILE extract(isodow FROM following) > 1
            AND NOT EXISTS (SELECT FROM fencing.stretches_v1() s WHERE following BETWEEN s.first AND s.last)
            AND NOT EXISTS (SELECT FROM fencing.entry_other o WHERE o.day = following)
        LOOP
            following := following + 1;
        END LOOP;
        name := 'entry_' || to_char(next, 'YYYYMMDD')
            || CASE WHEN following > next + 1 THEN '_' || to_char(following - 1, 'YYYYMMDD') ELSE '' END;
        EXECUTE format('CREATE TABLE fencing.%I (LIKE fencing.entry INCLUDING ALL)', name);
        EXECUTE format(
            'CREATE TRIGGER entry_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fencing.%I '
            'FOR EACH STATEMENT EXECUTE FUNCTION fencing.refuse_change_v1()', name);
        EXECUTE format(
            'ALTER TABLE fencing.entry ATTACH PARTITION fencing.%I FOR VALUES FROM (%L) TO (%L)', name, next, following);
        made := made + 1;
    END LOOP;
    RETURN made;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = 'The record is in use. Nothing was changed; call this again later.';
END
$function$;
REVOKE ALL ON FUNCTION fencing.prepare_days_v1 FROM PUBLIC;

CREATE FUNCTION fencing.drop_day_v1(p_keep integer) RETURNS date
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $function$
DECLARE
    before date := (clock_timestamp() AT TIME ZONE 'UTC')::date - p_keep;
    name text;
    gone record;
BEGIN
    IF p_keep IS NULL OR p_keep < 7 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'The record is kept for seven days at least.';
    END IF;
    -- One session at a time. Sealing and reading go on.
    LOCK TABLE fencing.entry IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT s.name INTO name FROM fencing.stretches_v1() s WHERE s.last < before ORDER BY s.last LIMIT 1;
    IF name IS NULL AND (SELECT max(o.day) FROM fencing.entry_other o) < before THEN
        name := 'entry_other';
    END IF;
    IF name IS NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT count(*) AS entries, min(position) AS first, max(position) AS last, max(day) AS day,
        (SELECT encode(e.hash, ''hex'') FROM fencing.%1$I e ORDER BY e.day DESC, e.position DESC LIMIT 1) AS hash
        FROM fencing.%1$I', name) INTO gone;
    EXECUTE format('ALTER TABLE fencing.entry DETACH PARTITION fencing.%I', name);
    EXECUTE format('DROP TABLE fencing.%I', name);
    IF name = 'entry_other' THEN
        CREATE TABLE fencing.entry_other PARTITION OF fencing.entry DEFAULT;
        CREATE TRIGGER entry_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fencing.entry_other
        FOR EACH STATEMENT EXECUTE FUNCTION fencing.refuse_change_v1();
    ELSE
        gone.day := to_date(right(name, 8), 'YYYYMMDD');
    END IF;
    IF gone.entries > 0 THEN
        INSERT INTO fencing.intake (kind, details) VALUES ('retention', jsonb_build_object(
            'day', gone.day, 'entries', gone.entries, 'first', gone.first, 'last', gone.last, 'hash', gone.hash));
    END IF;
    RETURN gone.day;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = 'The record is in use. Nothing was changed; call this again later.';
END
$function$;
REVOKE ALL ON FUNCTION fencing.drop_day_v1 FROM PUBLIC;

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
$function$;
REVOKE ALL ON FUNCTION fencing.drop_payloads_v1 FROM PUBLIC;

CREATE VIEW fencing.record AS
SELECT
    position, day, hash, id, at, kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method,
    target, client, request_id, payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller,
    fence_raised_at, details
FROM fencing.entry
UNION ALL
SELECT
    NULL, NULL, NULL, id, at, kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method,
    target, client, request_id, payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller,
    fence_raised_at, details
FROM fencing.intake;

CREATE VIEW fencing.rejection AS
SELECT resource, id, at, reason, enforced, epoch, value, holder, caller, method, target, client, request_id, payload_size,
    payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at
FROM fencing.record WHERE kind = 'rejection';

CREATE VIEW fencing.event AS
SELECT id, at, kind, resource, caller, holder, epoch, value, coalesce(details, '{}') AS details
FROM fencing.record WHERE kind LIKE 'lease-%' OR kind = 'epoch';

CREATE VIEW fencing.administration AS
SELECT id, at, caller, details ->> 'operation' AS operation, details ->> 'bucket' AS bucket,
    concat_ws(' ', method, target) AS target, client, request_id
FROM fencing.record WHERE kind = 'administration';

SELECT fencing.prepare_days_v1(0, 1);

CREATE TABLE fencing.lock (
    resource text COLLATE "C" PRIMARY KEY,
    epoch integer NOT NULL DEFAULT 0,
    value bigint NOT NULL DEFAULT 0,
    delayed_until timestamptz
) WITH (fillfactor = 70);

CREATE TABLE fencing.lease (
    resource text COLLATE "C" NOT NULL,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    holder text COLLATE "C" NOT NULL,
    caller text COLLATE "C" NOT NULL,
    mode text COLLATE "C" NOT NULL CHECK (mode IN ('exclusive', 'shared')),
    epoch integer NOT NULL,
    value bigint NOT NULL,
    request text COLLATE "C",
    ttl double precision NOT NULL,
    delay double precision NOT NULL,
    -- False while a lease that was handed over waits to be collected: until then no client has been told of it.
    confirmed boolean NOT NULL DEFAULT true,
    -- The place in the queue that it was handed over to.
    ticket bigint,
    attendant uuid,
    acquired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (resource, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE fencing.attendant (
    id uuid PRIMARY KEY,
    until timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE fencing.waiter (
    resource text COLLATE "C" NOT NULL,
    ticket bigint GENERATED ALWAYS AS IDENTITY,
    holder text COLLATE "C" NOT NULL,
    caller text COLLATE "C" NOT NULL,
    mode text COLLATE "C" NOT NULL CHECK (mode IN ('exclusive', 'shared')),
    request text COLLATE "C",
    ttl double precision NOT NULL,
    delay double precision NOT NULL,
    -- Seconds to collect the lease in.
    collect double precision NOT NULL,
    attendant uuid,
    until timestamptz CHECK ((attendant IS NULL) = (until IS NOT NULL)),
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (resource, ticket),
    UNIQUE (resource, holder, caller)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX waiter_attendant ON fencing.waiter (attendant) WHERE attendant IS NOT NULL;

CREATE VIEW fencing.living_waiter AS
SELECT w.* FROM fencing.waiter AS w LEFT JOIN fencing.attendant AS a ON a.id = w.attendant
WHERE coalesce(a.until, w.until) > clock_timestamp();

CREATE TABLE fencing.issuer (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch integer NOT NULL,
    system_identifier text NOT NULL,
    timeline text NOT NULL
);

CREATE FUNCTION fencing.record_lease_v1(p_kind text, p_lease fencing.lease, p_caller text, p_reason text)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    INSERT INTO fencing.intake (kind, resource, epoch, value, holder, caller, details)
    VALUES (p_kind, p_lease.resource, p_lease.epoch, p_lease.value, p_lease.holder, p_caller,
        jsonb_build_object('mode', p_lease.mode, 'acquired_at', p_lease.acquired_at)
        || CASE p_kind
            WHEN 'lease-granted' THEN jsonb_build_object('ttl', p_lease.ttl)
            WHEN 'lease-expired' THEN jsonb_build_object('expires_at', p_lease.expires_at)
            WHEN 'lease-broken' THEN jsonb_build_object('reason', p_reason, 'of', p_lease.caller)
            ELSE '{}' END);
END
$function$;

CREATE FUNCTION fencing.issuer_epoch_v1() RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    here text := (SELECT s.system_identifier::text FROM pg_control_system() AS s);
    line text := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
    known fencing.issuer;
BEGIN
    SELECT * INTO known FROM fencing.issuer;
    IF NOT FOUND THEN
        INSERT INTO fencing.issuer (epoch, system_identifier, timeline) VALUES (0, here, line) ON CONFLICT DO NOTHING;
        SELECT * INTO STRICT known FROM fencing.issuer;
    END IF;
    IF (known.system_identifier, known.timeline) = (here, line) THEN
        RETURN known.epoch;
    END IF;
    SELECT * INTO STRICT known FROM fencing.issuer FOR UPDATE;
    IF (known.system_identifier, known.timeline) <> (here, line) THEN
        UPDATE fencing.issuer SET epoch = known.epoch + 1, system_identifier = here, timeline = line;
        INSERT INTO fencing.intake (kind, epoch, value, details) VALUES ('epoch', known.epoch + 1, 0, jsonb_build_object(
            'before', jsonb_build_object('system_identifier', known.system_identifier, 'timeline', known.timeline),
            'now', jsonb_build_object('system_identifier', here, 'timeline', line)));
        known.epoch := known.epoch + 1;
    END IF;
    RETURN known.epoch;
END
$function$;

CREATE FUNCTION fencing.issue_v1(p_resource text, OUT epoch integer, OUT value bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    least_epoch integer := fencing.issuer_epoch_v1();
    least_value bigint := 0;
BEGIN
    SELECT f.epoch, f.value INTO epoch, value FROM fencing.fence f WHERE f.resource = p_resource;
    IF (epoch, value) > (least_epoch, least_value) THEN
        least_epoch := epoch;
        least_value := value;
    END IF;
    -- The caller has made sure that the lock is free or shared.
    SELECT l.epoch, l.value INTO epoch, value FROM fencing.lease l
    WHERE l.resource = p_resource ORDER BY l.epoch DESC, l.value DESC LIMIT 1;
    IF (epoch, value) >= (least_epoch, least_value) THEN
        RETURN;
    END IF;
    UPDATE fencing.lock l SET
        epoch = greatest(l.epoch, least_epoch),
        value = 1 + CASE WHEN (l.epoch, l.value) > (least_epoch, least_value) THEN l.value ELSE least_value END
    WHERE l.resource = p_resource
      AND CASE WHEN (l.epoch, l.value) > (least_epoch, least_value) THEN l.value ELSE least_value END < 9223372036854775807
    RETURNING l.epoch, l.value INTO epoch, value;
END
$function$;

CREATE FUNCTION fencing.lapse_v1(p_resource text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    lapsed fencing.lease;
BEGIN
    FOR lapsed IN
        DELETE FROM fencing.lease l WHERE l.resource = p_resource AND l.expires_at <= clock_timestamp() RETURNING l.*
    LOOP
        -- No client was told of an unconfirmed lease: there is no delay to keep, and nothing to record.
        CONTINUE WHEN NOT lapsed.confirmed;
        IF lapsed.delay > 0 THEN
            UPDATE fencing.lock l
            SET delayed_until = greatest(l.delayed_until, lapsed.expires_at + make_interval(secs => lapsed.delay))
            WHERE l.resource = p_resource;
        END IF;
        PERFORM fencing.record_lease_v1('lease-expired', lapsed, lapsed.caller, NULL);
    END LOOP;
END
$function$;

CREATE FUNCTION fencing.hand_over_v1(
    p_resource text, OUT handed bigint, OUT look_in double precision, OUT exhausted boolean
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    head fencing.living_waiter;
    held boolean;
    shared boolean;
    free_at timestamptz;
    delayed_until timestamptz;
    token record;
    next_exclusive bigint;
BEGIN
    exhausted := false;
    SELECT * INTO head FROM fencing.living_waiter w WHERE w.resource = p_resource ORDER BY w.ticket LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT count(*) > 0, bool_and(l.mode = 'shared'), max(l.expires_at) INTO held, shared, free_at
    FROM fencing.lease l WHERE l.resource = p_resource;
    SELECT l.delayed_until INTO delayed_until FROM fencing.lock l
    WHERE l.resource = p_resource AND l.delayed_until > clock_timestamp();
    IF delayed_until IS NULL AND (NOT held OR shared AND head.mode = 'shared') THEN
        token := fencing.issue_v1(p_resource);
        exhausted := token.value IS NULL;
        IF NOT exhausted THEN
            IF head.mode = 'shared' THEN
                SELECT min(w.ticket) INTO next_exclusive FROM fencing.living_waiter w
                WHERE w.resource = p_resource AND w.mode = 'exclusive';
            ELSE
                next_exclusive := head.ticket + 1;
            END IF;
            WITH handed_over AS (
                INSERT INTO fencing.lease (
                    resource, holder, caller, mode, epoch, value, request, ttl, delay, confirmed, ticket, attendant,
                    expires_at)
                SELECT p_resource, w.holder, w.caller, w.mode, token.epoch, token.value, w.request, w.ttl, w.delay,
                    false, w.ticket, w.attendant, clock_timestamp() + make_interval(secs => least(w.ttl, w.collect))
                FROM fencing.living_waiter w
                WHERE w.resource = p_resource AND w.ticket >= head.ticket
                  AND (next_exclusive IS NULL OR w.ticket < next_exclusive)
                RETURNING lease.ticket, lease.expires_at
            )
            SELECT max(h.ticket), greatest(free_at, max(h.expires_at)) INTO handed, free_at FROM handed_over h;
            DELETE FROM fencing.waiter w WHERE w.resource = p_resource AND w.ticket <= handed;
        END IF;
    END IF;
    look_in := extract(epoch FROM greatest(free_at, delayed_until) - clock_timestamp());
    IF handed IS NOT NULL THEN
        PERFORM pg_notify('fencing_lease', concat_ws(' ', handed, look_in, p_resource));
    END IF;
END
$function$;

CREATE FUNCTION fencing.place_v1(p_resource text, p_holder text, p_caller text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
BEGIN
    RETURN 1 + (
        SELECT count(*) FROM fencing.living_waiter w
        WHERE w.resource = p_resource AND w.ticket < coalesce((
            SELECT own.ticket FROM fencing.waiter own
            WHERE own.resource = p_resource AND own.holder = p_holder AND own.caller = p_caller
        ), 9223372036854775807)
    );
END
$function$;

CREATE FUNCTION fencing.acquire_v1(
    p_resource text, p_holder text, p_caller text, p_mode text, p_request text, p_ttl double precision,
    p_delay double precision, p_attendant uuid, p_attended double precision, p_collect double precision,
    OUT outcome text, OUT lease fencing.lease, OUT expires_in double precision, OUT fresh boolean, OUT ticket bigint,
    OUT handed bigint, OUT look_in double precision, OUT place bigint, OUT delayed_for double precision
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    in_queue boolean;
    queued boolean;
    exhausted boolean := false;
    held boolean;
    shared boolean;
    token record;
    moment timestamptz;
BEGIN
    -- A caller that only tries costs no commit, and does not wait for the row of the lock.
    IF p_attendant IS NULL THEN
        SELECT * INTO lease FROM fencing.lease l
        WHERE l.resource = p_resource AND l.mode = 'exclusive' AND (l.holder, l.caller) <> (p_holder, p_caller)
          AND l.expires_at > clock_timestamp();
        IF FOUND THEN
            outcome := 'held';
            expires_in := extract(epoch FROM lease.expires_at - clock_timestamp());
            place := fencing.place_v1(p_resource, p_holder, p_caller);
            RETURN;
        END IF;
    END IF;
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO fencing.lock (resource) VALUES (p_resource) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
        END IF;
    END IF;
    PERFORM fencing.lapse_v1(p_resource);
    in_queue := EXISTS (SELECT FROM fencing.waiter w WHERE w.resource = p_resource);
    IF in_queue THEN
        -- A holder that waits in another mode by now gives up its earlier place.
        DELETE FROM fencing.waiter w
        WHERE w.resource = p_resource AND w.holder = p_holder AND w.caller = p_caller AND w.mode <> p_mode
          AND p_attendant IS NOT NULL;
        SELECT h.handed, h.look_in, h.exhausted INTO handed, look_in, exhausted FROM fencing.hand_over_v1(p_resource) h;
    END IF;
    SELECT * INTO lease FROM fencing.lease l
    WHERE l.resource = p_resource AND l.holder = p_holder AND l.caller = p_caller;
    IF FOUND THEN
        IF lease.mode = 'shared' AND p_mode = 'exclusive' THEN
            outcome := 'upgrade';
            expires_in := extract(epoch FROM lease.expires_at - clock_timestamp());
            RETURN;
        END IF;
        fresh := NOT lease.confirmed;
        moment := clock_timestamp();
        UPDATE fencing.lease l SET
            confirmed = true, request = p_request, ttl = p_ttl, delay = p_delay,
            acquired_at = CASE WHEN fresh THEN moment ELSE l.acquired_at END,
            expires_at = CASE WHEN fresh THEN moment + make_interval(secs => p_ttl)
                              ELSE greatest(l.expires_at, moment + make_interval(secs => p_ttl)) END
        WHERE l.resource = p_resource AND l.id = lease.id RETURNING l.* INTO lease;
        expires_in := extract(epoch FROM lease.expires_at - moment);
        outcome := 'granted';
        IF fresh THEN
            PERFORM fencing.record_lease_v1('lease-granted', lease, p_caller, NULL);
        END IF;
        RETURN;
    END IF;
    lease := NULL;
    queued := in_queue AND EXISTS (SELECT FROM fencing.living_waiter w WHERE w.resource = p_resource);
    SELECT count(*) > 0, bool_and(l.mode = 'shared') INTO held, shared FROM fencing.lease l WHERE l.resource = p_resource;
    SELECT extract(epoch FROM l.delayed_until - clock_timestamp()) INTO delayed_for FROM fencing.lock l
    WHERE l.resource = p_resource AND l.delayed_until > clock_timestamp();
    IF NOT queued AND delayed_for IS NULL AND (NOT held OR shared AND p_mode = 'shared') THEN
        token := fencing.issue_v1(p_resource);
        exhausted := token.value IS NULL;
        IF NOT exhausted THEN
            moment := clock_timestamp();
            INSERT INTO fencing.lease AS l (
                resource, holder, caller, mode, epoch, value, request, ttl, delay, acquired_at, expires_at)
            VALUES (p_resource, p_holder, p_caller, p_mode, token.epoch, token.value, p_request, p_ttl, p_delay, moment,
                moment + make_interval(secs => p_ttl))
            RETURNING l.* INTO lease;
            PERFORM fencing.record_lease_v1('lease-granted', lease, p_caller, NULL);
            IF in_queue THEN
                -- A place of this holder that had lapsed must not come back to life beside the lease.
                DELETE FROM fencing.waiter w
                WHERE w.resource = p_resource AND w.holder = p_holder AND w.caller = p_caller;
            END IF;
            expires_in := p_ttl;
            fresh := true;
            outcome := 'granted';
            RETURN;
        END IF;
    END IF;
    IF exhausted THEN
        outcome := 'exhausted';
    ELSIF p_attendant IS NULL THEN
        outcome := 'held';
        SELECT * INTO lease FROM fencing.lease l WHERE l.resource = p_resource ORDER BY l.expires_at DESC LIMIT 1;
        expires_in := extract(epoch FROM lease.expires_at - clock_timestamp());
        place := fencing.place_v1(p_resource, p_holder, p_caller);
    ELSE
        outcome := 'waiting';
        IF NOT EXISTS (SELECT FROM fencing.attendant a WHERE a.id = p_attendant AND a.until > clock_timestamp()) THEN
            INSERT INTO fencing.attendant AS a (id, until)
            VALUES (p_attendant, clock_timestamp() + make_interval(secs => p_attended))
            ON CONFLICT (id) DO UPDATE SET until = excluded.until;
        END IF;
        INSERT INTO fencing.waiter AS w (resource, holder, caller, mode, request, ttl, delay, collect, attendant)
        VALUES (p_resource, p_holder, p_caller, p_mode, p_request, p_ttl, p_delay, p_collect, p_attendant)
        ON CONFLICT (resource, holder, caller) DO UPDATE SET
            request = excluded.request, ttl = excluded.ttl, delay = excluded.delay, collect = excluded.collect,
            attendant = excluded.attendant, until = NULL
        RETURNING w.ticket INTO ticket;
        SELECT greatest(extract(epoch FROM max(l.expires_at) - clock_timestamp()), delayed_for) INTO look_in
        FROM fencing.lease l WHERE l.resource = p_resource;
    END IF;
END
$function$;

CREATE FUNCTION fencing.renew_v1(p_resources text[], p_ids uuid[], p_callers text[], p_ttls double precision[])
RETURNS TABLE (lease fencing.lease, expires_in double precision, forbidden boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    moment timestamptz;
BEGIN
    FOR i IN 1..cardinality(p_ids) LOOP
        moment := clock_timestamp();
        UPDATE fencing.lease l
        SET ttl = coalesce(p_ttls[i], l.ttl), expires_at = moment + make_interval(secs => coalesce(p_ttls[i], l.ttl))
        WHERE l.resource = p_resources[i] AND l.id = p_ids[i] AND l.caller = p_callers[i]
          AND l.expires_at > clock_timestamp()
        RETURNING l.* INTO lease;
        IF FOUND THEN
            expires_in := extract(epoch FROM lease.expires_at - moment);
            forbidden := false;
        ELSE
            lease := NULL;
            expires_in := NULL;
            forbidden := EXISTS (
                SELECT FROM fencing.lease l WHERE l.resource = p_resources[i] AND l.id = p_ids[i]
                  AND l.caller <> p_callers[i] AND l.expires_at > clock_timestamp()
            );
        END IF;
        RETURN NEXT;
    END LOOP;
END
$function$;

CREATE FUNCTION fencing.advance_v1(p_resource text, OUT handed bigint, OUT look_in double precision)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
BEGIN
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$;

CREATE FUNCTION fencing.release_v1(
    p_resource text, p_id uuid, p_caller text, OUT outcome text, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    ended fencing.lease;
BEGIN
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    DELETE FROM fencing.lease l WHERE l.resource = p_resource AND l.id = p_id AND l.caller = p_caller RETURNING l.* INTO ended;
    outcome := CASE
        WHEN FOUND THEN 'released'
        WHEN EXISTS (SELECT FROM fencing.lease l WHERE l.resource = p_resource AND l.id = p_id) THEN 'forbidden'
        ELSE 'lost' END;
    IF ended.confirmed THEN
        PERFORM fencing.record_lease_v1('lease-released', ended, p_caller, NULL);
    END IF;
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$;

CREATE FUNCTION fencing.withdraw_v1(
    p_resource text, p_holder text, p_caller text, p_request text, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    ended fencing.lease;
BEGIN
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    DELETE FROM fencing.waiter w
    WHERE w.resource = p_resource AND w.holder = p_holder AND w.caller = p_caller AND w.request = p_request;
    DELETE FROM fencing.lease l
    WHERE l.resource = p_resource AND l.holder = p_holder AND l.caller = p_caller AND l.request = p_request
    RETURNING l.* INTO ended;
    IF ended.confirmed THEN
        PERFORM fencing.record_lease_v1('lease-released', ended, p_caller, NULL);
    END IF;
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$;

CREATE FUNCTION fencing.leave_v1(
    p_attendant uuid, p_resources text[], p_tickets bigint[], p_linger double precision
) RETURNS TABLE (resource text, handed bigint, look_in double precision)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
BEGIN
    FOR resource IN SELECT DISTINCT u.r COLLATE "C" FROM unnest(p_resources) AS u (r) ORDER BY 1 LOOP
        PERFORM FROM fencing.lock l WHERE l.resource = leave_v1.resource FOR UPDATE;
        UPDATE fencing.waiter w SET attendant = NULL, until = clock_timestamp() + make_interval(secs => p_linger)
        FROM unnest(p_resources, p_tickets) AS u (r, t)
        WHERE u.r = leave_v1.resource AND w.resource = u.r AND w.ticket = u.t AND w.attendant = p_attendant
          AND w.request IS NOT NULL;
        DELETE FROM fencing.waiter w USING unnest(p_resources, p_tickets) AS u (r, t)
        WHERE u.r = leave_v1.resource AND w.resource = u.r AND w.ticket = u.t AND w.attendant = p_attendant
          AND w.request IS NULL;
        DELETE FROM fencing.lease l USING unnest(p_resources, p_tickets) AS u (r, t)
        WHERE u.r = leave_v1.resource AND l.resource = u.r AND l.ticket = u.t AND l.attendant = p_attendant
          AND l.request IS NULL AND NOT l.confirmed;
        PERFORM fencing.lapse_v1(resource);
        SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(resource) h;
        RETURN NEXT;
    END LOOP;
END
$function$;

CREATE FUNCTION fencing.break_v1(
    p_resource text, p_epoch integer, p_value bigint, p_caller text, p_reason text,
    OUT broken integer, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    ended fencing.lease;
BEGIN
    broken := 0;
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    FOR ended IN
        DELETE FROM fencing.lease l WHERE l.resource = p_resource AND (l.epoch, l.value) = (p_epoch, p_value) RETURNING l.*
    LOOP
        broken := broken + 1;
        UPDATE fencing.lock l
        SET delayed_until = greatest(l.delayed_until, clock_timestamp() + make_interval(secs => ended.delay))
        WHERE l.resource = p_resource AND ended.delay > 0 AND ended.confirmed;
        PERFORM fencing.record_lease_v1('lease-broken', ended, p_caller, p_reason);
    END LOOP;
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$;

CREATE FUNCTION fencing.attend_v1(
    p_attendant uuid, p_attended double precision,
    OUT waiting bigint[], OUT due text[]
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
BEGIN
    INSERT INTO fencing.attendant AS a (id, until)
    VALUES (p_attendant, clock_timestamp() + make_interval(secs => p_attended))
    ON CONFLICT (id) DO UPDATE SET until = excluded.until;
    waiting := ARRAY(SELECT w.ticket FROM fencing.waiter w WHERE w.attendant = p_attendant);
    due := ARRAY(
        SELECT m.resource FROM (
            SELECT DISTINCT w.resource FROM fencing.waiter w WHERE w.attendant = p_attendant
        ) AS m
        WHERE NOT EXISTS (
            SELECT FROM fencing.lock k WHERE k.resource = m.resource AND k.delayed_until > clock_timestamp()
        ) AND (
            NOT EXISTS (
                SELECT FROM fencing.lease l WHERE l.resource = m.resource AND l.expires_at > clock_timestamp()
            ) OR (SELECT min(w.ticket) FROM fencing.waiter w WHERE w.resource = m.resource)
               < (SELECT w.ticket FROM fencing.living_waiter w WHERE w.resource = m.resource ORDER BY w.ticket LIMIT 1)
        )
        ORDER BY m.resource
    );
END
$function$;

CREATE FUNCTION fencing.bump_epoch_v1(
    p_resource text, p_epoch integer, p_value bigint, p_caller text, p_reason text,
    OUT outcome text, OUT fence fencing.fence, OUT ended integer
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    overtaken fencing.fence;
    lease fencing.lease;
BEGIN
    ended := 0;
    outcome := 'mismatch';
    SELECT * INTO fence FROM fencing.fence f WHERE f.resource = p_resource;
    IF NOT FOUND OR (fence.epoch, fence.value) <> (p_epoch, p_value) THEN
        RETURN;
    END IF;
    INSERT INTO fencing.lock (resource) VALUES (p_resource) ON CONFLICT DO NOTHING;
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    SELECT * INTO STRICT fence FROM fencing.fence f WHERE f.resource = p_resource FOR UPDATE;
    IF (fence.epoch, fence.value) <> (p_epoch, p_value) THEN
        RETURN;
    ELSIF fence.epoch = 2147483647 THEN
        outcome := 'exhausted';
        RETURN;
    END IF;
    outcome := 'done';
    overtaken := fence;
    UPDATE fencing.fence f
    SET epoch = overtaken.epoch + 1, value = 0, holder = NULL, caller = p_caller, write_id = NULL,
        raised_at = clock_timestamp()
    WHERE f.resource = p_resource RETURNING f.* INTO fence;
    PERFORM fencing.lapse_v1(p_resource);
    FOR lease IN
        DELETE FROM fencing.lease l WHERE l.resource = p_resource AND (l.epoch, l.value) < (fence.epoch, fence.value)
        RETURNING l.*
    LOOP
        ended := ended + 1;
        UPDATE fencing.lock l
        SET delayed_until = greatest(l.delayed_until, clock_timestamp() + make_interval(secs => lease.delay))
        WHERE l.resource = p_resource AND lease.delay > 0 AND lease.confirmed;
        PERFORM fencing.record_lease_v1('lease-broken', lease, p_caller, p_reason);
    END LOOP;
    INSERT INTO fencing.intake (
        at, kind, resource, epoch, value, caller,
        fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details)
    VALUES (fence.raised_at, 'epoch', p_resource, fence.epoch, fence.value, p_caller,
        overtaken.epoch, overtaken.value, overtaken.holder, overtaken.caller, overtaken.raised_at,
        jsonb_build_object('reason', p_reason, 'before', jsonb_build_object('epoch', p_epoch, 'value', p_value),
            'leases_ended', ended));
    PERFORM fencing.hand_over_v1(p_resource);
END
$function$;

CREATE TABLE fencing.webhook (
    name text COLLATE "C" PRIMARY KEY,
    -- Everything up to here was received, or was not for this webhook. Never goes back.
    position bigint NOT NULL,
    -- The day of that entry, by which the partitions before are left out.
    day date NOT NULL,
    -- The last entry of the message that is being sent, or was when it failed: sent again, it is the same message.
    sending bigint,
    failures integer NOT NULL DEFAULT 0,
    failing_since timestamptz,
    last_error text,
    not_before timestamptz,
    -- The receiver has said that it is gone: nothing is sent until it accepts a test message.
    paused_at timestamptz,
    delivered_at timestamptz,
    -- The gateway that delivers, and until when no other one does. By the database's clock, and never a lock: HTTP can
    -- be slow.
    owner uuid,
    owned_until timestamptz
) WITH (fillfactor = 70);

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
    -- Since when the alarm is on, what it has counted, and the entry that says so.
    since timestamptz,
    total bigint NOT NULL DEFAULT 0,
    raised uuid
) WITH (fillfactor = 70);

CREATE FUNCTION fencing.read_token_v1(token text, OUT epoch integer, OUT value bigint)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    parts text[] := regexp_match(token COLLATE "C", '^(?:(0|[1-9][0-9]{0,9})\.)?(0|[1-9][0-9]{0,18})$');
BEGIN
    IF coalesce(parts[1], '0')::bigint <= 2147483647 AND parts[2]::numeric <= 9223372036854775807 THEN
        epoch := coalesce(parts[1], '0')::integer;
        value := parts[2]::bigint;
    END IF;
END
$function$;

CREATE FUNCTION fencing.session_role_v1() RETURNS text LANGUAGE sql STABLE
RETURN 'role:' || coalesce(nullif(current_setting('role'), 'none'), session_user);

CREATE FUNCTION fencing.transaction_v1() RETURNS uuid LANGUAGE sql STABLE
RETURN md5(pg_current_xact_id()::text || ' ' || extract(epoch FROM now()))::uuid;

CREATE FUNCTION fencing.declared_v1() RETURNS jsonb LANGUAGE sql STABLE
RETURN CASE
    WHEN current_setting('fencing.resource', true) <> '' AND current_setting('fencing.token', true) <> ''
    THEN jsonb_build_object(current_setting('fencing.resource', true), jsonb_build_object(
        'token', current_setting('fencing.token', true), 'holder', nullif(current_setting('fencing.holder', true), '')))
    ELSE '{}' END || coalesce(nullif(current_setting('fencing.held', true), '')::jsonb, '{}');

CREATE FUNCTION fencing.reasons_v1() RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN ARRAY[
    'token-stale', 'token-duplicate', 'token-used', 'token-required', 'token-unclaimed', 'token-malformed',
    'resource-malformed', 'holder-malformed', 'resource-mismatch', 'resource-underivable', 'isolation', 'writes-pending'];

CREATE FUNCTION fencing.word_refusal_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    raised text := CASE WHEN p_fence.epoch > 0 THEN p_fence.epoch || '.' ELSE '' END || p_fence.value;
    raised_by text := coalesce(p_fence.holder, p_fence.caller, 'an unnamed holder');
    -- Cut to the longest name and token: settings and columns can have any length.
    resource text := coalesce(left(p_resource, 512), 'a row whose columns do not make up a resource name');
    facts jsonb := jsonb_strip_nulls(jsonb_build_object(
        'code', p_reason, 'resource', left(p_resource, 512), 'token', left(p_token, 64), 'holder', left(p_holder, 200),
        'fence', raised,
        'raised_by', CASE WHEN raised IS NOT NULL THEN raised_by END,
        'raised_at', to_char(p_fence.raised_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'caller', fencing.session_role_v1(), 'target', p_target));
    family text := CASE WHEN current_setting('fencing.dialect', true) = 'postgrest' THEN 'PT' ELSE 'FN' END;
    overtaken text := 'Stop writing: a newer holder has taken over and retrying cannot succeed. '
        'Acquire the lock again to get a newer token.';
    hold_first text := 'In the transaction of the write, before it: SELECT fencing.hold(resource, token);';
    status text;
    said text;
    advice text;
BEGIN
    CASE p_reason
        WHEN 'token-stale' THEN
            status := '412';
            said := format('The fencing token %s of %s has been overtaken by %s, raised by %s.',
                p_token, resource, raised, raised_by);
            advice := overtaken;
        WHEN 'token-duplicate' THEN
            status := '412';
            said := format('Another holder, %s, uses the fencing token %s of %s.', raised_by, p_token, resource);
            advice := 'Stop writing: two holders were given one token, so the lock service is broken. '
                'Retrying cannot succeed; repair the issuer.';
        WHEN 'token-used' THEN
            status := '412';
            said := format('The fencing token %s of %s has already written.', p_token, resource);
            advice := 'This resource is strict: each token writes once. Acquire the lock again to get a newer token.';
        WHEN 'token-required' THEN
            status := '428';
            said := format('A write of %s touches %s and holds no fencing token.', p_target, resource);
            advice := hold_first;
        WHEN 'token-unclaimed' THEN
            status := '428';
            said := format('The fencing token %s of %s had not been claimed when this statement began.',
                p_token, resource);
            advice := 'A statement must not claim the token it writes with: it would miss what the holder before has '
                'just committed. ' || hold_first;
        WHEN 'token-malformed' THEN
            status := '400';
            said := format('%s is not a fencing token.', coalesce(quote_literal(left(p_token, 64)), 'null'));
            advice := 'Give digits without sign, space or leading zero, optionally ''epoch.value'', as text.';
        WHEN 'resource-malformed' THEN
            status := '400';
            said := 'The resource name is not in canonical form.';
            advice := 'Use at most 512 bytes of RFC 3986 path characters and percent-encode everything else.';
        WHEN 'holder-malformed' THEN
            status := '400';
            said := 'The name of the holder must be 1 to 200 printable ASCII characters.';
            advice := 'Correct the name, or leave it out.';
        WHEN 'resource-mismatch' THEN
            status := '422';
            said := format('A write of %s touches %s, which this transaction does not hold.', p_target, resource);
            advice := 'Narrow the write to the resources whose locks you hold, or hold this one too.';
        WHEN 'resource-underivable' THEN
            status := '422';
            said := format('TRUNCATE %s touches every row, whatever its resource.', p_target);
            advice := 'Use DELETE with conditions that pick the rows of the resources you hold.';
        WHEN 'isolation' THEN
            status := '409';
            said := format('The fencing token %s of %s cannot be claimed in a %s transaction.',
                p_token, resource, upper(current_setting('transaction_isolation')));
            advice := 'Its snapshot may be older than what the holder before has committed. Claim it in a READ '
                'COMMITTED transaction of its own first; then it can be held here.';
        WHEN 'writes-pending' THEN
            status := '503';
            said := format('An object write of an older holder is pending on %s.', resource);
            advice := format('Only the gateway can settle it. Call its barrier, POST /v1/fences/%s/barrier, then '
                'start this transaction again.', resource);
    END CASE;
    RAISE LOG 'fencing: refused %', facts;
    RAISE EXCEPTION USING ERRCODE = family || status, MESSAGE = said, DETAIL = facts::text, HINT = advice;
END
$function$;

CREATE FUNCTION fencing.refuse_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    PERFORM fencing.count_refusal_v1(p_reason, p_target);
    PERFORM fencing.word_refusal_v1(p_reason, p_resource, p_token, p_holder, p_fence, p_target);
END
$function$;

CREATE FUNCTION fencing.hold(resource text, token text, holder text DEFAULT NULL, strict boolean DEFAULT false)
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    shown record := fencing.read_token_v1(hold.token);
    claimed record;
    reason text;
BEGIN
    reason := CASE
        WHEN fencing.canonical_v1(hold.resource) IS NOT TRUE THEN 'resource-malformed'
        WHEN shown.value IS NULL THEN 'token-malformed'
        WHEN hold.holder COLLATE "C" !~ '^[!-~]([ -~]{0,198}[!-~])?$' THEN 'holder-malformed'
        -- At these levels the snapshot does not move while the claim waits. A token that it already shows may be held.
        WHEN current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AND NOT EXISTS (
            SELECT FROM fencing.fence f
            WHERE f.resource = hold.resource AND (f.epoch, f.value) >= (shown.epoch, shown.value)) THEN 'isolation'
        END;
    IF reason IS NOT NULL THEN
        PERFORM fencing.refuse_v1(reason, hold.resource, hold.token, hold.holder, NULL, NULL);
    END IF;
    claimed := fencing.claim_v1(hold.resource, shown.epoch, shown.value, hold.holder, fencing.session_role_v1(),
        coalesce(hold.strict, false), fencing.transaction_v1());
    IF claimed.decision NOT IN ('raised', 'held') THEN
        PERFORM fencing.refuse_v1(claimed.decision, hold.resource, hold.token, hold.holder, claimed.fence, NULL);
    ELSIF claimed.pending THEN
        PERFORM fencing.refuse_v1('writes-pending', hold.resource, hold.token, hold.holder, claimed.fence, NULL);
    END IF;
    PERFORM set_config('fencing.held', (
        coalesce(nullif(current_setting('fencing.held', true), '')::jsonb, '{}')
        || jsonb_build_object(hold.resource, jsonb_build_object('token', hold.token, 'holder', hold.holder))
    )::text, true);
    RETURN claimed.decision;
END
$function$;
REVOKE ALL ON FUNCTION fencing.hold FROM PUBLIC;

CREATE FUNCTION fencing.guard_lock_v1(p_resource text) RETURNS fencing.fence
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    fence fencing.fence;
BEGIN
    SELECT * INTO STRICT fence FROM fencing.fence f WHERE f.resource = p_resource FOR SHARE;
    RETURN fence;
END
$function$;

CREATE FUNCTION fencing.guard_judge_v1(
    p_resource text, p_strict boolean, OUT reason text, OUT token text, OUT holder text, OUT fence fencing.fence
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    declared jsonb := fencing.declared_v1();
    shown record;
BEGIN
    IF p_resource IS NULL OR NOT declared ? p_resource THEN
        reason := CASE WHEN declared = '{}' THEN 'token-required' ELSE 'resource-mismatch' END;
        RETURN;
    END IF;
    token := declared -> p_resource ->> 'token';
    holder := declared -> p_resource ->> 'holder';
    shown := fencing.read_token_v1(token);
    IF shown.value IS NULL THEN
        reason := 'token-malformed';
        RETURN;
    END IF;
    SELECT * INTO fence FROM fencing.fence f WHERE f.resource = p_resource;
    IF fence.resource IS NULL OR (fence.epoch, fence.value) < (shown.epoch, shown.value) THEN
        reason := 'token-unclaimed';
        RETURN;
    END IF;
    IF (fence.epoch, fence.value) = (shown.epoch, shown.value) THEN
        fence := fencing.guard_lock_v1(p_resource);
    END IF;
    reason := CASE
        WHEN (fence.epoch, fence.value) > (shown.epoch, shown.value) THEN 'token-stale'
        WHEN holder <> fence.holder THEN 'token-duplicate'
        WHEN p_strict AND fence.write_id IS NULL THEN 'token-unclaimed'
        WHEN p_strict AND fence.write_id <> fencing.transaction_v1() THEN 'token-used'
        WHEN EXISTS (
            SELECT FROM fencing.intent i
            WHERE i.resource = p_resource AND (i.epoch, i.value) < (shown.epoch, shown.value)) THEN 'writes-pending'
        END;
END
$function$;

CREATE FUNCTION fencing.guard_note_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text, p_operation text
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    shown record := fencing.read_token_v1(p_token);
    noted_in text := 'transaction/' || pg_current_xact_id();
BEGIN
    INSERT INTO fencing.intake (
        kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method, target, client, request_id,
        fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
    SELECT 'rejection', 'tables', p_target, left(p_resource, 512), p_reason, false, shown.epoch, shown.value,
        left(p_holder, 200), fencing.session_role_v1(), p_operation, p_target, host(inet_client_addr()), noted_in,
        p_fence.epoch, p_fence.value, p_fence.holder, p_fence.caller, p_fence.raised_at
    WHERE NOT EXISTS (
        SELECT FROM fencing.intake i
        WHERE i.request_id LIKE 'transaction/%' AND i.request_id = noted_in
          AND (i.resource, i.reason, i.target) = (left(p_resource, 512), p_reason, p_target));
END
$function$;

CREATE FUNCTION fencing.guard_v1(
    p_resource text, p_target text, p_operation text, p_observe boolean, p_strict boolean
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    judged record := fencing.guard_judge_v1(p_resource, p_strict);
BEGIN
    IF judged.reason IS NULL THEN
        RETURN;
    ELSIF p_observe THEN
        PERFORM fencing.guard_note_v1(
            judged.reason, coalesce(p_resource, p_target), judged.token, judged.holder, judged.fence, p_target,
            p_operation);
    ELSE
        PERFORM fencing.refuse_v1(judged.reason, p_resource, judged.token, judged.holder, judged.fence, p_target);
    END IF;
END
$function$;

CREATE FUNCTION fencing.guard_statement_v1() RETURNS trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    name text;
BEGIN
    FOR name IN SELECT k.name FROM jsonb_object_keys(fencing.declared_v1()) AS k (name) ORDER BY k.name COLLATE "C" LOOP
        PERFORM fencing.guard_v1(name, TG_ARGV[4], TG_OP, TG_ARGV[0] = 'observe', false);
    END LOOP;
    RETURN NULL;
END
$function$;

CREATE FUNCTION fencing.guard_truncate_v1() RETURNS trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF TG_ARGV[3] NOT LIKE '%{%' THEN
        PERFORM fencing.guard_v1(TG_ARGV[3], TG_ARGV[4], TG_OP, TG_ARGV[0] = 'observe', TG_ARGV[1] = 'strict');
    ELSIF TG_ARGV[0] = 'observe' THEN
        PERFORM fencing.guard_note_v1('resource-underivable', TG_ARGV[4], NULL, NULL, NULL, TG_ARGV[4], TG_OP);
    ELSE
        PERFORM fencing.refuse_v1('resource-underivable', TG_ARGV[4], NULL, NULL, NULL, TG_ARGV[4]);
    END IF;
    RETURN NULL;
END
$function$;
REVOKE ALL ON FUNCTION fencing.guard_statement_v1, fencing.guard_truncate_v1 FROM PUBLIC;

CREATE TABLE fencing.guarded (
    relation regclass PRIMARY KEY,
    -- The table as the record names it.
    target text NOT NULL,
    -- The triggers that were missing or switched off at the last look.
    lacking text[] NOT NULL DEFAULT '{}'
);

CREATE TABLE fencing.watch (
    relation regclass PRIMARY KEY,
    target text NOT NULL,
    -- The shape of the columns when all stamps were right; null as long as the stamps have not been taken.
    shape bigint,
    -- The shape that this pass began with.
    passing bigint,
    -- How far this pass has compared rows with stamps, and stamps with rows.
    block bigint NOT NULL DEFAULT 0,
    after text[] COLLATE "C" NOT NULL DEFAULT '{}',
    -- Counts passes.
    round bigint NOT NULL DEFAULT 0,
    taken_at timestamptz NOT NULL DEFAULT '-infinity'
);

CREATE TABLE fencing.stamp (
    relation regclass NOT NULL,
    key text[] COLLATE "C" NOT NULL,
    hash bigint NOT NULL,
    resource text COLLATE "C",
    suspect boolean NOT NULL DEFAULT false,
    PRIMARY KEY (relation, key)
) WITH (fillfactor = 70);
CREATE INDEX stamp_suspect ON fencing.stamp (relation) WHERE suspect;

CREATE FUNCTION fencing.stamp_v1(p_relation oid, p_key text[], p_before bigint, p_after bigint, p_resource text)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF p_before IS NULL THEN
        INSERT INTO fencing.stamp (relation, key, hash, resource) VALUES (p_relation, p_key, p_after, p_resource)
        ON CONFLICT DO NOTHING;
    ELSIF p_after IS NULL THEN
        DELETE FROM fencing.stamp s WHERE s.relation = p_relation AND s.key = p_key AND s.hash = p_before;
    ELSE
        UPDATE fencing.stamp s SET hash = p_after, resource = p_resource
        WHERE s.relation = p_relation AND s.key = p_key AND s.hash = p_before;
    END IF;
    IF NOT FOUND THEN
        INSERT INTO fencing.stamp AS s (relation, key, hash, resource, suspect)
        VALUES (p_relation, p_key, coalesce(p_before, 0) # coalesce(p_after, 0), p_resource, true)
        ON CONFLICT (relation, key) DO UPDATE
        SET hash = s.hash # excluded.hash, resource = excluded.resource, suspect = true;
    END IF;
END
$function$;

CREATE FUNCTION fencing.stamp_truncate_v1() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    DELETE FROM fencing.stamp s WHERE s.relation = TG_RELID;
    RETURN NULL;
END
$function$;
REVOKE ALL ON FUNCTION fencing.stamp_truncate_v1 FROM PUBLIC;

CREATE FUNCTION fencing.shape_v1(p_relation oid) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp RETURN (
    SELECT hashtextextended(current_setting('server_version_num')::integer / 10000 || ' ' || string_agg(
        format('%s %s %s %s', a.attnum, a.attname, a.atttypid, a.atttypmod)
        || coalesce((
            SELECT string_agg(e.enumlabel, ',' ORDER BY e.enumsortorder) FROM pg_enum e
            WHERE e.enumtypid IN (a.atttypid, t.typelem, t.typbasetype)), '')
        || coalesce((
            SELECT string_agg(format('%s %s', p.attnum, p.atttypid), ',' ORDER BY p.attnum) FROM pg_attribute p
            WHERE p.attrelid = t.typrelid AND t.typrelid <> 0 AND p.attnum > 0 AND NOT p.attisdropped), ''),
        ';' ORDER BY a.attnum), 0)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = p_relation AND a.attnum > 0 AND NOT a.attisdropped
);

CREATE FUNCTION fencing.guard_removed_v1(p_relation regclass) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    parts oid[] := ARRAY(SELECT p_relation::oid UNION SELECT t.relid::oid FROM pg_partition_tree(p_relation) AS t);
BEGIN
    DELETE FROM fencing.guarded g WHERE g.relation = p_relation;
    DELETE FROM fencing.watch w WHERE w.relation = ANY (parts);
    DELETE FROM fencing.stamp s WHERE s.relation = ANY (parts);
END
$function$;

CREATE FUNCTION fencing.guard_installed_v1(p_relation regclass, p_target text, p_watches boolean) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    sweeper oid := (SELECT c.relowner FROM pg_class c WHERE c.oid = 'fencing.stamp'::regclass);
    watched regclass;
    naming text;
BEGIN
    IF NOT p_watches THEN
        PERFORM fencing.guard_removed_v1(p_relation);
    END IF;
    INSERT INTO fencing.guarded (relation, target) VALUES (p_relation, p_target)
    ON CONFLICT (relation) DO UPDATE SET target = excluded.target, lacking = '{}';
    INSERT INTO fencing.watch (relation, target)
    SELECT c.oid, p_target FROM pg_class c
    WHERE p_watches AND c.relkind = 'r'
      AND (c.oid = p_relation OR c.oid IN (SELECT t.relid FROM pg_partition_tree(p_relation) AS t))
    ON CONFLICT (relation) DO UPDATE SET target = excluded.target;
    IF NOT p_watches THEN
        RETURN;
    END IF;
    FOR watched IN
        SELECT w.relation FROM fencing.watch w
        WHERE w.target = p_target AND NOT has_table_privilege(sweeper, w.relation, 'SELECT')
    LOOP
        EXECUTE format('GRANT SELECT ON %s TO %s', watched, sweeper::regrole);
    END LOOP;
    naming := (
        SELECT replace(p.proname, 'guard_', 'named_') FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        WHERE t.tgrelid = p_relation AND t.tgname = 'fencing_guard_row');
    IF NOT has_function_privilege(sweeper, format('fencing.%I(anyelement)', naming), 'EXECUTE') THEN
        EXECUTE format('GRANT EXECUTE ON FUNCTION fencing.%I(anyelement) TO %s', naming, sweeper::regrole);
    END IF;
END
$function$;

CREATE TYPE fencing.finding AS (reason text, resource text, target text, found_by text, rows bigint);

CREATE FUNCTION fencing.watch_pieces_v1(p_relation regclass, OUT key text, OUT same text, OUT named text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $function$
    SELECT
        'ARRAY[' || string_agg(format('format(''%%s'', t.%I)', a.attname), ', ' ORDER BY k.n) || ']',
        string_agg(format('t.%I = s.key[%s]::%s', a.attname, k.n,
            format_type(coalesce(nullif(y.typbasetype, 0), y.oid), NULL)), ' AND ' ORDER BY k.n),
        coalesce((
            SELECT format('fencing.%I(t)', replace(p.proname, 'guard_', 'named_'))
            FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
            WHERE g.tgrelid = p_relation AND g.tgname = 'fencing_guard_row'
              AND p.pronamespace = 'fencing'::regnamespace), 'NULL')
    FROM pg_index i
    CROSS JOIN unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, n)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
    JOIN pg_type y ON y.oid = a.atttypid
    WHERE i.indrelid = p_relation AND i.indisprimary AND k.n <= i.indnkeyatts
$function$;
REVOKE ALL ON FUNCTION fencing.watch_pieces_v1 FROM PUBLIC;

CREATE FUNCTION fencing.watch_step_v1(
    p_relation regclass, p_rest interval, p_blocks bigint, p_stamps bigint,
    OUT relation regclass, OUT passed boolean, OUT findings fencing.finding[]
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO, YMD' SET intervalstyle = 'iso_8601'
SET bytea_output = 'hex' SET extra_float_digits = 1 SET lc_monetary = 'C' SET lock_timeout = '100ms' AS $function$
DECLARE
    watch fencing.watch;
    pieces record;
    shape bigint;
    quiet boolean;
    hash text := 'hashtextextended(format(''%s'', t) COLLATE "C", 0)';
    of_stamps text;
    of_rows text;
    correct text;
    more fencing.finding[];
    blocks bigint;
    last text[];
BEGIN
    findings := '{}';
    SELECT * INTO watch FROM fencing.watch w
    WHERE (p_relation IS NULL OR w.relation = p_relation) AND w.taken_at <= clock_timestamp() - p_rest
      -- A partition that was added later may belong to another role, and not be readable.
      AND has_table_privilege(w.relation, 'SELECT')
    ORDER BY w.taken_at LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    relation := watch.relation;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS SHARE MODE', relation);
    pieces := fencing.watch_pieces_v1(relation);
    shape := fencing.shape_v1(relation);
    IF pieces.key IS NULL OR shape IS NULL THEN
        UPDATE fencing.watch w SET taken_at = clock_timestamp() WHERE w.relation = watch.relation;
        RETURN;
    END IF;
    quiet := watch.shape IS DISTINCT FROM shape;
    IF watch.passing IS DISTINCT FROM shape THEN
        watch.passing := shape;
        watch.block := 0;
        watch.after := '{}';
    END IF;
    of_stamps := format(
        'SELECT s.key, r.hash AS current, s.hash AS stamped, s.resource, s.suspect FROM (SELECT * FROM fencing.stamp AS s '
        'WHERE s.relation = $1 AND @WHICH@ LIMIT $4) AS s '
        'LEFT JOIN LATERAL (SELECT %s FROM ONLY %s AS t WHERE %s) AS r (hash) ON true', hash, relation, pieces.same);
    of_rows := format(
        'SELECT r.key, r.hash AS current, s.hash AS stamped, coalesce(s.resource, r.named) AS resource, false AS suspect FROM ('
        'SELECT %s AS key, %s AS hash, %s AS named FROM ONLY %s AS t WHERE t.ctid >= $2::text::tid AND t.ctid < $3::text::tid'
        ') AS r LEFT JOIN fencing.stamp AS s ON s.relation = $1 AND s.key = r.key '
        'WHERE s.hash IS DISTINCT FROM r.hash', pieces.key, hash, pieces.named, relation);
    correct := '
        WITH compared AS MATERIALIZED (@COMPARED@), misfit AS (
            SELECT * FROM compared WHERE current IS DISTINCT FROM stamped AND NOT (current IS NULL AND stamped = 0)
        ), corrected AS (
            INSERT INTO fencing.stamp AS s (relation, key, hash, resource)
            SELECT $1, key, coalesce(current, 0) # coalesce(stamped, 0), resource FROM misfit
            ON CONFLICT (relation, key) DO UPDATE
            SET hash = s.hash # excluded.hash, suspect = s.suspect OR s.hash # excluded.hash = 0
        ), cleared AS (
            UPDATE fencing.stamp AS s SET suspect = false FROM compared AS c
            WHERE c.suspect AND c.current = c.stamped AND s.relation = $1 AND s.key = c.key AND s.hash = c.stamped
        ), removed AS (
            DELETE FROM fencing.stamp AS s USING compared AS c
            WHERE c.suspect AND c.current IS NULL AND c.stamped = 0 AND s.relation = $1 AND s.key = c.key AND s.hash = 0
        ), named AS (
            SELECT resource, CASE WHEN current IS NULL THEN ''row-vanished'' WHEN stamped IS NULL THEN ''row-appeared''
                ELSE ''row-changed'' END AS reason, CASE WHEN suspect THEN ''write'' ELSE ''sweep'' END AS found_by, key
            FROM misfit WHERE NOT $5
        ), grouped AS (
            SELECT resource, reason, found_by, count(*) AS rows, (array_agg(to_jsonb(key)))[:10] AS keys
            FROM named GROUP BY resource, reason, found_by
        ), recorded AS (
            INSERT INTO fencing.intake (kind, plane, rule, resource, reason, target,
                fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details)
            SELECT ''bypass'', ''tables'', $6, g.resource, g.reason, $6, f.epoch, f.value, f.holder, f.caller, f.raised_at,
                jsonb_build_object(''found_by'', g.found_by, ''rows'', g.rows, ''keys'', to_jsonb(g.keys))
            FROM grouped AS g LEFT JOIN fencing.fence AS f ON f.resource = g.resource
        )
        SELECT coalesce(array_agg(ROW(reason, resource, $6, found_by, rows)::fencing.finding), ''{}'') FROM grouped';

    EXECUTE replace(correct, '@COMPARED@', replace(of_stamps, '@WHICH@', 's.suspect'))
    INTO findings USING relation, '', '', p_stamps, quiet, watch.target;
    blocks := pg_relation_size(relation) / current_setting('block_size')::bigint;
    passed := false;
    IF watch.block < blocks THEN
        EXECUTE replace(correct, '@COMPARED@', of_rows) INTO more
        USING relation, format('(%s,0)', watch.block), format('(%s,0)', least(watch.block + p_blocks, blocks)), 0, quiet,
            watch.target;
        findings := findings || more;
        watch.block := least(watch.block + p_blocks, blocks);
    ELSE
        EXECUTE replace(correct, '@COMPARED@', replace(of_stamps, '@WHICH@', 's.key > $7 ORDER BY s.key')) INTO more
        USING relation, '', '', p_stamps, quiet, watch.target, watch.after;
        findings := findings || more;
        SELECT s.key INTO last FROM fencing.stamp s WHERE s.relation = watch.relation AND s.key > watch.after
        ORDER BY s.key OFFSET p_stamps - 1 LIMIT 1;
        watch.after := coalesce(last, watch.after);
        passed := last IS NULL AND NOT (quiet AND EXISTS (
            SELECT FROM fencing.stamp s WHERE s.relation = watch.relation AND s.suspect));
        IF passed THEN
            watch.shape := watch.passing;
            watch.passing := NULL;
            watch.block := 0;
            watch.after := '{}';
            watch.round := watch.round + 1;
        END IF;
    END IF;
    UPDATE fencing.watch w
    SET shape = watch.shape, passing = watch.passing, block = watch.block, after = watch.after, round = watch.round,
        taken_at = clock_timestamp()
    WHERE w.relation = watch.relation;
END
$function$;
REVOKE ALL ON FUNCTION fencing.watch_step_v1 FROM PUBLIC;

CREATE FUNCTION fencing.look_at_guards_v1() RETURNS SETOF fencing.finding
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    guarded fencing.guarded;
    lacks text[];
    fresh text[];
    finding fencing.finding;
BEGIN
    -- Guards that are not registered: their table was restored without the rows of this schema.
    INSERT INTO fencing.guarded (relation, target)
    SELECT t.tgrelid, (string_to_array(encode(t.tgargs, 'escape'), '\000'))[5] FROM pg_trigger t
    JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgname = 'fencing_guard_row' AND t.tgparentid = 0 AND p.pronamespace = 'fencing'::regnamespace
    ON CONFLICT (relation) DO NOTHING;
    FOR guarded IN SELECT * FROM fencing.guarded g ORDER BY g.target FOR UPDATE SKIP LOCKED LOOP
        IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = guarded.relation) THEN
            DELETE FROM fencing.guarded g WHERE g.relation = guarded.relation;
            CONTINUE;
        END IF;
        lacks := ARRAY(
            SELECT format('%s on %s: %s', wanted.name, tree.relid, CASE WHEN t.oid IS NULL THEN 'gone' ELSE 'off' END)
            FROM (SELECT guarded.relation AS relid UNION SELECT p.relid FROM pg_partition_tree(guarded.relation) AS p) AS tree
            CROSS JOIN unnest(ARRAY['fencing_guard_statement', 'fencing_guard_row', 'fencing_guard_truncate']) AS wanted (name)
            LEFT JOIN pg_trigger t ON t.tgrelid = tree.relid AND t.tgname = wanted.name
            WHERE t.oid IS NULL OR t.tgenabled NOT IN ('O', 'A')
            ORDER BY 1);
        fresh := ARRAY(SELECT l FROM unnest(lacks) AS l WHERE l <> ALL (guarded.lacking));
        IF cardinality(fresh) > 0 THEN
            finding := ROW(
                CASE WHEN array_to_string(fresh, ' ') LIKE '%: off%' THEN 'guard-disabled' ELSE 'guard-removed' END,
                NULL, guarded.target, 'sweep', 1)::fencing.finding;
            INSERT INTO fencing.intake (kind, plane, rule, reason, target, details)
            VALUES ('bypass', 'tables', guarded.target, finding.reason, guarded.target,
                jsonb_build_object('found_by', 'sweep', 'lacking', to_jsonb(fresh)));
            RETURN NEXT finding;
        END IF;
        IF lacks <> guarded.lacking THEN
            UPDATE fencing.guarded g SET lacking = lacks WHERE g.relation = guarded.relation;
        END IF;
    END LOOP;
    INSERT INTO fencing.watch (relation, target)
    SELECT t.tgrelid, (string_to_array(encode(t.tgargs, 'escape'), '\000'))[5] FROM pg_trigger t
    JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
    WHERE t.tgname = 'fencing_guard_row' AND p.pronamespace = 'fencing'::regnamespace AND c.relkind = 'r'
      AND (string_to_array(encode(t.tgargs, 'escape'), '\000'))[6] = 'watch'
    ON CONFLICT (relation) DO NOTHING;
    DELETE FROM fencing.watch w WHERE NOT EXISTS (
        SELECT FROM fencing.guarded g
        WHERE g.relation = w.relation OR w.relation IN (SELECT p.relid FROM pg_partition_tree(g.relation) AS p));
    DELETE FROM fencing.stamp s WHERE (s.relation, s.key) IN (
        SELECT o.relation, o.key FROM (
            SELECT n.relation FROM (SELECT DISTINCT x.relation FROM fencing.stamp x) AS n
            WHERE NOT EXISTS (SELECT FROM fencing.watch w WHERE w.relation = n.relation)) AS lost
        JOIN fencing.stamp o ON o.relation = lost.relation LIMIT 10000);
END
$function$;
REVOKE ALL ON FUNCTION fencing.look_at_guards_v1 FROM PUBLIC;

CREATE SEQUENCE fencing.refusal;

CREATE SEQUENCE fencing.refusal_00;
CREATE SEQUENCE fencing.refusal_01;
CREATE SEQUENCE fencing.refusal_02;
CREATE SEQUENCE fencing.refusal_03;
CREATE SEQUENCE fencing.refusal_04;
CREATE SEQUENCE fencing.refusal_05;
CREATE SEQUENCE fencing.refusal_06;
CREATE SEQUENCE fencing.refusal_07;
CREATE SEQUENCE fencing.refusal_08;
CREATE SEQUENCE fencing.refusal_09;
CREATE SEQUENCE fencing.refusal_10;
CREATE SEQUENCE fencing.refusal_11;
CREATE SEQUENCE fencing.refusal_12;
CREATE SEQUENCE fencing.refusal_13;
CREATE SEQUENCE fencing.refusal_14;
CREATE SEQUENCE fencing.refusal_15;

CREATE TABLE fencing.refusals_counted (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    counted bigint NOT NULL DEFAULT 0,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    missing bigint
) WITH (fillfactor = 50);
INSERT INTO fencing.refusals_counted DEFAULT VALUES;

CREATE FUNCTION fencing.count_refusal_v1(p_reason text, p_target text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    number bigint;
BEGIN
    IF current_setting('transaction_read_only') = 'on' OR NOT has_sequence_privilege('fencing.refusal', 'UPDATE') THEN
        RETURN;
    END IF;
    number := nextval('fencing.refusal');
    PERFORM setval(
        format('fencing.refusal_%s', lpad((number % 16)::text, 2, '0'))::regclass,
        ((number / 16 % 32) << 58)
        | (coalesce(array_position(fencing.reasons_v1(), p_reason), 0)::bigint << 54)
        | ((pg_backend_pid() & 4194303)::bigint << 32)
        | (coalesce(hashtext(p_target COLLATE "C"), 0)::bigint & 4294967295));
END
$function$;

CREATE FUNCTION fencing.record_refusals_v1(p_since timestamptz)
RETURNS TABLE (target text, reason text, count bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    taken bigint;
    seen fencing.refusals_counted;
    packed bigint[];
    put_down bigint[];
    newest bigint;
    total bigint := 0;
    known jsonb := '[]';
    gap bigint;
    slot integer;
BEGIN
    PERFORM FROM fencing.refusal s JOIN fencing.refusals_counted c
        ON c.counted <> CASE WHEN s.is_called THEN s.last_value ELSE 0 END;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO seen FROM fencing.refusals_counted FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- Read in this order: a session takes its number before it stores the particulars.
    packed := ARRAY[
        (SELECT last_value FROM fencing.refusal_00 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_01 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_02 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_03 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_04 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_05 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_06 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_07 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_08 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_09 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_10 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_11 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_12 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_13 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_14 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_15 WHERE is_called)
    ];
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO STRICT taken FROM fencing.refusal s;
    -- The highest number that each sequence has particulars of, worked out from its round.
    put_down := ARRAY(
        SELECT CASE WHEN packed[n + 1] IS NULL OR n > taken THEN 0
            ELSE n + 16 * ((taken - n) / 16 - (((taken - n) / 16 - (packed[n + 1] >> 58)) % 32 + 32) % 32) END
        FROM generate_series(0, 15) AS g (n) ORDER BY n);
    newest := least(seen.counted, taken);
    LOOP
        EXIT WHEN newest >= (SELECT max(p) FROM unnest(put_down) AS p);
        slot := ((newest + 1) % 16)::integer;
        -- Its particulars are there, or later numbers have overwritten them and all places around.
        IF put_down[slot + 1] = newest + 1 OR (SELECT min(p) FROM unnest(put_down) AS p) > newest THEN
            newest := newest + 1;
            total := total + 1;
            IF put_down[slot + 1] = newest THEN
                known := known || jsonb_build_object(
                    'reason', (fencing.reasons_v1())[((packed[slot + 1] >> 54) & 15)::integer],
                    'pid', (packed[slot + 1] >> 32) & 4194303, 'target', packed[slot + 1] & 4294967295);
            END IF;
        ELSIF seen.missing = newest + 1 AND seen.at < clock_timestamp() - interval '2 seconds' THEN
            newest := (SELECT min(p) FROM unnest(put_down) AS p WHERE p > newest) - 1;
        ELSE
            gap := newest + 1;
            EXIT;
        END IF;
    END LOOP;
    RETURN QUERY
    WITH refusal AS (
        SELECT (k ->> 'reason') AS reason, (k ->> 'pid')::integer AS pid, (k ->> 'target')::bigint AS hash, 1::bigint AS times
        FROM jsonb_array_elements(known) AS k
        UNION ALL
        SELECT NULL, NULL, NULL, total - jsonb_array_length(known) WHERE total > jsonb_array_length(known)
    ), grouped AS (
        SELECT r.reason, r.pid, r.hash, sum(r.times)::bigint AS times FROM refusal r GROUP BY 1, 2, 3
    ), told AS (
        SELECT x.*, g.target, a.usename, a.application_name, a.client_addr, a.backend_start, a.pid IS NOT NULL AS there
        FROM grouped x
        LEFT JOIN LATERAL (
            SELECT g.target FROM fencing.guarded g
            WHERE hashtext(g.target COLLATE "C")::bigint & 4294967295 = x.hash LIMIT 1) AS g ON true
        LEFT JOIN pg_stat_activity a ON a.pid = x.pid AND a.datname = current_database()
    ), recorded AS (
        INSERT INTO fencing.intake (kind, plane, rule, reason, enforced, caller, target, client, details)
        SELECT 'guard-refused', 'tables', t.target, t.reason, true, 'role:' || t.usename, t.target, host(t.client_addr),
            jsonb_strip_nulls(jsonb_build_object(
                'count', t.times,
                'since', to_char(coalesce(p_since, seen.at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                'by', CASE WHEN t.hash = 0 THEN 'fencing.hold' WHEN t.hash IS NOT NULL THEN 'guard' END,
                'session', CASE WHEN t.there THEN jsonb_build_object(
                    'pid', t.pid, 'user', t.usename, 'application_name', nullif(t.application_name, ''),
                    'client_addr', host(t.client_addr),
                    'started', to_char(t.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) END))
        FROM told t
    )
    SELECT t.target, t.reason, t.times FROM told t;
    UPDATE fencing.refusals_counted c
    SET counted = newest, missing = gap, at = clock_timestamp()
    WHERE c.counted <> newest OR c.missing IS DISTINCT FROM gap;
END
$function$;
REVOKE ALL ON FUNCTION fencing.record_refusals_v1 FROM PUBLIC;
