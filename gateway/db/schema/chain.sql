-- The chain of the record: the canonical text of an entry, its hash, and the function that seals entries.

-- The members of the canonical text of an entry, in its order. Agrees to the letter with
-- gateway.fencing.chain_verification.canonical.
CREATE TYPE fencing.line AS (
    position bigint, id uuid, at text, kind text, plane text, rule text, resource text, reason text, enforced boolean,
    token text, holder text, caller text, method text, target text, client text, request_id text, payload_size bigint,
    payload_sha256 text, fence text, fence_holder text, fence_caller text, fence_raised_at text, details jsonb
);

-- Write the canonical text of an entry, which is what is hashed.
CREATE FUNCTION fencing.line_v1(entry fencing.entry) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN row_to_json(ROW(
    entry.position, entry.id, fencing.moment_v1(entry.at), entry.kind, entry.plane, entry.rule, entry.resource,
    entry.reason, entry.enforced, fencing.token_v1(entry.epoch, entry.value), entry.holder, entry.caller, entry.method,
    entry.target, entry.client, entry.request_id, entry.payload_size, entry.payload_sha256,
    fencing.token_v1(entry.fence_epoch, entry.fence_value), entry.fence_holder, entry.fence_caller,
    fencing.moment_v1(entry.fence_raised_at), entry.details
)::fencing.line)::text;

-- The members of a line of the export: those of fencing.line, and the hash.
CREATE TYPE fencing.hashed_line AS (
    position bigint, id uuid, at text, kind text, plane text, rule text, resource text, reason text, enforced boolean,
    token text, holder text, caller text, method text, target text, client text, request_id text, payload_size bigint,
    payload_sha256 text, fence text, fence_holder text, fence_caller text, fence_raised_at text, details jsonb, hash text
);

-- Write an entry as a line of the export. All but the last member is what line_v1 gives; cutting that text open again
-- to append the hash took a quarter of the time.
CREATE FUNCTION fencing.ndjson_v1(entry fencing.entry) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN row_to_json(ROW(
    entry.position, entry.id, fencing.moment_v1(entry.at), entry.kind, entry.plane, entry.rule, entry.resource,
    entry.reason, entry.enforced, fencing.token_v1(entry.epoch, entry.value), entry.holder, entry.caller, entry.method,
    entry.target, entry.client, entry.request_id, entry.payload_size, entry.payload_sha256,
    fencing.token_v1(entry.fence_epoch, entry.fence_value), entry.fence_holder, entry.fence_caller,
    fencing.moment_v1(entry.fence_raised_at), entry.details, encode(entry.hash, 'hex')
)::fencing.hashed_line)::text;

-- Hash a line with the hash of the line before, or with the beginning where there is none.
CREATE FUNCTION fencing.next_hash_v1(state bytea, beginning bytea, line text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RETURN sha256(coalesce(state, beginning) || convert_to(line, 'UTF8'));
END
$function$;

-- Chain a batch of lines. Over a window it hashes the whole batch at once, each line with the hash of the one before.
CREATE AGGREGATE fencing.chain_v1(beginning bytea, line text) (SFUNC = fencing.next_hash_v1, STYPE = bytea);

-- Move what has been committed from the intake to the record, the oldest first. Each entry gets the next position,
-- and a hash over itself and the hash before it. An entry that is committed late is sealed late: the order of the
-- record is the order of sealing, and there is no other.
--
-- Takes about how many entries to seal, and whether to wait for another session that is sealing.
-- Returns how many were sealed, and the position of the end of the record. The number is null where another session
-- is sealing and the caller does not wait. Announces that position on the channel fencing_record.
--
-- The limit is turned into a number first, and what was committed below that number meanwhile comes along. Both
-- statements look by the key. Everything passes through this table, so that it is mostly empty pages, and the
-- planner's figures about its size are never right.
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
