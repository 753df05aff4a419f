-- name: begin
-- Claim the resource and announce a mutation of one key, unless others must be settled first.
SELECT decision, fence, pending, signed_at, forbidden
FROM fencing.begin_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: finish
-- The mutation has taken effect: forget its intent and remember the ETag, unless somebody settles or has settled it.
WITH finished AS (
    DELETE FROM fencing.intent
    WHERE resource = $1 AND bucket = $2 AND key = $3 AND write_id = $4 AND attempt = $5 RETURNING settling
), remembered AS (
    INSERT INTO fencing.object (resource, bucket, key, etag, tombstone)
    SELECT $1, $2, $3, $6, $7 FROM finished WHERE NOT settling
    ON CONFLICT (resource, bucket, key) DO UPDATE SET etag = excluded.etag, tombstone = excluded.tombstone
)
SELECT EXISTS (SELECT FROM finished WHERE NOT settling) AS undisturbed

-- name: abandon
-- The mutation has had no effect and can have none any more: forget its intent, and what was remembered of the key.
WITH forgotten AS (
    DELETE FROM fencing.object WHERE resource = $1 AND bucket = $2 AND key = $3
)
DELETE FROM fencing.intent WHERE resource = $1 AND bucket = $2 AND key = $3 AND write_id = $4 AND attempt = $5 RETURNING 1

-- name: forbid
-- From now on this ETag (or absence) must not come back on the key, and the intent is being settled.
WITH added AS (
    INSERT INTO fencing.forbidden (resource, bucket, key, etag) VALUES ($1, $2, $3, $4)
    ON CONFLICT (resource, bucket, key, etag) DO UPDATE SET forbidden_at = excluded.forbidden_at
), marked AS (
    UPDATE fencing.intent SET settling = true
    WHERE resource = $1 AND bucket = $2 AND key = $3 AND write_id = $5 AND attempt = $6
)
SELECT now() AS signed_at, ARRAY(
    SELECT etag FROM fencing.forbidden
    WHERE resource = $1 AND bucket = $2 AND key = $3
      AND ($7::timestamptz IS NULL OR forbidden_at >= $7 - interval '24 hours')
    UNION SELECT $4
) AS etags

-- name: pending
-- Whether one particular mutation is still under way.
SELECT EXISTS (
    SELECT FROM fencing.intent WHERE resource = $1 AND bucket = $2 AND key = $3 AND write_id = $4 AND attempt = $5
) AS pending

-- name: peek
-- The fence of a resource and what is remembered of a key, without any lock.
SELECT (SELECT f FROM fencing.fence AS f WHERE f.resource = $1) AS fence, o.etag, o.tombstone
FROM (SELECT) AS one LEFT JOIN fencing.object AS o ON o.resource = $1 AND o.bucket = $2 AND o.key = $3

-- name: all_pending
-- Every mutation that may be under way, the oldest first.
SELECT i AS intent FROM fencing.intent AS i ORDER BY i.signed_at LIMIT $1
