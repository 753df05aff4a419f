-- name: enter
-- Let a session in.
SELECT entered, name, share, changing, put_back FROM fencing.enter_v1()

-- name: read
-- The name and share of this database, which one it is, and whether it has ever been used.
SELECT o.name, o.share, o.rules::text AS rules, o.number, o.fleet, o.following::text AS following,
    r.system || ' ' || r.identity AS identity, o.closings,
    coalesce((SELECT f.value FROM fencing.fence AS f WHERE f.resource = '#ownership'), 0) AS known_closings,
    EXISTS (SELECT FROM fencing.fence AS f WHERE f.resource <> '#ownership') OR EXISTS (SELECT FROM fencing.lock)
    OR EXISTS (SELECT FROM fencing.intent) OR EXISTS (SELECT FROM fencing.upload)
    OR EXISTS (SELECT FROM fencing.tombstone) AS used
FROM fencing.ownership AS o, fencing.run_v1() AS r

-- name: begin
-- Keep other changes away until the session ends. Returns whether none is under way.
SELECT pg_try_advisory_lock(5461937) AS alone

-- name: close
-- Commit what follows, if the database is as it was seen. From now on, no session is let in.
-- Its fence counts it. $6: that fence, as it was seen. A row that was put back stays behind it until it is in force.
WITH closed AS (
    UPDATE fencing.ownership AS o
    SET following = $1::text::jsonb, closings = o.closings + (o.closings = $6::bigint)::integer,
        changed_at = clock_timestamp()
    WHERE o.name IS NOT DISTINCT FROM $2::text COLLATE "C" AND o.share IS NOT DISTINCT FROM $3::text COLLATE "C"
      AND o.following IS NOT DISTINCT FROM $4::text::jsonb AND o.closings = $5::bigint
      AND $6::bigint = coalesce((SELECT f.value FROM fencing.fence AS f WHERE f.resource = '#ownership'), 0)
    RETURNING o.present
)
INSERT INTO fencing.fence AS f (resource, epoch, value, caller)
SELECT '#ownership', 0, $6::bigint + 1, 'gateway-process' FROM closed
ON CONFLICT (resource) DO UPDATE SET value = excluded.value, caller = excluded.caller, raised_at = clock_timestamp()
WHERE f.value = $6::bigint
RETURNING f.resource, f.epoch, f.value

-- name: reopen
-- Give a change up that has changed nothing. $2 and $3: how often it was closed then, by its row and by its fence.
UPDATE fencing.ownership SET following = NULL
WHERE following = $1::text::jsonb AND closings = $2::bigint
  AND $3::bigint = (SELECT f.value FROM fencing.fence AS f WHERE f.resource = '#ownership')
RETURNING name

-- name: open
-- Put in force what follows. Returns nothing if it was closed again meanwhile. $4: the number of the closing.
UPDATE fencing.ownership
SET name = following ->> 'name', share = following ->> 'share', rules = following -> 'rules',
    number = $2::bigint, fleet = $3::uuid, following = NULL, changed_at = clock_timestamp(),
    closings = $4::bigint
WHERE following = $1::text::jsonb
  AND $4::bigint = (SELECT f.value FROM fencing.fence AS f WHERE f.resource = '#ownership')
RETURNING name

-- name: note
-- Note newer rules that change nothing about this database.
UPDATE fencing.ownership SET rules = $1::text::jsonb, number = $2::bigint
WHERE following IS NULL AND share = $3 COLLATE "C" AND number < $2::bigint RETURNING name

-- name: inside
-- The sessions that were let in, and others of this role that have a gateway's label. Changes have neither.
WITH held AS (
    SELECT l.pid, l.objid::bigint AS number FROM pg_locks AS l
    WHERE l.locktype = 'advisory' AND (l.classid::bigint, l.objsubid) = (0, 1) AND l.granted
      AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
)
SELECT h.pid FROM held AS h WHERE h.number = 5461936
UNION
SELECT a.pid FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.usename = current_user AND a.application_name = $1
  AND a.pid NOT IN (SELECT h.pid FROM held AS h WHERE h.number = 5461937 UNION ALL SELECT pg_backend_pid())

