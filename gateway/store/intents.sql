-- name: begin
-- Claim the resource and announce a mutation of one key, unless others must be settled first.
SELECT decision, fence, pending, signed_at, forbidden, etag, tombstone
FROM fencing.begin_v2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)

-- name: finish
-- The mutation has taken effect: forget its intent and remember the ETag, unless somebody settles or has settled it.
-- Nobody needs to wait for the disk: were this lost, the intent would be back, and settled by the next writer.
WITH hurried AS (
    SELECT set_config('synchronous_commit', 'off', true)
), finished AS (
    DELETE FROM fencing.intent
    WHERE resource = $1 AND bucket = $2 AND key = $3 AND write_id = $4 AND attempt = $5 RETURNING settling
), remembered AS (
    INSERT INTO fencing.object (resource, bucket, key, etag, tombstone)
    SELECT $1, $2, $3, $6, $7 FROM finished WHERE NOT settling
    ON CONFLICT (resource, bucket, key) DO UPDATE SET etag = excluded.etag, tombstone = excluded.tombstone
), exhumed AS (
    -- Nothing else is under way on this key, and nothing late can entomb it while absence is not forbidden.
    DELETE FROM fencing.tombstone t
    WHERE t.resource = $1 AND t.bucket = $2 AND t.key = $3 AND NOT $7
      AND EXISTS (SELECT FROM finished WHERE NOT settling)
      AND NOT EXISTS (
          SELECT FROM fencing.forbidden f
          WHERE f.resource = $1 AND f.bucket = $2 AND f.key = $3 AND f.etag = '')
)
SELECT EXISTS (SELECT FROM finished WHERE NOT settling) AS undisturbed FROM hurried

-- name: abandon
-- The mutation can have no effect any more: forget its intent, and what was remembered of the key.
WITH forgotten AS (
    DELETE FROM fencing.object WHERE resource = $1 AND bucket = $2 AND key = $3
)
DELETE FROM fencing.intent WHERE resource = $1 AND bucket = $2 AND key = $3 AND write_id = $4 AND attempt = $5 RETURNING 1

-- name: forbid
-- From now on this ETag (or absence) must not come back on the key, and the intent is being settled.
WITH added AS (
    INSERT INTO fencing.forbidden (resource, bucket, key, etag) VALUES ($1, $2, $3, $4)
    ON CONFLICT (resource, bucket, key, etag) DO UPDATE SET forbidden_at = excluded.forbidden_at
), entombed AS (
    -- Absence is forbidden, so something will have to stand there.
    INSERT INTO fencing.tombstone (resource, bucket, key) SELECT $1, $2, $3 WHERE $4 = ''
    ON CONFLICT (resource, bucket, key) DO NOTHING
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

-- name: all_pending
-- Every mutation that may be under way, the oldest first.
SELECT i AS intent FROM fencing.intent AS i ORDER BY i.signed_at LIMIT $1
