-- name: among
-- Which of these keys may be tombstones.
SELECT t.key FROM fencing.tombstone AS t WHERE t.bucket = $1 AND t.key = ANY ($2)

-- name: below
-- Which of these prefixes have keys that may be tombstones. The first key from the prefix on tells.
SELECT p.prefix FROM unnest($2::text[]) AS p (prefix)
CROSS JOIN LATERAL (
    SELECT t.key FROM fencing.tombstone AS t
    WHERE t.bucket = $1 AND t.key >= p.prefix COLLATE "C" ORDER BY t.key LIMIT 1
) AS first
WHERE starts_with(first.key, p.prefix)

-- name: any
-- Whether any key of the bucket may be a tombstone.
SELECT EXISTS (SELECT FROM fencing.tombstone AS t WHERE t.bucket = $1) AS any

-- name: claimed
-- Keys that may be tombstones and may be swept, the longest untouched first: nothing may be waiting for their absence, or
-- be under way that a write of the key would have to settle. They are marked as touched, so that nobody else takes them
-- up at the same time. Of requests that are over, and might arrive again, older holders' count; with $5 all of them.
WITH chosen AS (
    SELECT t.resource, t.bucket, t.key FROM fencing.tombstone AS t
    WHERE t.at < $4 AND ($1::text IS NULL OR t.bucket = $1)
      AND NOT EXISTS (
          SELECT FROM fencing.forbidden AS f
          WHERE f.resource = t.resource AND f.bucket = t.bucket AND f.key = t.key AND f.etag = ''
            AND ($2::timestamptz IS NULL OR f.forbidden_at >= $2 - interval '24 hours')
      )
      AND NOT EXISTS (
          SELECT FROM fencing.spent AS s LEFT JOIN fencing.fence AS f ON f.resource = s.resource
          WHERE s.resource = t.resource AND s.bucket = t.bucket AND s.key = t.key AND s.etag = ''
            AND ($2::timestamptz IS NULL OR s.dead_at >= $2) AND ($5 OR (s.epoch, s.value) < (f.epoch, f.value))
      )
      AND NOT EXISTS (
          SELECT FROM fencing.intent AS i LEFT JOIN fencing.fence AS f ON f.resource = i.resource
          WHERE i.resource = t.resource
            AND ((i.bucket = t.bucket AND i.key = t.key) OR (i.epoch, i.value) < (f.epoch, f.value))
      )
    ORDER BY t.at LIMIT $3
    FOR UPDATE SKIP LOCKED
)
UPDATE fencing.tombstone AS t SET at = clock_timestamp() FROM chosen AS c
WHERE t.resource = c.resource AND t.bucket = c.bucket AND t.key = c.key
RETURNING t.resource, t.bucket, t.key

-- name: count
-- How many keys may be tombstones, and how many of those may not be swept yet.
SELECT count(*) AS count, count(*) FILTER (WHERE EXISTS (
    SELECT FROM fencing.forbidden AS f
    WHERE f.resource = t.resource AND f.bucket = t.bucket AND f.key = t.key AND f.etag = ''
      AND f.forbidden_at >= $1::timestamptz - interval '24 hours'
) OR EXISTS (
    SELECT FROM fencing.spent AS s JOIN fencing.fence AS f ON f.resource = s.resource
    WHERE s.resource = t.resource AND s.bucket = t.bucket AND s.key = t.key AND s.etag = '' AND s.dead_at >= $1
      AND (s.epoch, s.value) < (f.epoch, f.value)
)) AS waiting
FROM fencing.tombstone AS t
