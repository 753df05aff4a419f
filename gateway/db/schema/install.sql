-- The schema `fencing` as it is today, in an order that installs. `gateway migrate` runs these files where there is none,
-- and the migrations where there is an older one. This does the same as the former:
--     psql --set ON_ERROR_STOP=1 --single-transaction --file install.sql
-- CONTRIBUTING.md says how to change the schema.
--
-- Names of resources, buckets and keys are compared byte by byte, whatever the database's locale: COLLATE "C".
--
-- Functions carry a version in their names, because gateways of two versions run side by side during an upgrade. The
-- meaning of a released version never changes. `fencing.hold`, `acquire`, `renew` and `release` have none:
-- people's own code calls them.
--
-- Most functions are VOLATILE plpgsql for one reason: each statement inside takes a fresh snapshot. So it sees what a
-- predecessor committed while the function waited for a lock (docs/decisions/004).

-- IF NOT EXISTS needs the right to create schemas even if there is one.
DO $$ BEGIN
    IF to_regnamespace('fencing') IS NULL THEN
        CREATE SCHEMA fencing;
    END IF;
END $$;

-- The revision of the schema: the newest migration.
CREATE TABLE fencing.migration (version_num varchar(32) CONSTRAINT migration_pkc PRIMARY KEY);
INSERT INTO fencing.migration (version_num) VALUES ('r1004');

\ir fences.sql
\ir opening.sql
\ir ownership.sql
\ir claim.sql
\ir naming.sql
\ir intents.sql
\ir objects.sql
\ir tables.sql
\ir idempotency.sql
\ir record.sql
\ir chain.sql
\ir leases.sql
\ir lock_tokens.sql
\ir lock_queue.sql
\ir free_locks.sql
\ir webhooks.sql
\ir guard.sql
\ir watch.sql
\ir refusals.sql
\ir key_uses.sql
\ir roles.sql
\ir direct_locks.sql
\ir compatibility.sql
