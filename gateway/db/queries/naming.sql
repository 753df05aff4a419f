-- name: tables
-- The naming of every table that has one.
SELECT name, naming::text AS naming, generation, change::text AS change, relation::oid::bigint AS relation
FROM fencing.table_naming ORDER BY name, 5

-- name: primary_keys
-- The tables of these schemas and names, with the number of columns in their primary keys.
SELECT n.nspname || '.' || c.relname AS name, i.indnkeyatts::int AS columns
FROM unnest($1::text[], $2::text[]) AS asked (schema, name)
JOIN pg_catalog.pg_namespace n ON n.nspname = asked.schema
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = asked.name
JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisprimary

-- name: bucket
-- The naming of one bucket.
SELECT name, naming::text AS naming, generation, change::text AS change, 0::bigint AS relation
FROM fencing.bucket_naming WHERE name = $1

-- name: buckets
-- The naming of every bucket that has one.
SELECT name, naming::text AS naming, generation, change::text AS change, 0::bigint AS relation
FROM fencing.bucket_naming ORDER BY name

-- name: register_table
-- Give a table a naming under this name. $4 has the generations of all namings that the gateway has compared with it.
-- If there is another one by now, nothing is registered. A change of a naming locks the registry against this statement.
INSERT INTO fencing.table_naming (name, relation, naming)
SELECT $1, $2::bigint::oid::regclass, $3::text::jsonb
WHERE NOT EXISTS (
    SELECT FROM fencing.table_naming
    WHERE (name = $1 COLLATE "C" OR relation = $2::bigint::oid) AND generation <> ALL ($4::uuid[])
)
ON CONFLICT DO NOTHING RETURNING name

-- name: register_bucket
-- Give a bucket its first naming. The first gateway decides.
INSERT INTO fencing.bucket_naming (name, naming) VALUES ($1, $2::text::jsonb)
ON CONFLICT (name) DO NOTHING RETURNING name

-- name: close_table
-- Begin a change of a table's naming: no write proves the generation from now on.
UPDATE fencing.table_naming
SET change = $3::text::jsonb, generation = gen_random_uuid(), changed_at = clock_timestamp()
WHERE name = $1 COLLATE "C" OR relation = $2::bigint::oid RETURNING name

-- name: close_bucket
-- Begin a change of a bucket's naming: no write proves the generation from now on.
UPDATE fencing.bucket_naming
SET change = $2::text::jsonb, generation = gen_random_uuid(), changed_at = clock_timestamp()
WHERE name = $1 COLLATE "C" RETURNING name

-- name: open_table
-- Put a table's next naming in force. Returns nothing if another change has begun meanwhile.
UPDATE fencing.table_naming
SET naming = $3::text::jsonb, change = NULL, generation = gen_random_uuid(), changed_at = clock_timestamp()
WHERE (name = $1 COLLATE "C" OR relation = $2::bigint::oid) AND change = $3::text::jsonb RETURNING name

-- name: open_bucket
-- Put a bucket's next naming in force. Returns nothing if another change has begun meanwhile.
UPDATE fencing.bucket_naming
SET naming = $2::text::jsonb, change = NULL, generation = gen_random_uuid(), changed_at = clock_timestamp()
WHERE name = $1 COLLATE "C" AND change = $2::text::jsonb RETURNING name

-- name: record
-- Put on record that a naming was changed.
INSERT INTO fencing.intake (kind, caller, target, details)
VALUES ('administration', 'role:' || session_user, $1, $2::text::jsonb)

-- name: old_names
-- How many fences and locks have names of these forms, and the highest epoch among them.
SELECT count(DISTINCT resource) AS total, coalesce(max(epoch), 0) AS epoch
FROM (
    SELECT resource, epoch FROM fencing.fence WHERE resource ~ ANY ($1::text[]) AND resource <> '#ownership'
    UNION ALL
    SELECT resource, epoch FROM fencing.lock WHERE resource ~ ANY ($1::text[]) AND (epoch, value) > (0, 0)
) AS n

-- name: holders
-- The holders of leases whose locks have names of these forms.
SELECT resource, holder FROM fencing.lease
WHERE resource ~ ANY ($1::text[]) AND expires_at > clock_timestamp() ORDER BY 1, 2

-- name: pending
-- The intents of a bucket.
SELECT i AS intent FROM fencing.intent AS i WHERE i.bucket = $1 ORDER BY i.key

-- name: remembered_keys
-- The keys of a bucket that anything is remembered of, with their resources.
SELECT resource, key FROM fencing.object WHERE bucket = $1
UNION SELECT resource, key FROM fencing.tombstone WHERE bucket = $1
UNION SELECT resource, key FROM fencing.forbidden WHERE bucket = $1
UNION SELECT resource, key FROM fencing.spent WHERE bucket = $1
UNION SELECT resource, key FROM fencing.upload WHERE bucket = $1

-- name: names_below
-- The names of fences and locks that begin so.
SELECT resource FROM fencing.fence
WHERE starts_with(resource, $1) AND resource >= $1 AND resource <> '#ownership'
UNION SELECT resource FROM fencing.lock WHERE starts_with(resource, $1) AND resource >= $1

-- name: move_objects
-- Forget what is remembered of renamed keys. It is a cache.
DELETE FROM fencing.object AS o USING unnest($2::text[], $3::text[], $4::text[]) AS m (key, old, new)
WHERE o.bucket = $1 AND o.key = m.key AND o.resource IN (m.old, m.new)

