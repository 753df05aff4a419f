-- name: acquire
-- Ask for a lock, and for a place in its queue where there is an attendant.
SELECT outcome, lease, expires_in, fresh, ticket, handed, look_in, place, delayed_for
FROM fencing.acquire_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: acquire_free
-- Grant those of many locks that are free.
SELECT lease, (lease).ttl AS expires_in FROM fencing.acquire_free_v1($1, $2, $3, $4, $5, $6, $7) AS lease

-- name: release_free
-- End those of many leases whose locks have no waiters.
SELECT resource, id, caller FROM fencing.release_free_v1($1, $2, $3)

-- name: renew
-- Renew leases, in the order of their names and ids.
SELECT lease, expires_in, forbidden FROM fencing.renew_v1($1, $2, $3, $4)

-- name: release
-- End a lease, and hand the lock over.
SELECT outcome, handed, look_in FROM fencing.release_v1($1, $2, $3)

-- name: withdraw
-- End a wish, whether it waits or was granted.
SELECT handed, look_in FROM fencing.withdraw_v1($1, $2, $3, $4)

-- name: leave
-- Waiters of an attendant that wait no longer.
SELECT resource, handed, look_in FROM fencing.leave_v1($1, $2, $3, $4)

-- name: break
-- End every lease with exactly this token, on record.
SELECT broken, handed, look_in FROM fencing.break_v1($1, $2, $3, $4, $5)

-- name: advance
-- Look at a lock: what has lapsed, and whose turn it is.
SELECT handed, look_in FROM fencing.advance_v1($1)

-- name: attend
-- An attendant is heard of, and told how its waiters stand.
SELECT waiting, due FROM fencing.attend_v1($1, $2)

-- name: places
-- The resources of tickets of an attendant.
SELECT resource, ticket FROM fencing.waiter WHERE attendant = $1 AND ticket = ANY($2)

-- name: lapsed
-- Return locks with lapsed leases that no gateway has looked at since.
SELECT DISTINCT resource FROM fencing.lease WHERE expires_at <= clock_timestamp() ORDER BY resource LIMIT $1

-- name: forget_waiters
-- Delete places of attendants without a heartbeat for a minute, and places that no client has come back to.
DELETE FROM fencing.waiter AS w
WHERE coalesce(
    CASE WHEN w.attendant IS NULL THEN w.until ELSE (SELECT a.until FROM fencing.attendant AS a WHERE a.id = w.attendant) END,
    '-infinity') < clock_timestamp() - interval '1 minute'

-- name: forget_attendants
-- Attendants without waiters that have not been heard of for an hour.
DELETE FROM fencing.attendant AS a
WHERE a.until < clock_timestamp() - interval '1 hour'
  AND NOT EXISTS (SELECT FROM fencing.waiter AS w WHERE w.attendant = a.id)

-- name: views
-- How locks stand, in the order of their names.
SELECT
    r.resource, k.epoch, k.value, clock_timestamp() AS now,
    CASE WHEN k.delayed_until > clock_timestamp()
         THEN extract(epoch FROM k.delayed_until - clock_timestamp())::double precision END AS delayed_for,
    ARRAY(SELECT l FROM fencing.lease AS l WHERE l.resource = r.resource AND l.expires_at > clock_timestamp()
          ORDER BY l.acquired_at, l.id) AS leases,
    (SELECT count(*) FROM fencing.living_waiter AS w WHERE w.resource = r.resource) AS waiters,
    ARRAY(SELECT w FROM fencing.living_waiter AS w WHERE w.resource = r.resource ORDER BY w.ticket LIMIT $2) AS queue
FROM unnest($1::text[]) AS r (resource) LEFT JOIN fencing.lock AS k ON k.resource = r.resource
ORDER BY r.resource COLLATE "C"

-- name: held
-- Names of locks that are held, from a prefix, after a name.
SELECT DISTINCT resource FROM fencing.lease
WHERE starts_with(resource, $1) AND resource >= $1 AND resource > $2 AND expires_at > clock_timestamp()
ORDER BY resource LIMIT $3
