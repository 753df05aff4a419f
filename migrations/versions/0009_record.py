"""The record: entries are written to an intake with what they are about, and sealed into a chain in one order.

The tables that held parts of it, ``rejection``, ``event`` and ``administration``, become views; what is in them goes along.
A gateway of the revision before cannot write to them, and so fails closed where it would record a refusal, until it is
replaced. docs/record.md says what is on record, and what the chain proves.
"""

from alembic import op

revision = "0009"
down_revision = "0008"

# What both the intake and the record have, in this order.
COLUMNS = """
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text COLLATE "C" NOT NULL,
    plane text COLLATE "C",
    rule text COLLATE "C",
    resource text COLLATE "C",
    reason text COLLATE "C",
    enforced boolean,
    -- Who acted: the refused writer, the new holder.
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
    -- What it met: the fence that refused it, the one it has overtaken.
    fence_epoch integer,
    fence_value bigint,
    fence_holder text COLLATE "C",
    fence_caller text COLLATE "C",
    fence_raised_at timestamptz,
    details jsonb
"""
NAMES = ", ".join(line.split()[0] for line in COLUMNS.strip().splitlines() if not line.lstrip().startswith("--"))

# Nothing of the intake is indexed but its key, and nobody waits for anybody there. The record is indexed: what is too
# long for that has to be refused where it comes in, or it could never be sealed, nor what is behind it.
TABLES = """
CREATE TABLE fencing.intake (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, @COLUMNS@,
    CHECK (
        octet_length(kind) <= 2048 AND octet_length(plane) <= 2048 AND octet_length(rule) <= 2048
        AND octet_length(resource) <= 2048 AND octet_length(reason) <= 2048 AND octet_length(holder) <= 2048
        AND octet_length(caller) <= 2048 AND octet_length(request_id) <= 512)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_analyze_threshold = 1000000)
;
-- The day is that on which an entry was sealed.
CREATE TABLE fencing.entry (
    position bigint NOT NULL, day date NOT NULL, hash bytea NOT NULL, @COLUMNS@,
    PRIMARY KEY (day, position)
) PARTITION BY RANGE (day)
;
-- Days nobody has prepared a partition for.
CREATE TABLE fencing.entry_other PARTITION OF fencing.entry DEFAULT
;
CREATE INDEX entry_id ON fencing.entry (id)
;
CREATE INDEX entry_at ON fencing.entry (at)
;
-- What people search by (docs/decisions/044). A day at a time, the newest of what they ask for is at the end of one of these,
-- or there is so little of it that all can be sorted.
CREATE INDEX entry_resource ON fencing.entry (resource, position)
;
CREATE INDEX entry_caller ON fencing.entry (caller, position)
;
CREATE INDEX entry_holder ON fencing.entry (holder, position)
;
CREATE INDEX entry_kind ON fencing.entry (kind, position)
;
CREATE INDEX entry_rule ON fencing.entry (rule, position)
;
CREATE INDEX entry_plane ON fencing.entry (plane)
;
CREATE INDEX entry_value ON fencing.entry (value)
;
CREATE INDEX entry_reason ON fencing.entry (reason, position) WHERE reason <> 'token-stale'
;
CREATE INDEX entry_observed ON fencing.entry (position) WHERE NOT enforced
;
CREATE INDEX entry_takeover ON fencing.entry (resource, position) WHERE kind IN ('raised', 'barrier', 'epoch')
;
-- The end of the chain. Whoever seals has this row locked.
CREATE TABLE fencing.head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    position bigint NOT NULL,
    hash bytea NOT NULL,
    day date NOT NULL
) WITH (fillfactor = 10)
;
INSERT INTO fencing.head (position, hash, day)
VALUES (0, sha256('fencing-gateway record v1'), (clock_timestamp() AT TIME ZONE 'UTC')::date)
"""

