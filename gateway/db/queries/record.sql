-- name: seal
-- Seal committed entries; return their number, or null if another gateway is sealing and $2 says not to wait.
SELECT sealed, position FROM fencing.seal_v1($1, $2)

-- name: left
-- Return the entries that are still to be sealed.
SELECT min(number) AS oldest, max(number) AS newest FROM fencing.intake

-- name: head
-- The end of the record.
SELECT position, encode(hash, 'hex') AS hash FROM fencing.head

-- name: put
-- Something has happened that is no refusal.
INSERT INTO fencing.intake (
    kind, plane, rule, resource, reason, epoch, value, holder, caller, request_id,
    fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
RETURNING id, at

-- name: prepare_partitions
-- Partitions for the days to come. This function and the next are named as when a partition was a day: gateways of two
-- releases call them (docs/decisions/004).
SELECT fencing.prepare_days_v1($1, $2) AS made

-- name: drop_partition
-- The oldest partition, if the last of its days is old enough.
SELECT fencing.drop_day_v1($1) AS last_day

-- name: record
-- Record a privileged operation before it happens: a change of a bucket or its settings, or a request for credentials.
INSERT INTO fencing.intake (
    kind, plane, resource, epoch, value, holder, caller, method, target, client, request_id, details)
VALUES ('administration', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::jsonb)
RETURNING id

-- name: span
-- A bounded stretch of the record after a place: where it begins and ends; nulls where nothing is there any more. And the
-- end of the record, of the same moment.
SELECT stretch.first, stretch.last, stretch.day, head.position AS head, head.day AS head_day
FROM fencing.head, (
    SELECT min(position) AS first, max(position) AS last, max(day) AS day
    FROM (
        SELECT e.position, e.day FROM fencing.entry e
        WHERE e.day >= $1 AND (e.day, e.position) > ($1, $2)
        ORDER BY e.day, e.position LIMIT $3
    ) AS entries
) AS stretch
