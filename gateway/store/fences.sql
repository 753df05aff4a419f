-- name: claim_many
-- Lock, compare and raise the fences of all resources of a write, in one order; only those that need attention come back.
-- Names contain no comma: one text of them is a tenth of the work of an array.
SELECT decision, fence, pending FROM fencing.claim_many_v1(string_to_array($1, ','), $2, $3, $4, $5, $6, $7)

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
WHERE starts_with(resource, $1) AND resource >= $1 AND resource > $2
ORDER BY resource LIMIT $3
