-- name: record
-- Record that a key is not as the last write through the gateway left it. Remember its state of now, so that
-- each change is found once. Return no row and do nothing if that is not certain. The remembered state must be a witness. Nothing
-- may be under way at the key but the write that has looked ($5, $6), and no gateway may be settling that. A sweep
-- ($5 null) has looked between reading the row and this statement: the row must be unchanged ($4).
--
-- A remembered ETag that is forbidden may have been bumped away by the gateway itself, and the gateway that sent the bump
-- may be dead. Then the state of now is remembered as a guess, and nothing is recorded.
--
-- The key may have rows of other resources, from before a change of a rule. A state that fits one of them is no finding.
WITH held AS (
    SELECT o.resource, o.etag, o.tombstone, EXISTS (
        SELECT FROM fencing.forbidden AS f
        WHERE f.resource = $1 AND f.bucket = $2 AND f.key = $3 AND f.etag = coalesce(o.etag, '')) AS bumped
    FROM fencing.object AS o
    WHERE o.resource = $1 AND o.bucket = $2 AND o.key = $3 AND o.witnessed AND o.etag IS DISTINCT FROM $7::text
      AND ($4::text IS NULL OR o.xmin::text = $4)
      AND NOT EXISTS (
          SELECT FROM fencing.intent AS i
          WHERE i.bucket = $2 AND i.key = $3 AND (i.settling OR (i.resource, i.write_id, i.attempt) IS DISTINCT FROM ($1, $5::uuid, $6::integer)))
      AND ($5 IS NULL OR EXISTS (
          SELECT FROM fencing.intent AS i
          WHERE i.resource = $1 AND i.bucket = $2 AND i.key = $3 AND (i.write_id, i.attempt) = ($5, $6)))
      AND NOT EXISTS (
          SELECT FROM fencing.object AS p
          WHERE p.bucket = $2 AND p.key = $3 AND p.resource <> $1 AND p.etag IS NOT DISTINCT FROM $7)
    FOR UPDATE OF o
), corrected AS (
    UPDATE fencing.object AS o SET etag = $7, tombstone = false, witnessed = NOT held.bumped FROM held
    WHERE o.resource = held.resource AND o.bucket = $2 AND o.key = $3
), reason AS (
    SELECT CASE WHEN $7 IS NULL THEN 'object-vanished' WHEN held.etag IS NULL OR held.tombstone THEN 'object-appeared'
        ELSE 'object-changed' END AS reason, held.* FROM held WHERE NOT held.bumped
)
INSERT INTO fencing.intake (kind, plane, rule, resource, reason, target,
    fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details)
SELECT 'bypass', 'objects', $8, r.resource, r.reason, $9, f.epoch, f.value, f.holder, f.caller, f.raised_at,
    jsonb_strip_nulls(jsonb_build_object('expected', r.etag, 'tombstone', nullif(r.tombstone, false)) || $10::jsonb)
FROM reason AS r LEFT JOIN fencing.fence AS f ON f.resource = r.resource
RETURNING reason

-- name: buckets
-- Begin to patrol the buckets that something is remembered of; found by going from one to the next in the index.
WITH RECURSIVE named (bucket) AS (
    (SELECT o.bucket FROM fencing.object AS o ORDER BY o.bucket LIMIT 1)
    UNION ALL
    SELECT (SELECT o.bucket FROM fencing.object AS o WHERE o.bucket > n.bucket ORDER BY o.bucket LIMIT 1)
    FROM named AS n WHERE n.bucket IS NOT NULL
)
INSERT INTO fencing.patrol (bucket) SELECT bucket FROM named WHERE bucket IS NOT NULL
ON CONFLICT (bucket) DO NOTHING RETURNING bucket

-- name: take_up
-- Return the bucket that was scanned longest ago, if not since $1, and the key to go on from.
UPDATE fencing.patrol AS p SET taken_at = clock_timestamp()
WHERE p.bucket = (
    SELECT q.bucket FROM fencing.patrol AS q WHERE q.taken_at < $1 ORDER BY q.taken_at LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING p.bucket, p.after

-- name: go_on
-- Move the scan of a bucket from $2 to $3, unless another gateway has moved it.
UPDATE fencing.patrol AS p SET after = $3, taken_at = clock_timestamp() WHERE p.bucket = $1 AND p.after = $2 RETURNING 1

-- name: remembered
-- Return the remembered state of the keys of a bucket after one of them, in the order of keys.
SELECT o.resource, o.key, o.etag, o.tombstone, o.witnessed, o.xmin::text AS version FROM fencing.object AS o
WHERE o.bucket = $1 AND o.key > $2 ORDER BY o.key LIMIT $3

-- name: forget
-- Rows of keys that belong to other resources by now, if they are the same rows still.
DELETE FROM fencing.object AS o USING unnest($2::text[], $3::text[], $4::text[]) AS u (resource, key, version)
WHERE o.resource = u.resource AND o.bucket = $1 AND o.key = u.key AND o.xmin::text = u.version RETURNING 1

-- name: bucket_vanished
-- Forget a bucket that is gone, with everything known of it, as one entry; without an entry if it held nothing. Rows from
-- before the look prove that it was not emptied and deleted through the gateway, and created anew since. One of them
-- ($3, $4, $5) must still stand for an object.
WITH known AS (
    SELECT FROM fencing.object AS o
    JOIN unnest($3::text[], $4::text[], $5::text[]) AS u (resource, key, version)
      ON o.resource = u.resource AND o.key = u.key AND o.xmin::text = u.version
    WHERE o.bucket = $1 AND o.etag IS NOT NULL AND NOT o.tombstone AND o.witnessed LIMIT 1
), gone AS (
    DELETE FROM fencing.object AS o WHERE o.bucket = $1 AND EXISTS (SELECT FROM known)
      AND NOT EXISTS (SELECT FROM fencing.intent AS i WHERE i.bucket = $1) RETURNING o.etag, o.tombstone, o.witnessed
), unpatrolled AS (
    DELETE FROM fencing.patrol AS p WHERE p.bucket = $1 AND EXISTS (SELECT FROM gone)
), counted AS (
    SELECT count(*) AS objects FROM gone WHERE etag IS NOT NULL AND NOT tombstone AND witnessed
)
INSERT INTO fencing.intake (kind, plane, reason, target, details)
SELECT 'bypass', 'objects', 'bucket-vanished', $2,
    jsonb_build_object('found_by', 'sweep', 'bucket', $1::text, 'objects', c.objects)
FROM counted AS c WHERE c.objects > 0
RETURNING (details ->> 'objects')::bigint AS objects

-- name: forget_bucket
-- A bucket has been deleted through the gateway.
WITH unpatrolled AS (
    DELETE FROM fencing.patrol AS p WHERE p.bucket = $1
)
DELETE FROM fencing.object AS o WHERE o.bucket = $1 RETURNING 1
