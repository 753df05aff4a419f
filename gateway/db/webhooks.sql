-- name: introduce
-- New names begin at the end of the record, not with its history. Those that are known stay where they are.
INSERT INTO fencing.webhook (name, position, day)
SELECT name, head.position, head.day FROM unnest($1::text[]) AS name, fencing.head
ON CONFLICT DO NOTHING

-- name: take
-- Those of the named that have something to be looked at, are not waited with, and that nobody else is at work on.
UPDATE fencing.webhook w
SET owner = $2, owned_until = clock_timestamp() + make_interval(secs => $3)
FROM fencing.head
WHERE w.name = ANY ($1::text[]) AND w.position < head.position AND w.paused_at IS NULL
  AND (w.not_before IS NULL OR w.not_before <= clock_timestamp())
  AND (w.owner IS NULL OR w.owner = $2 OR w.owned_until <= clock_timestamp())
RETURNING w.name, w.position, w.day, w.sending, w.failures

-- name: wanted
-- Entries of a stretch: those of the wanted kinds, and what the named alarms have put on record.
SELECT e.* FROM fencing.entry e
WHERE e.day >= $1 AND (e.day, e.position) > ($1, $2) AND e.position <= $3
  AND (
    (e.kind = ANY ($4::text[]) AND ($5 = '' OR starts_with(e.resource, $5)) AND ($6 OR e.enforced IS DISTINCT FROM false))
    OR (e.kind IN ('alarm-raised', 'alarm-cleared') AND e.details ->> 'alarm' = ANY ($7::text[]))
  )
ORDER BY e.day, e.position LIMIT $8

-- name: sending
-- What is about to be sent, put down before it is: whoever sends it again must send the same. No row: no longer ours.
UPDATE fencing.webhook
SET sending = $4, owned_until = clock_timestamp() + make_interval(secs => $5)
WHERE name = $1 AND owner = $2 AND position = $3
RETURNING clock_timestamp() AS now

-- name: advance
-- Received up to here. No row: somebody else is at work, and goes on from where we were.
UPDATE fencing.webhook
SET position = $4, day = $5, sending = NULL, failures = 0, failing_since = NULL, last_error = NULL, not_before = NULL,
    delivered_at = clock_timestamp()
WHERE name = $1 AND owner = $2 AND position = $3
RETURNING true AS done

-- name: skip
-- Nothing in between was for it. No row, as above.
UPDATE fencing.webhook SET position = $4, day = $5
WHERE name = $1 AND owner = $2 AND position = $3
RETURNING true AS done

-- name: fail
-- Not taken: nobody tries before so many seconds are over. With paused, nobody tries at all.
UPDATE fencing.webhook
SET failures = failures + 1, failing_since = coalesce(failing_since, clock_timestamp()), last_error = $4,
    not_before = clock_timestamp() + make_interval(secs => $5),
    paused_at = CASE WHEN $6 THEN clock_timestamp() END, owner = NULL, owned_until = NULL
WHERE name = $1 AND owner = $2 AND position = $3

-- name: release
-- Others need not wait until the time is over.
UPDATE fencing.webhook SET owner = NULL, owned_until = NULL WHERE name = $1 AND owner = $2

-- name: resume
-- The receiver is there: what waits for it is tried at once.
UPDATE fencing.webhook SET paused_at = NULL, not_before = NULL WHERE name = $1

-- name: listed
-- How the named stand. Behind: entries of the record that have not been looked at for it.
SELECT w.name, w.position, head.position - w.position AS behind, w.failures, w.failing_since, w.last_error,
       w.not_before, w.paused_at, w.delivered_at
FROM fencing.webhook w, fencing.head
WHERE w.name = ANY ($1::text[]) ORDER BY w.name
