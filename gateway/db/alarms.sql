-- name: introduce
-- New names begin at the end of the record, with an empty window; so do those whose rule is another one now.
INSERT INTO fencing.alarm (name, position, day, prefix, minutes, moment, counts)
SELECT $1, head.position, head.day, $2, $3, clock_timestamp(), '[]' FROM fencing.head
ON CONFLICT (name) DO UPDATE SET prefix = excluded.prefix, minutes = excluded.minutes, counts = '[]'
WHERE (alarm.prefix, alarm.minutes) <> (excluded.prefix, excluded.minutes)

-- name: due
-- Those of the named that have something to look at: what is new on record or, while they are on, the time.
SELECT a.name FROM fencing.alarm a, fencing.head
WHERE a.name = ANY ($1::text[]) AND (a.position < head.position OR a.since IS NOT NULL)

-- name: lock
-- Its state, ours alone until the end of this transaction. No row: another gateway is at it. The times, in microseconds since
-- 1970, are in a column that had counts of steps before: where they are none, the window begins empty.
SELECT a.position, a.day, a.moment, CASE jsonb_typeof(a.counts) WHEN 'array' THEN a.counts ELSE '[]' END::text AS times,
    a.since, a.total, a.raised, clock_timestamp() AS now
FROM fencing.alarm a WHERE a.name = $1 FOR UPDATE SKIP LOCKED

-- name: counted
-- What counts of a stretch: refused writes at resources that begin so, in the order of the record.
SELECT e.position, e.at FROM fencing.entry e
WHERE e.day >= $1 AND (e.day, e.position) > ($1, $2) AND e.position <= $3
  AND e.kind = 'rejection' AND e.enforced AND ($4 = '' OR starts_with(e.resource, $4))
ORDER BY e.day, e.position

-- name: particulars
-- Who and what an alarm is about: the newest of what it has counted between a time and a position.
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
