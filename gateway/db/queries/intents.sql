-- name: begin
-- Claim the resource and announce a mutation of one key, unless others must be settled first. All of it is undone where
-- the naming of the bucket is not the one that the gateway proves.
SELECT decision, fence, pending, signed_at, forbidden, etag, tombstone, spent,
    fencing.check_bucket_naming_v1($8, $27) AS named, (SELECT term FROM fencing.opening) AS term
FROM fencing.begin_v2(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26)

-- name: finish
-- Finish a mutation that took effect: forget its intent and remember the ETag, unless it is being settled or was settled.
-- No caller needs to wait for the disk. If this were lost, the intent would be back, and the next writer would settle it.
-- Value $8: whether the ETag is certain. An ETag from before the announcement is not, nor is any ETag during a settlement. Then
-- the remembered state is good for a guess and is no witness.
-- $9: the conditions of the requests that were sent for it. If its intent is gone, its settler has forbidden these.
WITH hurried AS (
    SELECT set_config('synchronous_commit', 'off', true)
), finished AS (
    DELETE FROM fencing.intent
    WHERE resource = $1 AND bucket = $2 AND key = $3 AND write_id = $4 AND attempt = $5 RETURNING *
), spent AS (
    INSERT INTO fencing.spent (resource, bucket, key, etag, epoch, value, dead_at)
    SELECT DISTINCT $1, $2, $3, e.etag, f.epoch, f.value, f.signed_at + f.dead_after
    FROM finished AS f, unnest($9::text[]) AS e (etag)
    ON CONFLICT (resource, bucket, key, etag) DO UPDATE SET dead_at = greatest(spent.dead_at, excluded.dead_at),
        (epoch, value) = (
            SELECT t.epoch, t.value FROM (VALUES (spent.epoch, spent.value), (excluded.epoch, excluded.value)) AS t (epoch, value)
            ORDER BY t.epoch, t.value LIMIT 1)
), remembered AS (
    INSERT INTO fencing.object (resource, bucket, key, etag, tombstone, witnessed)
    SELECT $1, $2, $3, $6, $7, $8 FROM finished WHERE NOT settling
    ON CONFLICT (resource, bucket, key) DO UPDATE
    SET etag = excluded.etag, tombstone = excluded.tombstone, witnessed = excluded.witnessed
    WHERE excluded.witnessed OR NOT object.witnessed
), doubted AS (
    UPDATE fencing.object SET witnessed = false
    WHERE resource = $1 AND bucket = $2 AND key = $3 AND EXISTS (SELECT FROM finished WHERE settling)
), exhumed AS (
    -- Nothing else is under way on this key, and nothing late can entomb it while absence is not forbidden.
    DELETE FROM fencing.tombstone t
    WHERE t.resource = $1 AND t.bucket = $2 AND t.key = $3 AND NOT $7
      AND EXISTS (SELECT FROM finished WHERE NOT settling)
      AND NOT EXISTS (
          SELECT FROM fencing.forbidden f
          WHERE f.resource = $1 AND f.bucket = $2 AND f.key = $3 AND f.etag = '')
)
SELECT EXISTS (SELECT FROM finished WHERE NOT settling) AS undisturbed FROM hurried

-- name: begin_looked
-- The same for a sender that has looked at the key. It also returns whether the remembered state is a witness to another
-- object.
SELECT b.decision, b.fence, b.pending, b.signed_at, b.forbidden, b.etag, b.tombstone, b.spent,
    o.witnessed AND o.etag IS DISTINCT FROM b.etag AS differs, fencing.check_bucket_naming_v1($8, $27) AS named,
    (SELECT term FROM fencing.opening) AS term
FROM fencing.begin_v2(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25,
    $26) AS b
LEFT JOIN fencing.object AS o ON o.resource = $1 AND o.bucket = $8 AND o.key = $9