-- name: end_sessions
-- End these sessions.
SELECT count(pg_terminate_backend(u.pid)) AS ended FROM unnest($1::integer[]) AS u (pid)

-- name: left
-- The sessions among these that have not ended yet.
SELECT a.pid FROM pg_stat_activity AS a WHERE a.pid = ANY ($1::integer[])
UNION SELECT l.pid FROM pg_locks AS l WHERE l.pid = ANY ($1::integer[])

-- name: fences
-- The next fences of a range of names.
SELECT resource, epoch, value, holder, caller, raised_at, write_id FROM fencing.fence
WHERE resource >= $1 AND ($2::text IS NULL OR resource < $2) AND resource <> '#ownership' ORDER BY resource LIMIT $3

-- name: locks
-- The next locks of a range of names, with the highest tokens that were issued for them. A database that was put back may
-- have issued others. So they are in the epoch of its next token, as in issuer_epoch_v1.
SELECT l.resource, greatest(l.epoch, i.epoch) AS epoch, l.value, NULL::text AS holder, NULL::text AS caller,
    clock_timestamp() AS raised_at, NULL::uuid AS write_id
FROM fencing.lock AS l LEFT JOIN (
    SELECT known.epoch + ((known.system_identifier, known.timeline)
        <> (here.system_identifier::text, left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)))::integer AS epoch
    FROM fencing.issuer AS known, pg_control_system() AS here
) AS i ON true
WHERE l.resource >= $1 AND ($2::text IS NULL OR l.resource < $2) AND (l.epoch, l.value) > (0, 0)
ORDER BY l.resource LIMIT $3

-- name: carry
-- Raise fences to those of another database.
INSERT INTO fencing.fence AS f (resource, epoch, value, holder, caller, raised_at, write_id)
SELECT u.resource, u.epoch, u.value, u.holder, u.caller, u.raised_at, u.write_id
FROM unnest($1::text[], $2::integer[], $3::bigint[], $4::text[], $5::text[], $6::timestamptz[], $7::uuid[])
    AS u (resource, epoch, value, holder, caller, raised_at, write_id)
ORDER BY u.resource COLLATE "C"
ON CONFLICT (resource) DO UPDATE SET epoch = excluded.epoch, value = excluded.value, holder = excluded.holder,
    caller = excluded.caller, raised_at = excluded.raised_at, write_id = excluded.write_id
WHERE (excluded.epoch, excluded.value) > (f.epoch, f.value)
RETURNING f.resource, f.epoch, f.value

-- name: busy
-- Names in these ranges that a lease, a lock-delay or an object write still concerns, each with what it is.
SELECT b.resource, b.what FROM (
    SELECT l.resource, 'a lease of ' || l.holder AS what FROM fencing.lease AS l WHERE l.expires_at > clock_timestamp()
    UNION ALL
    SELECT l.resource, 'a lock-delay' FROM fencing.lock AS l WHERE l.delayed_until > clock_timestamp()
    UNION ALL
    SELECT i.resource, 'a pending object write' FROM fencing.intent AS i
) AS b
WHERE EXISTS (
    SELECT FROM unnest($1::text[], $2::text[]) AS r (first, after)
    WHERE b.resource >= r.first AND (r.after IS NULL OR b.resource < r.after)
)
ORDER BY b.resource COLLATE "C"

-- name: buckets
-- The buckets in which something is not over.
SELECT bucket FROM fencing.intent UNION SELECT bucket FROM fencing.upload WHERE completed_at IS NULL
UNION SELECT bucket FROM fencing.tombstone UNION SELECT bucket FROM fencing.forbidden
UNION SELECT bucket FROM fencing.spent

-- name: keys
-- The keys of a bucket with which something is not over.
SELECT key FROM fencing.intent WHERE bucket = $1
UNION SELECT key FROM fencing.upload WHERE bucket = $1 AND completed_at IS NULL
UNION SELECT key FROM fencing.tombstone WHERE bucket = $1
UNION SELECT key FROM fencing.forbidden WHERE bucket = $1
UNION SELECT key FROM fencing.spent WHERE bucket = $1

-- name: record
-- Put on record that another share is in force.
INSERT INTO fencing.intake (kind, caller, target, details)
VALUES ('administration', 'role:' || session_user, 'ownership', $1::text::jsonb)
