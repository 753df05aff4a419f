-- name: install
-- Make the table of a journal in a second database. ``{journal}`` is its schema. Others that migrate wait.
DO $install$ BEGIN
    PERFORM pg_advisory_xact_lock(5461934);
    CREATE SCHEMA IF NOT EXISTS {journal};
    CREATE TABLE IF NOT EXISTS {journal}.object (
        name text COLLATE "C" PRIMARY KEY,
        content bytea NOT NULL,
        version uuid NOT NULL DEFAULT gen_random_uuid(),
        written_at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    COMMENT ON TABLE {journal}.object IS 'A journal of raised fences: docs/journal.md of the fencing gateway.';
END $install$

-- name: grants
-- Statements that let a role use the table.
SELECT format('GRANT USAGE ON SCHEMA {journal} TO %I', $1::text) AS statement
UNION ALL
SELECT format('GRANT SELECT, INSERT, UPDATE, DELETE ON {journal}.object TO %I', $1)

-- name: add
-- Write an object that must not exist.
INSERT INTO {journal}.object (name, content) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING name

-- name: replace
-- Replace an object that must have this version.
UPDATE {journal}.object SET content = $2, version = gen_random_uuid(), written_at = clock_timestamp()
WHERE name = $1 AND version = $3 RETURNING name

-- name: read
-- One object with its version.
SELECT content, version::text AS version FROM {journal}.object WHERE name = $1

-- name: names
-- The names between two bounds, in their order. An empty second bound is none.
SELECT name FROM {journal}.object WHERE name >= $1 AND ($2 = '' OR name < $2) ORDER BY name

-- name: remove
-- Remove an object.
DELETE FROM {journal}.object WHERE name = $1 RETURNING name

-- name: durability
-- Whether the commits of this server last.
SELECT pg_is_in_recovery() AS recovering, current_setting('fsync')::boolean AS fsync,
    current_setting('full_page_writes')::boolean AS full_page_writes
