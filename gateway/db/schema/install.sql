-- The schema `fencing` as it is after all migrations, in an order that installs:
--     psql --set ON_ERROR_STOP=1 --single-transaction --file install.sql
--
-- These files are for readers, and for the test that compares them with what the migrations arrive at. `gateway migrate`
-- runs the migrations, and never these files. CONTRIBUTING.md says how to change the schema.
--
-- Alembic makes one more table, fencing.migration. Its one row is the revision.
--
-- Names of resources, buckets and keys are compared byte by byte, whatever the database's locale: COLLATE "C".
--
-- Functions carry a version in their names, because gateways of two versions run side by side during an upgrade. The
-- meaning of a released version never changes. `fencing.hold` has none: people's own code calls it.
--
-- Most functions are VOLATILE plpgsql for one reason: each statement inside takes a fresh snapshot. So it sees what a
-- predecessor committed while the function waited for a lock (docs/decisions/004).
CREATE SCHEMA IF NOT EXISTS fencing;
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
\ir webhooks.sql
\ir guard.sql
\ir watch.sql
\ir refusals.sql
\ir key_uses.sql
\ir roles.sql
\ir compatibility.sql
