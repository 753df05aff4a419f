-- name: standing
-- How tokens stand: the fence of each resource, whether the lease service has issued the token, whether a lease of it
-- still lasts. Nothing is locked: what is asked about grows only, but for leases, which may end at any moment anyway.
SELECT u.number, f AS fence,
    EXISTS (
        SELECT FROM fencing.lock AS l
        WHERE l.resource = u.resource COLLATE "C" AND (l.epoch, l.value) >= (u.epoch, u.value)
    ) AS issued,
    EXISTS (
        SELECT FROM fencing.lease AS l
        WHERE l.resource = u.resource COLLATE "C" AND (l.epoch, l.value) = (u.epoch, u.value)
          AND ($4::text IS NULL OR l.mode = $4) AND l.expires_at > clock_timestamp()
    ) AS held
FROM unnest($1::text[], $2::integer[], $3::bigint[]) WITH ORDINALITY AS u (resource, epoch, value, number)
LEFT JOIN fencing.fence AS f ON f.resource = u.resource COLLATE "C"
ORDER BY u.number