-- name: abandon
-- The mutation can have no effect any more: forget its intent, and what was remembered of the key. $6: as $9 of finish.
WITH forgotten AS (
    DELETE FROM fencing.object WHERE resource = $1 AND bucket = $2 AND key = $3
), gone AS (
    DELETE FROM fencing.intent
    WHERE resource = $1 AND bucket = $2 AND key = $3 AND write_id = $4 AND attempt = $5 RETURNING *
)
INSERT INTO fencing.spent (resource, bucket, key, etag, epoch, value, dead_at)
SELECT DISTINCT $1, $2, $3, e.etag, g.epoch, g.value, g.signed_at + g.dead_after
FROM gone AS g, unnest($6::text[]) AS e (etag)
ON CONFLICT (resource, bucket, key, etag) DO UPDATE SET dead_at = greatest(spent.dead_at, excluded.dead_at),
    (epoch, value) = (
        SELECT t.epoch, t.value FROM (VALUES (spent.epoch, spent.value), (excluded.epoch, excluded.value)) AS t (epoch, value)
        ORDER BY t.epoch, t.value LIMIT 1)
RETURNING 1

-- name: forget_spent
-- Forget conditions of requests whose signatures are dead by the store's clock ($1), so many at a time.
DELETE FROM fencing.spent AS s WHERE s.ctid = ANY (ARRAY(
    SELECT d.ctid FROM fencing.spent AS d WHERE d.dead_at < $1 ORDER BY d.dead_at LIMIT $2 FOR UPDATE SKIP LOCKED))
RETURNING 1

-- name: settle
-- Finish the mutation of another writer. An older holder's goes on record, with the fence that its successor has raised.
-- If several gateways settle it at once, the one that deletes the intent records it. $7: as $9 of finish.
WITH forgotten AS (
    DELETE FROM fencing.object WHERE resource = $1 AND bucket = $2 AND key = $3
), gone AS (
    DELETE FROM fencing.intent
    WHERE resource = $1 AND bucket = $2 AND key = $3 AND write_id = $4 AND attempt = $5
    RETURNING *
), spent AS (
    INSERT INTO fencing.spent (resource, bucket, key, etag, epoch, value, dead_at)
    SELECT DISTINCT $1, $2, $3, e.etag, g.epoch, g.value, g.signed_at + g.dead_after
    FROM gone AS g, unnest($7::text[]) AS e (etag)
    ON CONFLICT (resource, bucket, key, etag) DO UPDATE SET dead_at = greatest(spent.dead_at, excluded.dead_at),
        (epoch, value) = (
            SELECT t.epoch, t.value FROM (VALUES (spent.epoch, spent.value), (excluded.epoch, excluded.value)) AS t (epoch, value)
            ORDER BY t.epoch, t.value LIMIT 1)
)
INSERT INTO fencing.intake (
    kind, plane, resource, epoch, value, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details)
SELECT 'settled', 'objects', gone.resource, gone.epoch, gone.value, f.epoch, f.value, f.holder, f.caller, f.raised_at,
       jsonb_build_object('bucket', gone.bucket, 'key', gone.key, 'write_id', gone.write_id, 'mutation', gone.kind,
                          'announced_at', gone.announced_at, 'seen', $6::boolean)
FROM gone JOIN fencing.fence AS f ON f.resource = gone.resource AND (f.epoch, f.value) > (gone.epoch, gone.value)
WHERE gone.kind <> 'lost'
RETURNING 1

-- name: forbid
-- This ETag (or absence) must not come back on the key before $7, by the store's clock, and the intent is being settled.
WITH added AS (
    INSERT INTO fencing.forbidden (resource, bucket, key, etag, dead_at) VALUES ($1, $2, $3, $4, $7)
    ON CONFLICT (resource, bucket, key, etag) DO UPDATE SET dead_at = greatest(forbidden.dead_at, excluded.dead_at)
), entombed AS (
    -- Absence is forbidden, so something will have to stand there.
    INSERT INTO fencing.tombstone (resource, bucket, key) SELECT $1, $2, $3 WHERE $4 = ''
    ON CONFLICT (resource, bucket, key) DO NOTHING
), marked AS (
    UPDATE fencing.intent SET settling = true
    WHERE resource = $1 AND bucket = $2 AND key = $3 AND write_id = $5 AND attempt = $6
)
SELECT ARRAY(
    SELECT etag FROM fencing.forbidden
    WHERE resource = $1 AND bucket = $2 AND key = $3 AND ($8::timestamptz IS NULL OR dead_at >= $8)
    UNION SELECT $4
) AS etags, ARRAY(
    SELECT etag FROM fencing.spent
    WHERE resource = $1 AND bucket = $2 AND key = $3 AND ($8::timestamptz IS NULL OR dead_at >= $8)
) AS spent