# The text that is hashed, which is also a line of the export, less its hash. Must agree to the letter with
# gateway.fencing.chain.canonical.
LINE = """
CREATE FUNCTION fencing.token_v1(epoch integer, value bigint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN epoch > 0 THEN epoch || '.' ELSE '' END || value
;
CREATE FUNCTION fencing.moment_v1(moment timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
;
CREATE TYPE fencing.line AS (
    position bigint, id uuid, at text, kind text, plane text, rule text, resource text, reason text, enforced boolean,
    token text, holder text, caller text, method text, target text, client text, request_id text, payload_size bigint,
    payload_sha256 text, fence text, fence_holder text, fence_caller text, fence_raised_at text, details jsonb
)
;
CREATE FUNCTION fencing.line_v1(entry fencing.entry) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN row_to_json(ROW(
    entry.position, entry.id, fencing.moment_v1(entry.at), entry.kind, entry.plane, entry.rule, entry.resource,
    entry.reason, entry.enforced, fencing.token_v1(entry.epoch, entry.value), entry.holder, entry.caller, entry.method,
    entry.target, entry.client, entry.request_id, entry.payload_size, entry.payload_sha256,
    fencing.token_v1(entry.fence_epoch, entry.fence_value), entry.fence_holder, entry.fence_caller,
    fencing.moment_v1(entry.fence_raised_at), entry.details
)::fencing.line)::text
;
-- A line of the export: the canonical text, and the hash.
CREATE FUNCTION fencing.ndjson_v1(entry fencing.entry) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN left(fencing.line_v1(entry), -1) || ',"hash":"' || encode(entry.hash, 'hex') || '"}'
"""

# As an aggregate over a window it hashes a whole batch in one go: each line with the hash of the one before.
CHAIN = """
CREATE FUNCTION fencing.next_hash_v1(state bytea, beginning bytea, line text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RETURN sha256(coalesce(state, beginning) || convert_to(line, 'UTF8'));
END
$function$
;
CREATE AGGREGATE fencing.chain_v1(beginning bytea, line text) (SFUNC = fencing.next_hash_v1, STYPE = bytea)
"""

# Move what has been committed from the intake to the record, the oldest first, about `p_limit` entries: each gets the next
# position, and a hash over itself and the hash before it. `sealed`: how many; null where somebody else is at it and
# p_wait says not to wait. `position`: the end of the record now. What is committed late is sealed late: the order
# of the record is the order of sealing, and there is no other.
#
# The limit is turned into a number first, and whatever has been committed below it meanwhile comes along. Both look by the
# key: a table through which everything passes is mostly empty pages, and what is known of its size is never true.
SEAL = """
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
            head.position + row_number() OVER (ORDER BY t.number), head.day, '\\x'::bytea, @TAKEN@
        )::fencing.entry AS entry
        FROM taken t
    ), chained AS (
        SELECT p.entry, fencing.chain_v1(head.hash, fencing.line_v1(p.entry))
            OVER (ORDER BY (p.entry).position ROWS UNBOUNDED PRECEDING) AS hash
        FROM placed p
    ), added AS (
        INSERT INTO fencing.entry (position, day, hash, @NAMES@)
        SELECT (c.entry).position, (c.entry).day, c.hash, @CHAINED@
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
        -- Somebody else has sealed it all while we waited.
        sealed := 0;
        SELECT h.position INTO STRICT position FROM fencing.head h;
    END IF;
END
$function$
;
REVOKE ALL ON FUNCTION fencing.seal_v1 FROM PUBLIC
"""

# The rights to change the record are not enough to change it: somebody has to disable a trigger first, on purpose.
KEEP = """
CREATE FUNCTION fencing.refuse_change_v1() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('%s of the record is refused: it is only ever added to.', TG_OP),
        HINT = 'Old days are dropped by the gateway, after audit.retention days.';
END
$function$
;
CREATE TRIGGER entry_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fencing.entry
FOR EACH STATEMENT EXECUTE FUNCTION fencing.refuse_change_v1()
;
CREATE TRIGGER entry_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fencing.entry_other
FOR EACH STATEMENT EXECUTE FUNCTION fencing.refuse_change_v1()
"""

