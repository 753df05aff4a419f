-- name: opened
-- A multipart upload has been opened; what was presented then holds for its parts and its completion.
INSERT INTO fencing.upload (resource, bucket, key, upload_id, write_id, epoch, value, holder, caller, staged, sequencer)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
RETURNING 1

-- name: peek
-- The fence of a resource and one upload, without any lock.
SELECT (SELECT f FROM fencing.fence AS f WHERE f.resource = $1) AS fence, u AS upload
FROM (SELECT) AS one
LEFT JOIN fencing.upload AS u ON u.resource = $1 AND u.bucket = $2 AND u.key = $3 AND u.upload_id = $4

-- name: touched
-- The upload is still in use.
UPDATE fencing.upload SET touched_at = clock_timestamp()
WHERE resource = $1 AND bucket = $2 AND key = $3 AND upload_id = $4
RETURNING 1

-- name: completed
-- The upload has become the object. Kept for a day, so that a completion that is sent again is recognised.
UPDATE fencing.upload SET completed_at = clock_timestamp()
WHERE resource = $1 AND bucket = $2 AND key = $3 AND upload_id = $4
RETURNING 1

-- name: closed
-- The upload is gone, or has become the object.
DELETE FROM fencing.upload
WHERE resource = $1 AND bucket = $2 AND key = $3 AND upload_id = $4
RETURNING 1

-- name: forgotten
-- Delete completed uploads that no client will ask for again.
DELETE FROM fencing.upload WHERE completed_at < clock_timestamp() - interval '1 day' RETURNING 1

-- name: left_behind
-- Return the gateway's own uploads that were not touched for so many seconds: their gateway is gone. Oldest first.
SELECT u AS upload FROM fencing.upload AS u
WHERE u.staged AND u.completed_at IS NULL AND u.touched_at < clock_timestamp() - make_interval(secs => $1)
ORDER BY u.touched_at LIMIT $2

-- name: any_staged
-- Whether the gateway has uploads of its own in the bucket.
SELECT EXISTS (SELECT FROM fencing.upload AS u WHERE u.staged AND u.bucket = $1) AS any

-- name: staged_among
-- Which of these uploads the gateway opened for itself.
SELECT u.upload_id FROM fencing.upload AS u WHERE u.staged AND u.bucket = $1 AND u.upload_id = ANY ($2)

-- name: staged_below
-- Below which of these prefixes the gateway has uploads of its own.
SELECT p.prefix FROM unnest($2::text[]) AS p (prefix)
WHERE EXISTS (SELECT FROM fencing.upload AS u WHERE u.staged AND u.bucket = $1 AND starts_with(u.key, p.prefix))
