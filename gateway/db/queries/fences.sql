-- name: claim_many
-- Lock, compare and raise the fences of all resources of a write, in one order; only those that need attention come back.
-- Names contain no comma: one text of them is a tenth of the work of an array.
SELECT decision, fence, pending FROM fencing.claim_many_v1(string_to_array($1, ','), $2, $3, $4, $5, $6, $7)

-- name: secure
-- With the journal's mode sync: all raises of a transaction at once, so that the gateway appends them together.
SELECT fencing.check_secured_v1(rising.raises)
FROM fencing.opening AS o, LATERAL (
    SELECT array_agg(u.resource || ' ' || u.epoch || '.' || u.value) AS raises
    FROM unnest($1::text[], $2::integer[], $3::bigint[]) AS u (resource, epoch, value)
    LEFT JOIN fencing.fence AS f ON f.resource = u.resource COLLATE "C"
    WHERE f.resource IS NULL OR (f.epoch, f.value) < (u.epoch, u.value)
) AS rising
WHERE o.mode = 'sync' AND rising.raises IS NOT NULL

-- name: lock
-- Lock the fences there are of these resources, in the order in which a claim locks them, and against other claims.
SELECT FROM fencing.fence WHERE resource = ANY($1) ORDER BY resource COLLATE "C" FOR UPDATE

-- name: raise
-- Raise without writing, and say which mutations are still under way with a lower token.
SELECT decision, fence, pending FROM fencing.raise_v1($1, $2, $3, $4, $5)

-- name: read
-- The fence of one resource.
SELECT f AS fence FROM fencing.fence AS f WHERE resource = $1

-- name: list
-- Fences in the order of their names, from a prefix, after a name.
SELECT f AS fence FROM fencing.fence AS f
WHERE starts_with(resource, $1) AND resource >= $1 AND resource > $2 AND resource <> '#ownership'
ORDER BY resource LIMIT $3

-- name: standing
-- How tokens stand: the fence of each resource, whether the lease service has issued the token, whether a lease of it
-- still lasts. Nothing is locked: what is asked about grows only, but for leases, which may end at any moment anyway.
-- With $5, wait until the standby has all that it rests on (see kept of idempotency.sql).
SELECT u.number, f AS fence,
    EXISTS (
        SELECT FROM fencing.lock AS l
        WHERE l.resource = u.resource COLLATE "C" AND (l.epoch, l.value) >= (u.epoch, u.value)
    ) AS issued,
    EXISTS (
        SELECT FROM fencing.lease AS l
        WHERE l.resource = u.resource COLLATE "C" AND (l.epoch, l.value) = (u.epoch, u.value)
          AND ($4::text IS NULL OR l.mode = $4) AND l.expires_at > clock_timestamp()
    ) AS held,
    CASE WHEN $5::boolean AND current_setting('synchronous_standby_names') <> ''
         THEN pg_logical_emit_message(true, 'fencing', '') END
FROM unnest($1::text[], $2::integer[], $3::bigint[]) WITH ORDINALITY AS u (resource, epoch, value, number)
LEFT JOIN fencing.fence AS f ON f.resource = u.resource COLLATE "C"
ORDER BY u.number

-- name: bump
-- Start a new epoch of a fence that carries exactly the expected token.
SELECT outcome, fence, ended FROM fencing.bump_epoch_v1($1, $2, $3, $4, $5)
