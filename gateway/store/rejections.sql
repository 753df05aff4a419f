-- name: record
-- One refused (or, in observe mode, noted) write.
INSERT INTO fencing.rejection (
    resource, reason, enforced, epoch, value, holder, caller, method, target, client, request_id,
    payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
RETURNING id, at

-- name: record_overtaken
-- A write whose fence carries a higher token already; one row, of nulls where it does not. A fence never goes down, so
-- no lock is needed to be sure.
WITH fence AS (
    SELECT * FROM fencing.fence AS f WHERE f.resource = $1 AND (f.epoch, f.value) > ($2::integer, $3::bigint)
), recorded AS (
    INSERT INTO fencing.rejection (
        resource, reason, enforced, epoch, value, holder, caller, method, target, client, request_id,
        payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at
    )
    SELECT resource, 'token-stale', true, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11,
           epoch, value, holder, caller, raised_at
    FROM fence
    RETURNING id, at, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at
)
SELECT recorded.* FROM (SELECT) AS one_row LEFT JOIN recorded ON true

-- name: list
-- The newest first, by any of the filters; pages go on after the last row seen.
SELECT * FROM fencing.rejection
WHERE ($1::text IS NULL OR resource = $1)
  AND ($2::text IS NULL OR holder = $2)
  AND ($3::text IS NULL OR caller = $3)
  AND ($4::text IS NULL OR reason = $4)
  AND ($5::timestamptz IS NULL OR at >= $5)
  AND ($6::timestamptz IS NULL OR (at, id) < ($6, $7::uuid))
ORDER BY at DESC, id DESC
LIMIT $8

-- name: position
-- Where a page that ended with this rejection goes on.
SELECT at, id FROM fencing.rejection WHERE id = $1