-- name: forbid_longer
-- Forbid an ETag (or absence) until $5, because a request without an intent waits for it. $6:
-- the request leaves a tombstone. Its object is the gateway's own work, and no write remembers it.
WITH entombed AS (
    INSERT INTO fencing.tombstone (resource, bucket, key) SELECT $1, $2, $3 WHERE $6
    ON CONFLICT (resource, bucket, key) DO NOTHING
), doubted AS (
    UPDATE fencing.object SET witnessed = false WHERE resource = $1 AND bucket = $2 AND key = $3
)
INSERT INTO fencing.forbidden (resource, bucket, key, etag, dead_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (resource, bucket, key, etag) DO UPDATE SET dead_at = greatest(forbidden.dead_at, excluded.dead_at)
RETURNING 1

-- name: pending
-- Whether one particular mutation is still under way.
SELECT EXISTS (
    SELECT FROM fencing.intent WHERE resource = $1 AND bucket = $2 AND key = $3 AND write_id = $4 AND attempt = $5
) AS pending

-- name: all_pending
-- Every mutation that may be under way, the oldest first.
SELECT i AS intent FROM fencing.intent AS i ORDER BY i.announced_at LIMIT $1

-- name: among
-- Which of these keys may be tombstones.
SELECT t.key FROM fencing.tombstone AS t WHERE t.bucket = $1 AND t.key = ANY ($2)

-- name: below
-- Which of these prefixes have keys that may be tombstones. The first key from the prefix on tells.
SELECT p.prefix FROM unnest($2::text[]) AS p (prefix)
CROSS JOIN LATERAL (
    SELECT t.key FROM fencing.tombstone AS t
    WHERE t.bucket = $1 AND t.key >= p.prefix COLLATE "C" ORDER BY t.key LIMIT 1
) AS first
WHERE starts_with(first.key, p.prefix)

-- name: any
-- Whether any key of the bucket may be a tombstone.
SELECT EXISTS (SELECT FROM fencing.tombstone AS t WHERE t.bucket = $1) AS any

-- name: claimed
-- Take up keys whose tombstones may be swept, the longest untouched first. No request may be waiting for their absence,
-- and no write of the key may be under way. They are marked as touched, so that no other gateway takes them up at the
-- same time. Of finished requests that might arrive again, older holders' count; with $5 all of them.
WITH chosen AS (
    SELECT t.resource, t.bucket, t.key FROM fencing.tombstone AS t
    WHERE t.at < $4 AND ($1::text IS NULL OR t.bucket = $1)
      AND NOT EXISTS (
          SELECT FROM fencing.forbidden AS f
          WHERE f.resource = t.resource AND f.bucket = t.bucket AND f.key = t.key AND f.etag = ''
            AND ($2::timestamptz IS NULL OR f.dead_at >= $2)
      )
      AND NOT EXISTS (
          SELECT FROM fencing.spent AS s LEFT JOIN fencing.fence AS f ON f.resource = s.resource
          WHERE s.resource = t.resource AND s.bucket = t.bucket AND s.key = t.key AND s.etag = ''
            AND ($2::timestamptz IS NULL OR s.dead_at >= $2) AND ($5 OR (s.epoch, s.value) < (f.epoch, f.value))
      )
      AND NOT EXISTS (
          SELECT FROM fencing.intent AS i
          WHERE i.resource = t.resource AND i.bucket = t.bucket AND i.key = t.key
      )
    ORDER BY t.at LIMIT $3
    FOR UPDATE SKIP LOCKED
)
UPDATE fencing.tombstone AS t SET at = clock_timestamp() FROM chosen AS c
WHERE t.resource = c.resource AND t.bucket = c.bucket AND t.key = c.key
RETURNING t.resource, t.bucket, t.key

-- name: count
-- How many keys may be tombstones, and how many of those may not be swept yet.
SELECT count(*) AS count, count(*) FILTER (WHERE EXISTS (
    SELECT FROM fencing.forbidden AS f
    WHERE f.resource = t.resource AND f.bucket = t.bucket AND f.key = t.key AND f.etag = ''
      AND f.dead_at >= $1::timestamptz
) OR EXISTS (
    SELECT FROM fencing.spent AS s JOIN fencing.fence AS f ON f.resource = s.resource
    WHERE s.resource = t.resource AND s.bucket = t.bucket AND s.key = t.key AND s.etag = '' AND s.dead_at >= $1
      AND (s.epoch, s.value) < (f.epoch, f.value)
)) AS waiting
FROM fencing.tombstone AS t
