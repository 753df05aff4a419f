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