# Partitions for today and the days to come, at most `p_most` new ones; how many. Nobody waits for it: what it has to lock
# it locks at once or not at all, and then it is done another time. A day that has entries among the other ones already
# stays there.
#
# Tables are made by CREATE TABLE and ATTACH, which unlike PARTITION OF lets everybody go on reading and sealing.
PREPARE = """
CREATE FUNCTION fencing.prepare_days_v1(p_ahead integer, p_most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $function$
DECLARE
    first date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    made integer := 0;
    next date;
    name text;
BEGIN
    FOR next IN SELECT first + n FROM generate_series(0, least(p_ahead, 366)) AS s (n) LOOP
        EXIT WHEN made >= p_most;
        name := 'entry_' || to_char(next, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('fencing.' || name) IS NOT NULL;
        -- One at a time; sealing and reading go on.
        LOCK TABLE fencing.entry IN SHARE UPDATE EXCLUSIVE MODE;
        CONTINUE WHEN to_regclass('fencing.' || name) IS NOT NULL
            OR EXISTS (SELECT FROM fencing.entry_other o WHERE o.day = next);
        EXECUTE format('CREATE TABLE fencing.%I (LIKE fencing.entry INCLUDING ALL)', name);
        EXECUTE format(
            'CREATE TRIGGER entry_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fencing.%I '
            'FOR EACH STATEMENT EXECUTE FUNCTION fencing.refuse_change_v1()', name);
        EXECUTE format(
            'ALTER TABLE fencing.entry ATTACH PARTITION fencing.%I FOR VALUES FROM (%L) TO (%L)', name, next, next + 1);
        made := made + 1;
    END LOOP;
    RETURN made;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = 'The record is in use; it is done another time.';
END
$function$
;
REVOKE ALL ON FUNCTION fencing.prepare_days_v1 FROM PUBLIC
"""

# Drop the oldest day that is more than `p_keep` days ago, and put that on record; the day, or null if there is none. Seven
# days are kept whatever is asked for. The entry says how the days that are left are chained to what is gone.
DROP_DAY = """
CREATE FUNCTION fencing.drop_day_v1(p_keep integer) RETURNS date
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $function$
DECLARE
    before date := (clock_timestamp() AT TIME ZONE 'UTC')::date - p_keep;
    name text;
    gone record;
BEGIN
    IF p_keep IS NULL OR p_keep < 7 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'The record is kept for seven days at least.';
    END IF;
    -- One at a time, as above.
    LOCK TABLE fencing.entry IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT c.relname INTO name
    FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'fencing.entry'::regclass AND c.relname ~ '^entry_[0-9]{8}$'
      AND to_date(right(c.relname, 8), 'YYYYMMDD') < before
    ORDER BY c.relname LIMIT 1;
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
    RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = 'The record is in use; it is done another time.';
END
$function$
;
REVOKE ALL ON FUNCTION fencing.drop_day_v1 FROM PUBLIC
"""

# For people, and for what read the tables of these names. What has no position yet has been committed and not been sealed.
VIEWS = """
CREATE VIEW fencing.record AS
SELECT position, day, hash, @NAMES@ FROM fencing.entry
UNION ALL
SELECT NULL, NULL, NULL, @NAMES@ FROM fencing.intake
;
CREATE VIEW fencing.rejection AS
SELECT resource, id, at, reason, enforced, epoch, value, holder, caller, method, target, client, request_id, payload_size,
    payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at
FROM fencing.record WHERE kind = 'rejection'
;
-- Of locks, and new epochs. The caller is who did it, or whose lease it was.
CREATE VIEW fencing.event AS
SELECT id, at, kind, resource, caller, holder, epoch, value, coalesce(details, '{}') AS details
FROM fencing.record WHERE kind LIKE 'lease-%' OR kind = 'epoch'
;
CREATE VIEW fencing.administration AS
SELECT id, at, caller, details ->> 'operation' AS operation, details ->> 'bucket' AS bucket,
    concat_ws(' ', method, target) AS target, client, request_id
FROM fencing.record WHERE kind = 'administration'
"""

