-- name: introduce
-- Introduce webhooks. New names begin at the end of the record, without its history. Known ones stay where they are.
INSERT INTO fencing.webhook (name, position, day)
SELECT name, head.position, head.day FROM unnest($1::text[]) AS name, fencing.head
ON CONFLICT DO NOTHING

-- name: take
-- Take the webhooks among these that have entries to look at, are not paused, and have no other gateway at work.
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
    (e.kind = ANY ($4::text[]) AND ($5 = '' OR starts_with(e.resource, $5)) AND ($6 OR e.enforced IS DISTINCT FROM false)
        AND (e.reason IS NULL OR e.reason <> ALL ($9::text[])))
    OR (e.kind IN ('alarm-raised', 'alarm-cleared') AND e.details ->> 'alarm' = ANY ($7::text[]))
  )
ORDER BY e.day, e.position LIMIT $8

-- name: sending
-- Note the message that is about to be sent, since a repeated message must be the same. No row: another gateway owns it.
UPDATE fencing.webhook
SET sending = $4, owned_until = clock_timestamp() + make_interval(secs => $5)
WHERE name = $1 AND owner = $2 AND position = $3
RETURNING clock_timestamp() AS now

-- name: advance
-- Note that entries up to here were received. No row: another gateway owns the webhook and goes on from our position.
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
-- Note a failed attempt: the next one comes after so many seconds. With paused, no gateway tries at all.
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

-- name: introduce_alarm
-- New names begin at the end of the record, with an empty window; so do those whose rule is another one now.
INSERT INTO fencing.alarm (name, position, day, prefix, minutes, moment, counts)
SELECT $1, head.position, head.day, $2, $3, clock_timestamp(), '[]' FROM fencing.head
ON CONFLICT (name) DO UPDATE SET prefix = excluded.prefix, minutes = excluded.minutes, counts = '[]'
WHERE (alarm.prefix, alarm.minutes) <> (excluded.prefix, excluded.minutes)

-- name: due
-- Return the alarms among these that have something to look at: new entries or, while they are on, the time.
SELECT a.name FROM fencing.alarm a, fencing.head
WHERE a.name = ANY ($1::text[]) AND (a.position < head.position OR a.since IS NOT NULL)

-- name: lock
-- Its state, ours alone until the end of this transaction. No row: another gateway is at it. The times, in microseconds since
-- 1970, are in a column that had counts of steps before: where they are none, the window begins empty.
SELECT a.position, a.day, a.moment, CASE jsonb_typeof(a.counts) WHEN 'array' THEN a.counts ELSE '[]' END::text AS times,
    a.since, a.total, a.raised, clock_timestamp() AS now
FROM fencing.alarm a WHERE a.name = $1 FOR UPDATE SKIP LOCKED

-- name: counted
-- Return the refused writes of a stretch at resources that begin so, in the order of the record.
SELECT e.position, e.at FROM fencing.entry e
WHERE e.day >= $1 AND (e.day, e.position) > ($1, $2) AND e.position <= $3
  AND e.kind = 'rejection' AND e.enforced AND ($4 = '' OR starts_with(e.resource, $4))
ORDER BY e.day, e.position

-- name: particulars
-- Return the particulars of an alarm: the newest refusals that it counted between a time and a position.
WITH counted AS MATERIALIZED (
    SELECT e.id, e.position, e.resource, e.holder, e.caller FROM fencing.entry e
    WHERE e.day >= ($1::timestamptz AT TIME ZONE 'UTC')::date AND e.at > $1 AND e.position <= $2
      AND e.kind = 'rejection' AND e.enforced AND ($3 = '' OR starts_with(e.resource, $3))
    ORDER BY e.day DESC, e.position DESC LIMIT 10000
)
SELECT by.name AS by, named.name, named.count
FROM (VALUES ('resources'), ('holders'), ('callers')) AS by (name), LATERAL (
    SELECT CASE by.name WHEN 'resources' THEN c.resource WHEN 'holders' THEN c.holder ELSE c.caller END AS name,
           count(*) AS count
    FROM counted c GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $4
) AS named
UNION ALL
(SELECT 'rejections', c.id::text, 1 FROM counted c ORDER BY c.position DESC LIMIT $4)

-- name: save
UPDATE fencing.alarm
SET position = $2, day = $3, moment = $4, counts = $5::text::jsonb, since = $6, total = $7, raised = $8 WHERE name = $1
