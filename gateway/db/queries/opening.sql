-- name: ask
-- The run of this session's server, and the last opening of the database.
SELECT o.*, r.system AS here_system, r.timeline AS here_timeline, r.started AS here_started,
    r.identity AS here_identity, clock_timestamp() AS now,
    CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0')::bigint END AS here_written,
    (
        SELECT min(format('%s = %s', t.name, t.value))
        FROM unnest(ARRAY['', '_lsn', '_name', '_time', '_xid']) AS of (name),
            LATERAL (SELECT 'recovery_target' || of.name, current_setting('recovery_target' || of.name)) AS t (name, value)
        WHERE t.value <> ''
    ) AS here_target, coalesce((SELECT i.epoch FROM fencing.issuer AS i), 0) AS epoch,
    (SELECT m.version_num FROM fencing.migration AS m) AS revision,
    CASE WHEN current_setting('citus.shard_count', true) IS NOT NULL THEN (
        SELECT min(c.relname) FROM pg_class AS c
        WHERE c.relnamespace = 'fencing'::regnamespace AND c.relkind IN ('r', 'p') AND fencing.is_distributed_v1(c.oid)
    ) END AS distributed,
    (SELECT c.oldest FROM fencing.compatibility AS c) AS oldest
FROM fencing.run_v1() AS r, fencing.opening AS o

-- name: last
-- The last opening of the database.
SELECT mode, term, opened_at, snapshot FROM fencing.opening

-- name: identify
-- Give the installation an id if it has none.
UPDATE fencing.opening SET installation = $1 WHERE installation IS NULL RETURNING term

-- name: close
-- Name no run, so that the database is open for none. Put the reason on record.
-- $1: the term of the last accepted loss that is known. $4: the latest term that is known.
WITH closed AS (
    UPDATE fencing.opening SET term = greatest(term, $4::bigint) + 1, identity = $2::text || ': ' || $3::text
    WHERE began = $1 AND NOT starts_with(identity, $2::text)
    RETURNING term
)
INSERT INTO fencing.intake (kind, caller, target, details)
SELECT 'administration', 'gateway-process', 'database',
    jsonb_build_object('operation', 'CloseDatabase', 'term', term, 'reason', $3::text)
FROM closed

-- name: lock
-- Have other snapshots wait.
SELECT term FROM fencing.opening FOR NO KEY UPDATE

-- name: lower
-- Which of these fences are lower, or absent.
SELECT u.nth, f.epoch, f.value
FROM unnest($1::text[], $2::integer[], $3::bigint[]) WITH ORDINALITY AS u (resource, epoch, value, nth)
LEFT JOIN fencing.fence AS f ON f.resource = u.resource COLLATE "C"
WHERE f.resource IS NULL OR (f.epoch, f.value) < (u.epoch, u.value)
ORDER BY u.nth

-- name: raise
-- Raise fences to what the journal says, and put on record which ones were lost.
WITH lost AS MATERIALIZED (
    SELECT u.resource COLLATE "C" AS resource, u.epoch, u.value, f.epoch AS was_epoch, f.value AS was_value,
        f.holder, f.caller, f.raised_at
    FROM unnest($1::text[], $2::integer[], $3::bigint[]) AS u (resource, epoch, value)
    LEFT JOIN fencing.fence AS f ON f.resource = u.resource COLLATE "C"
    WHERE f.resource IS NULL OR (f.epoch, f.value) < (u.epoch, u.value)
), raised AS (
    INSERT INTO fencing.fence AS f (resource, epoch, value, caller)
    SELECT resource, epoch, value, 'gateway-process' FROM lost ORDER BY resource
    ON CONFLICT (resource) DO UPDATE
    SET epoch = excluded.epoch, value = excluded.value, holder = NULL, caller = excluded.caller, write_id = NULL,
        raised_at = clock_timestamp()
    WHERE (f.epoch, f.value) < (excluded.epoch, excluded.value)
    RETURNING f.resource, f.epoch, f.value
)
INSERT INTO fencing.intake (
    kind, resource, epoch, value, caller, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details)
SELECT 'fence-restored', r.resource, r.epoch, r.value, 'gateway-process',
    l.was_epoch, l.was_value, l.holder, l.caller, l.raised_at, jsonb_build_object('term', $4::bigint)
FROM raised AS r JOIN lost AS l USING (resource) ORDER BY r.resource

-- name: wait
-- Announce that the database has forgotten object writes of these resources. $2: the store's clock. $3: the
-- longest time until a request has its effect.
INSERT INTO fencing.intent (resource, bucket, key, write_id, epoch, value, attempt, kind, signed_at, dead_after)
SELECT resource, '', '', gen_random_uuid(), -1, 0, 0, 'lost', $2::timestamptz, $3::interval
FROM unnest($1::text[]) AS resource
ON CONFLICT (resource, bucket, key, rank) DO UPDATE
SET write_id = excluded.write_id, signed_at = excluded.signed_at, dead_after = excluded.dead_after

-- name: write
-- Write the row of an opening.
UPDATE fencing.opening SET installation = $1, system = $2, timeline = $3, started = $4, identity = $5, term = $6,
    mode = $7, snapshot = $8, began = $9, opened_at = clock_timestamp()

-- name: new_epoch
-- Let the lease service begin a new epoch, above whatever was lost. $2: the least one.
WITH here AS (
    SELECT system_identifier::text AS system, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) AS line
    FROM pg_control_system()
), before AS (
    SELECT epoch FROM fencing.issuer FOR UPDATE
), begun AS (
    INSERT INTO fencing.issuer (epoch, system_identifier, timeline) SELECT $2, system, line FROM here
    ON CONFLICT (one) DO UPDATE SET epoch = greatest(issuer.epoch + 1, excluded.epoch),
        system_identifier = excluded.system_identifier, timeline = excluded.timeline
    RETURNING epoch
)
INSERT INTO fencing.intake (kind, epoch, value, caller, details)
SELECT 'epoch', begun.epoch, 0, 'gateway-process', jsonb_build_object('before', (SELECT epoch FROM before), 'term', $1::bigint)
FROM begun

-- name: record
-- Put on record that the database was opened.
INSERT INTO fencing.intake (kind, caller, target, details)
VALUES ('administration', 'gateway-process', 'database', $1::text::jsonb)

-- name: note
-- Note a snapshot whose raises the database has.
UPDATE fencing.opening SET snapshot = $1

-- name: beat
-- Take a position. A database that was put back has a lower one than the journal. One that is not open takes none: an
-- opening under way has read it already.
UPDATE fencing.opening SET position = position + 1 WHERE fencing.is_open_v1()
RETURNING position, clock_timestamp() AS now

-- name: fences
-- The fences of these resources.
SELECT resource, epoch, value FROM fencing.fence WHERE resource = ANY ($1)