# In the order in which it happened, and sealed at once, so that the record is whole when the first gateway starts.
MOVE = """
INSERT INTO fencing.intake (
    id, at, kind, resource, reason, enforced, epoch, value, holder, caller, method, target, client, request_id,
    payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details)
SELECT * FROM (
    SELECT id, at, 'rejection', resource, reason, enforced, epoch, value, holder, caller, method, target, client,
        request_id, payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at,
        NULL::jsonb
    FROM fencing.rejection
    UNION ALL
    SELECT gen_random_uuid(), at, CASE kind WHEN 'epoch' THEN kind ELSE 'lease-' || kind END, resource, NULL, NULL,
        epoch, value, holder, caller, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, details
    FROM fencing.event
    UNION ALL
    SELECT id, at, 'administration', NULL, NULL, NULL, NULL, NULL, NULL, caller, split_part(target, ' ', 1),
        substr(target, strpos(target, ' ') + 1), client, request_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        jsonb_build_object('operation', operation, 'bucket', bucket)
    FROM fencing.administration
) AS moved (id, at)
ORDER BY at
;
DROP TABLE fencing.rejection, fencing.event, fencing.administration
;
SELECT fencing.prepare_days_v1(1, 2)
;
DO $$ BEGIN
    WHILE (SELECT s.sealed FROM fencing.seal_v1(10000) s) > 0 LOOP END LOOP;
END $$
"""

# As in 0001; what is new is that whoever is overtaken is on record. The row that is about to be overtaken is read under the
# lock that the raise needs anyway: read before, it could be the one that somebody else overtakes meanwhile. A barrier is on
# record even if it overtakes nobody; the first write of a resource is not, since the fence itself says it all.
CLAIM = """
CREATE OR REPLACE FUNCTION fencing.claim_v1(
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
$function$
"""

# As in 0003, but for a run that rises. It is first inserted where it is new, and locked where it is there, in the order of
# names: ON CONFLICT locks exclusively even where its condition does not hold, and takes the newest version whatever the
# snapshot says. The next statement sees what has been locked, puts on record who is overtaken, and raises.
CLAIM_MANY = """
CREATE OR REPLACE FUNCTION fencing.claim_many_v2(
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
                -- A subquery: hashed, however long the list turns out to be.
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
$function$
"""

# As in 0008. The fence is raised here, where its row is locked already, and not by claim_v1: this is no barrier.
BUMP_EPOCH = """
CREATE OR REPLACE FUNCTION fencing.bump_epoch_v1(
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
$function$
"""

# What there is to know of a lease, but for its id: whoever knows that can end it. `p_caller`: who did it; a lease that
# others have ended names whose it was.
RECORD_LEASE = """
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
$function$
"""

# As in 0007, with what is on record since: who gets a lease, who gives it back, whose has lapsed or was broken. What has been
# handed over and was never collected is not: nobody has been told of it.
SETTINGS = """
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
"""

ISSUER_EPOCH = """
CREATE OR REPLACE FUNCTION fencing.issuer_epoch_v1() RETURNS integer
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
$function$
"""

LAPSE = """
CREATE OR REPLACE FUNCTION fencing.lapse_v1(p_resource text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    lapsed fencing.lease;
BEGIN
    FOR lapsed IN
        DELETE FROM fencing.lease l WHERE l.resource = p_resource AND l.expires_at <= clock_timestamp() RETURNING l.*
    LOOP
        -- One that nobody was told of was never relied upon: nothing to wait for, nothing to tell.
        CONTINUE WHEN NOT lapsed.confirmed;
        IF lapsed.delay > 0 THEN
            UPDATE fencing.lock l
            SET delayed_until = greatest(l.delayed_until, lapsed.expires_at + make_interval(secs => lapsed.delay))
            WHERE l.resource = p_resource;
        END IF;
        PERFORM fencing.record_lease_v1('lease-expired', lapsed, lapsed.caller, NULL);
    END LOOP;
END
$function$
"""

