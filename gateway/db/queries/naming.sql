-- name: tables
-- The naming of every table that has one.
SELECT name, naming::text AS naming, generation, change::text AS change, relation::oid::bigint AS relation
FROM fencing.table_naming ORDER BY name, 5

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
