-- name: note
-- Uses of keys. The latest one counts, whichever gateway notes it. All gateways lock the rows in one order.
INSERT INTO fencing.key_use AS known (caller, kind, key, last_used)
SELECT caller, kind, key, clock_timestamp() - make_interval(secs => ago)
FROM unnest($1::text[], $2::text[], $3::text[], $4::double precision[]) AS used (caller, kind, key, ago)
ORDER BY caller COLLATE "C", kind COLLATE "C", key COLLATE "C"
ON CONFLICT (caller, kind, key) DO UPDATE SET last_used = excluded.last_used
WHERE excluded.last_used > known.last_used

-- name: read
-- The last uses of all keys.
SELECT caller, kind, key, last_used FROM fencing.key_use ORDER BY caller, kind, key
