-- name: set_zone
-- For the rest of the transaction, times without a zone are meant in this one, and times are shown in it.
SELECT set_config('TimeZone', $1::text, true)

-- name: check_constraints
-- Deferred constraints are checked now: a transaction that is going to be rolled back would never check them.
SET CONSTRAINTS ALL IMMEDIATE

-- name: read_only
-- The transaction writes nothing, whatever is called in it.
SET TRANSACTION READ ONLY

-- name: answer
-- What code inside the database has said about the answer in this transaction. Of a former one an empty text is left.
SELECT current_setting('response.headers', true) AS headers, current_setting('response.status', true) AS status

-- name: zones
-- The time zones the server knows by name.
SELECT name FROM pg_timezone_names

-- name: pin_again
-- What a session is pinned to when it is opened, should code in this transaction have changed it, to its end or beyond:
-- names of resources are made in these settings, and acknowledged commits rest on them.
RESET ALL;
RESET ROLE;
SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') IN ('off', 'local')
