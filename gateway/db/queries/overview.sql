-- name: alarms
-- The alarms that are on.
SELECT name, since, total FROM fencing.alarm WHERE since IS NOT NULL

-- name: standing
-- Return the work under way, and the end of the record; `sealed_at` is the time of its last entry.
SELECT clock_timestamp() AS now,
       pending.count AS pending, pending.oldest AS pending_since,
       (SELECT count(*) FROM (SELECT FROM fencing.intake LIMIT 10001) AS waiting) AS unsealed,
       (SELECT at FROM fencing.intake ORDER BY number LIMIT 1) AS unsealed_since,
       head.position, encode(head.hash, 'hex') AS hash, head.day,
       (SELECT at FROM fencing.entry WHERE day = head.day AND position = head.position) AS sealed_at
FROM fencing.head AS head,
     (SELECT count(*) AS count, min(signed_at) AS oldest FROM fencing.intent) AS pending

-- name: objects
-- How much of the object plane is under way. No more of anything is counted than is asked for.
SELECT
    (SELECT count(*) FROM (SELECT FROM fencing.intent LIMIT $1) AS counted) AS intents,
    coalesce((
        SELECT extract(epoch FROM now() - min(signed_at)) FROM (SELECT signed_at FROM fencing.intent LIMIT $1) AS counted
    ), 0)::float8 AS oldest_intent,
    (SELECT count(*) FROM (SELECT FROM fencing.tombstone LIMIT $1) AS counted) AS tombstones,
    (SELECT count(*) FROM (SELECT FROM fencing.upload WHERE staged LIMIT $1) AS counted) AS uploads

-- name: record
-- Return the end of the record, and the entries not in it yet: the oldest has the lowest number.
SELECT
    (SELECT position FROM fencing.head) AS position,
    (SELECT count(*) FROM (SELECT FROM fencing.intake LIMIT $1) AS counted) AS unsealed,
    coalesce((
        SELECT extract(epoch FROM clock_timestamp() - at) FROM fencing.intake ORDER BY number LIMIT 1
    ), 0)::float8 AS oldest_unsealed

-- name: head
-- The end of the record.
SELECT position, day FROM fencing.head

-- name: entries
-- How many entries of each kind there are after a place in the record, of the next so many, and the place of the last.
SELECT kind, count(*) AS number, max(position) AS position, max(day) AS day
FROM (
    SELECT e.kind, e.position, e.day FROM fencing.entry AS e
    WHERE e.day >= $1 AND (e.day, e.position) > ($1, $2) ORDER BY e.day, e.position LIMIT $3
) AS stretch
GROUP BY kind

-- name: leases
-- Leases that last, and those that wait.
SELECT
    (SELECT count(*) FROM (
        SELECT FROM fencing.lease WHERE expires_at > clock_timestamp() LIMIT $1
    ) AS counted) AS held,
    (SELECT count(*) FROM (SELECT FROM fencing.waiter LIMIT $1) AS counted) AS waiters

-- name: webhooks
-- How far behind the named webhooks are, and for how long they have been failing.
SELECT w.name, head.position - w.position AS behind,
    coalesce(extract(epoch FROM clock_timestamp() - w.failing_since), 0)::float8 AS failing
FROM fencing.webhook AS w, fencing.head WHERE w.name = ANY ($1::text[])

-- name: backlog_alarms
-- Which of the named alarms are on.
SELECT name, since IS NOT NULL AS active FROM fencing.alarm WHERE name = ANY ($1::text[])

-- name: troubled
-- Resources by their refused writes since a moment, among so many of the newest; the most refused first.
SELECT resource, count(*) AS refused, count(*) FILTER (WHERE NOT enforced) AS noted, max(at) AS last
FROM (
    SELECT resource, enforced, at FROM fencing.entry
    WHERE kind = 'rejection' AND day >= ($1 AT TIME ZONE 'UTC')::date - 1
    ORDER BY position DESC LIMIT $2
) AS newest
WHERE at >= $1 AND resource IS NOT NULL
GROUP BY resource ORDER BY refused DESC, last DESC LIMIT $3

-- name: taken_over
-- The newest takeovers since a moment, one of each resource, among so many of the newest.
SELECT * FROM (
    SELECT DISTINCT ON (resource) *
    FROM (
        SELECT * FROM fencing.entry
        WHERE kind = ANY ('{raised,barrier,epoch}') AND day >= ($1 AT TIME ZONE 'UTC')::date - 1
        ORDER BY position DESC LIMIT $2
    ) AS newest
    WHERE at >= $1 AND resource IS NOT NULL
    ORDER BY resource, position DESC
) AS each
ORDER BY position DESC LIMIT $3
