-- name: set_zone
-- For the rest of the transaction, times without a zone are meant in this one, and times are shown in it.
SELECT set_config('TimeZone', $1::text, true)

-- name: declare
-- For the rest of the transaction, guards take these claims for held (fencing.declared_v1).
SELECT set_config('fencing.held', $1::text, true)

-- name: check_constraints
-- Deferred constraints are checked now: a transaction that is going to be rolled back would never check them. Then no
-- code may have written on another node.
SET CONSTRAINTS ALL IMMEDIATE; SELECT fencing.check_one_node_v1()

-- name: read_only
-- The transaction writes nothing, whatever is called in it.
SET TRANSACTION READ ONLY

-- name: zones
-- The time zones the server knows by name.
SELECT name FROM pg_timezone_names

-- name: take_role
-- For the rest of the transaction, statements run with the rights of another role, and policies see these settings.
-- Return whether that role may call what a fenced statement calls, and what decides which policies bind it.
SELECT has_schema_privilege($1::text, 'fencing', 'USAGE') AS may, ({rights}) AS rights,
    count(set_config(u.name, u.value, true))
FROM unnest($2::text[], $3::text[]) AS u (name, value)

-- name: leave_role
RESET ROLE