-- name: move_forbidden
-- The forbidden ETags of renamed keys stay forbidden.
WITH moved AS (
    DELETE FROM fencing.forbidden AS o USING unnest($2::text[], $3::text[], $4::text[]) AS m (key, old, new)
    WHERE o.bucket = $1 AND o.key = m.key AND o.resource = m.old
    RETURNING m.new, o.bucket, o.key, o.etag, o.dead_at
)
INSERT INTO fencing.forbidden (resource, bucket, key, etag, dead_at) SELECT * FROM moved
ON CONFLICT (resource, bucket, key, etag)
DO UPDATE SET dead_at = greatest(forbidden.dead_at, excluded.dead_at)

-- name: move_spent
-- The spent conditions of renamed keys stay spent.
WITH moved AS (
    DELETE FROM fencing.spent AS o USING unnest($2::text[], $3::text[], $4::text[]) AS m (key, old, new)
    WHERE o.bucket = $1 AND o.key = m.key AND o.resource = m.old
    RETURNING m.new, o.bucket, o.key, o.etag, o.epoch, o.value, o.dead_at
)
INSERT INTO fencing.spent (resource, bucket, key, etag, epoch, value, dead_at) SELECT * FROM moved
ON CONFLICT (resource, bucket, key, etag) DO UPDATE SET
    dead_at = greatest(spent.dead_at, excluded.dead_at),
    epoch = least(spent.epoch, excluded.epoch), value = least(spent.value, excluded.value)

-- name: move_tombstones
-- The tombstones of renamed keys stay listed.
WITH moved AS (
    DELETE FROM fencing.tombstone AS o USING unnest($2::text[], $3::text[], $4::text[]) AS m (key, old, new)
    WHERE o.bucket = $1 AND o.key = m.key AND o.resource = m.old
    RETURNING m.new, o.bucket, o.key, o.at
)
INSERT INTO fencing.tombstone (resource, bucket, key, at) SELECT * FROM moved
ON CONFLICT (resource, bucket, key) DO NOTHING

-- name: move_uploads
-- The uploads of renamed keys stay open.
UPDATE fencing.upload AS o SET resource = m.new
FROM unnest($2::text[], $3::text[], $4::text[]) AS m (key, old, new)
WHERE o.bucket = $1 AND o.key = m.key AND o.resource = m.old

-- name: source
-- The fences and issued tokens of old names, each with its new name: a part of the two statements that follow.
WITH mapping AS MATERIALIZED (SELECT old, new FROM ({mapping}) AS m WHERE new IS NOT NULL),
source AS (
    SELECT m.old, m.new, f.epoch, f.value, f.holder, f.caller, f.raised_at, f.write_id, 0 AS rank
    FROM mapping AS m JOIN fencing.fence AS f ON f.resource = m.old COLLATE "C"
    UNION ALL
    -- A token that was issued may be used at any moment. The next lock has to begin above it.
    SELECT m.old, m.new, l.epoch, l.value, NULL, NULL, clock_timestamp(), NULL, 1
    FROM mapping AS m JOIN fencing.lock AS l ON l.resource = m.old COLLATE "C" WHERE (l.epoch, l.value) > (0, 0)
)

-- name: count
-- The effect of carrying fences over a mapping from old names to new ones.
{source}
SELECT count(DISTINCT old) AS carried, coalesce(max(epoch), 0) AS epoch, (
        SELECT count(*) FROM (
            SELECT FROM source WHERE octet_length(new) <= 512 GROUP BY new HAVING min(old) <> max(old)) AS c
    ) AS collisions, count(DISTINCT old) FILTER (WHERE octet_length(new) > 512) AS too_long
FROM source

-- name: carry
-- Give each new name the highest fence of its old names.
{source}
INSERT INTO fencing.fence (resource, epoch, value, holder, caller, raised_at, write_id)
SELECT DISTINCT ON (s.new) s.new, s.epoch, s.value,
    -- Holders of two locks had the same token. Neither is a duplicate of the other.
    CASE WHEN s.alone THEN s.holder END, s.caller, s.raised_at, CASE WHEN s.alone THEN s.write_id END
FROM (SELECT *, min(old) OVER w = max(old) OVER w AS alone FROM source WINDOW w AS (PARTITION BY new)) AS s
WHERE s.new <> s.old AND octet_length(s.new) <= 512
ORDER BY s.new, s.epoch DESC, s.value DESC, s.rank
ON CONFLICT (resource) DO UPDATE SET epoch = excluded.epoch, value = excluded.value, holder = excluded.holder,
    caller = excluded.caller, raised_at = excluded.raised_at, write_id = excluded.write_id
WHERE (excluded.epoch, excluded.value) > (fence.epoch, fence.value)
RETURNING resource, epoch, value

-- name: carry_to_a_new_epoch
-- Let each new name begin in a new epoch.
WITH mapping AS MATERIALIZED ({mapping})
INSERT INTO fencing.fence (resource, epoch, value)
SELECT DISTINCT m.new, $1::integer, 0 FROM mapping AS m WHERE octet_length(m.new) <= 512
ON CONFLICT (resource) DO UPDATE SET epoch = excluded.epoch, value = excluded.value, holder = NULL, caller = NULL,
    raised_at = clock_timestamp(), write_id = NULL
WHERE (excluded.epoch, excluded.value) > (fence.epoch, fence.value)
RETURNING resource, epoch, value
