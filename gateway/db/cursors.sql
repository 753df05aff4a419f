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
