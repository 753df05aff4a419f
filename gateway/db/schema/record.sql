-- The record: entries come in at the intake, and are sealed into a chain in one order. The manual, docs/record.md,
-- describes its content and the proofs of the chain.

-- Entries that are written and not sealed yet. Only the key is indexed, so that no writer waits for another one here.
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
-- Finds what a transaction under a guard has noted already.
CREATE INDEX intake_noted ON fencing.intake (request_id, resource) WHERE request_id LIKE 'transaction/%';

-- Entries that are sealed. The day is the one on which an entry was sealed. A partition is for a week, not for a
-- day: planning for 400 partitions was most of a search.
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

-- Entries of days without a partition of their own.
CREATE TABLE fencing.entry_other PARTITION OF fencing.entry DEFAULT;

CREATE INDEX entry_id ON fencing.entry (id);
CREATE INDEX entry_at ON fencing.entry (at);
-- The columns that people search by. For each partition, the newest matches are at the end of
-- one of these indexes, or there are so few that all can be sorted.
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
-- Pages are in the order of the position, over the days of a week together; the primary key begins with the day.
CREATE INDEX entry_position ON fencing.entry (position);

-- The end of the chain. A session that seals has this one row locked.
CREATE TABLE fencing.head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    position bigint NOT NULL,
    hash bytea NOT NULL,
    day date NOT NULL
) WITH (fillfactor = 10);
INSERT INTO fencing.head (position, hash, day)
VALUES (0, sha256('fencing-gateway record v1'), (clock_timestamp() AT TIME ZONE 'UTC')::date);

-- The payload of a refused write, or its beginning. The entry has only the length and the SHA-256 of the payload. So
-- this row can be erased when it must be, and the record stays whole.
CREATE TABLE fencing.payload (
    entry uuid PRIMARY KEY,
    day date NOT NULL DEFAULT (clock_timestamp() AT TIME ZONE 'UTC')::date,
    media_type text NOT NULL,
    body bytea NOT NULL,
    truncated boolean NOT NULL
);
CREATE INDEX payload_day ON fencing.payload (day);

-- How many writes were accepted, refused or observed, by the minute. Each gateway process has rows of its own.
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

-- Write a token as text: 'epoch.value', or the value alone in epoch 0. Null for a null value. PostgreSQL inlines a
-- function in SQL unless the function is immutable and its body is not. `integer || text` is not immutable, so the
-- casts here are explicit. A call for each token of an entry was most of the time of an export.
CREATE FUNCTION fencing.token_v1(epoch integer, value bigint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN epoch > 0 THEN epoch::text || '.' ELSE '' END || value::text;

-- Write a moment as text, in UTC with microseconds.
CREATE FUNCTION fencing.moment_v1(moment timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

-- Refuse each change of the record. The rights to change it are not enough: its owner has to disable this trigger
-- first, on purpose. Raises 42501.
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

-- Tell which days have a partition: the name of each, its first day and its last, both included. The name says the
-- days. entry_other is not among them.
CREATE FUNCTION fencing.stretches_v1() RETURNS TABLE (name text, first date, last date)
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT c.relname::text,
        to_date(substr(c.relname::text, 7, 8), 'YYYYMMDD'), to_date(right(c.relname::text, 8), 'YYYYMMDD')
    FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'fencing.entry'::regclass AND c.relname ~ '^entry_[0-9]{8}(_[0-9]{8})?$';
END;

-- Make partitions for today and the days to come. One ends with its Sunday, or before a day that is in another
-- partition. A day that has entries in entry_other already stays there.
-- Takes how many days ahead to look, and how many partitions to make at most.
-- Returns how many were made.
-- Raises 55006 where the record is in use: what it has to lock it locks at once or not at all, so that nothing waits.
-- Tables are made by CREATE TABLE and ATTACH, which unlike PARTITION OF let reading and sealing go on.
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

-- Drop the oldest partition whose last day is more than p_keep days ago, and put that on record. The entry says how
-- the days that are left are chained to what is gone.
-- Returns the last day that was dropped, or null if there is none. Raises 22023 below seven days, which are always
-- kept, and 55006 where the record is in use.
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

-- Delete payloads that are more than p_days days old, p_limit at most.
-- Returns how many. The gateway's role can only add and read payloads. No argument makes a payload go within a week.
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

-- The views are for people. An entry without a position is committed and not sealed yet.
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

-- Refused writes.
CREATE VIEW fencing.rejection AS
SELECT resource, id, at, reason, enforced, epoch, value, holder, caller, method, target, client, request_id, payload_size,
    payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at
FROM fencing.record WHERE kind = 'rejection';

-- Events of locks, and new epochs. The caller is the one that acted, or the one that had the lease.
CREATE VIEW fencing.event AS
SELECT id, at, kind, resource, caller, holder, epoch, value, coalesce(details, '{}') AS details
FROM fencing.record WHERE kind LIKE 'lease-%' OR kind = 'epoch';

-- Changes of buckets and their settings.
CREATE VIEW fencing.administration AS
SELECT id, at, caller, details ->> 'operation' AS operation, details ->> 'bucket' AS bucket,
    concat_ws(' ', method, target) AS target, client, request_id
FROM fencing.record WHERE kind = 'administration';

-- The first partition: from today to Sunday. Gateways make the others.
SELECT fencing.prepare_days_v1(0, 1);