ACQUIRE = """
CREATE OR REPLACE FUNCTION fencing.acquire_v1(
    p_resource text, p_holder text, p_caller text, p_mode text, p_request text, p_ttl double precision,
    p_delay double precision, p_attendant uuid, p_attended double precision, p_collect double precision,
    OUT outcome text, OUT lease fencing.lease, OUT expires_in double precision, OUT fresh boolean, OUT ticket bigint,
    OUT handed bigint, OUT look_in double precision, OUT place bigint, OUT delayed_for double precision
) LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
DECLARE
    in_queue boolean;
    queued boolean;
    exhausted boolean := false;
    held boolean;
    shared boolean;
    token record;
    moment timestamptz;
BEGIN
    -- Who only tries, over and over, costs no commit, and nobody waits for it.
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
        -- Whoever waits in another mode by now gives up the place it had.
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
                -- A place of its own that had lapsed: it must not come to life beside the lease.
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
$function$
"""

RELEASE = """
CREATE OR REPLACE FUNCTION fencing.release_v1(
    p_resource text, p_id uuid, p_caller text, OUT outcome text, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
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
$function$
"""

WITHDRAW = """
CREATE OR REPLACE FUNCTION fencing.withdraw_v1(
    p_resource text, p_holder text, p_caller text, p_request text, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
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
$function$
"""

BREAK = """
CREATE OR REPLACE FUNCTION fencing.break_v1(
    p_resource text, p_epoch integer, p_value bigint, p_caller text, p_reason text,
    OUT broken integer, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
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
$function$
"""

# As in 0005. What this transaction has noted is in the intake still: nothing is sealed before it is committed.
NOTE = """
CREATE INDEX intake_noted ON fencing.intake (request_id, resource) WHERE request_id LIKE 'transaction/%'
;
CREATE OR REPLACE FUNCTION fencing.guard_note_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text, p_operation text
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    shown record := fencing.read_token_v1(p_token);
    noted_in text := 'transaction/' || pg_current_xact_id();
BEGIN
    INSERT INTO fencing.intake (
        kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method, target, client, request_id,
        fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
    SELECT 'rejection', 'tables', p_target, left(p_resource, 512), p_reason, false, shown.epoch, shown.value, left(p_holder, 200), fencing.session_role_v1(), p_operation,
        p_target, host(inet_client_addr()), noted_in,
        p_fence.epoch, p_fence.value, p_fence.holder, p_fence.caller, p_fence.raised_at
    WHERE NOT EXISTS (
        SELECT FROM fencing.intake i
        WHERE i.request_id LIKE 'transaction/%' AND i.request_id = noted_in
          AND (i.resource, i.reason, i.target) = (left(p_resource, 512), p_reason, p_target));
END
$function$
"""

RECORD = (TABLES, LINE, CHAIN, SEAL, KEEP, PREPARE, DROP_DAY, MOVE, VIEWS)
RECORDING = (
    CLAIM,
    CLAIM_MANY,
    RECORD_LEASE,
    ISSUER_EPOCH,
    LAPSE,
    ACQUIRE,
    RELEASE,
    WITHDRAW,
    BREAK,
    BUMP_EPOCH,
    NOTE,
)


def upgrade() -> None:
    names = NAMES.split(", ")
    for script in (*RECORD, *RECORDING):
        filled = (
            script.replace("@COLUMNS@", COLUMNS.strip())
            .replace("@NAMES@", NAMES)
            .replace("@TAKEN@", ", ".join(f"t.{name}" for name in names))
            .replace("@CHAINED@", ", ".join(f"(c.entry).{name}" for name in names))
            .replace("@SETTINGS@", SETTINGS.strip())
        )
        for statement in filled.split("\n;\n"):
            op.get_bind().exec_driver_sql(statement)
