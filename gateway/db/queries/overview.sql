-- name: alarms
-- The alarms that are on.
SELECT name, since, total FROM fencing.alarm WHERE since IS NOT NULL

-- name: standing
-- Return the work under way, and the end of the record. No more than $1 rows of anything are counted. Uploads that were
-- not touched for $2 seconds are left behind. `sealed_at` is the time of the last entry.
SELECT clock_timestamp() AS now,
    intents.count AS intents, intents.since AS intents_since, intents.oldest AS oldest_intent,
    (SELECT count(*) FROM (SELECT FROM fencing.tombstone LIMIT $1) AS counted) AS tombstones,
    (SELECT count(*) FROM (SELECT FROM fencing.upload WHERE staged LIMIT $1) AS counted) AS uploads,
    abandoned.count AS "left", abandoned.bucket AS left_in,
    (SELECT count(*) FROM (SELECT FROM fencing.intake LIMIT $1) AS counted) AS unsealed,
    (SELECT at FROM fencing.intake ORDER BY number LIMIT 1) AS unsealed_since,
    (SELECT count(*) FROM (
        SELECT FROM fencing.lease WHERE expires_at > clock_timestamp() LIMIT $1
    ) AS counted) AS held,
    (SELECT count(*) FROM (SELECT FROM fencing.waiter LIMIT $1) AS counted) AS waiters,
    head.position, encode(head.hash, 'hex') AS hash, head.day,
    (SELECT at FROM fencing.entry WHERE day = head.day AND position = head.position) AS sealed_at
FROM fencing.head AS head, (
    SELECT count(*) AS count, min(signed_at) AS since, (array_agg(bucket || '/' || key ORDER BY signed_at))[1] AS oldest
    FROM (SELECT bucket, key, signed_at FROM fencing.intent LIMIT $1) AS counted
) AS intents, (
    SELECT count(*) AS count, (array_agg(bucket ORDER BY touched_at))[1] AS bucket
    FROM (
        SELECT bucket, touched_at FROM fencing.upload
        WHERE staged AND completed_at IS NULL AND touched_at < clock_timestamp() - make_interval(secs => $2) LIMIT $1
    ) AS counted
) AS abandoned

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
