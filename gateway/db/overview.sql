-- name: alarms
-- The alarms that are on.
SELECT name, since, total FROM fencing.alarm WHERE since IS NOT NULL

-- name: standing
-- What is under way, and the end of the record; `sealed_at` is when its last entry happened.
SELECT clock_timestamp() AS now,
       pending.count AS pending, pending.oldest AS pending_since,
       (SELECT count(*) FROM (SELECT FROM fencing.intake LIMIT 10001) AS waiting) AS unsealed,
       head.position, encode(head.hash, 'hex') AS hash, head.day,
       (SELECT at FROM fencing.entry WHERE day = head.day AND position = head.position) AS sealed_at
FROM fencing.head AS head,
     (SELECT count(*) AS count, min(signed_at) AS oldest FROM fencing.intent) AS pending
