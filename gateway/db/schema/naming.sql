-- Naming: what the rows of a table and the keys of a bucket are called. A fence protects a row only under the name that
-- all writers give it. So the naming in force is a fact of the database, and not of a gateway's configuration.

-- The naming of each fenced table. Never deleted: a table without one gets that of the first gateway that serves it.
-- A table that was renamed has a row for each of its names, and a name has a row for each table that bore it. All rows
-- of a name or of a relation have one naming.
CREATE TABLE fencing.table_naming (
    -- schema.table, as in the configuration.
    name text COLLATE "C" NOT NULL,
    -- It follows the table when that is renamed, and a dump restores it by its name.
    relation regclass NOT NULL,
    -- The literals of the template, and the columns between them: see gateway.fencing.naming.
    naming jsonb NOT NULL,
    -- Each change gives it another one. A write proves the one that it was planned with.
    generation uuid NOT NULL DEFAULT gen_random_uuid(),
    -- The next naming, while it is being applied. No write proves the generation of that time.
    change jsonb,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (relation, name)
);

-- The naming of each fenced bucket: the rules of its keys, in their order.
CREATE TABLE fencing.bucket_naming (
    name text COLLATE "C" PRIMARY KEY,
    naming jsonb NOT NULL,
    generation uuid NOT NULL DEFAULT gen_random_uuid(),
    change jsonb,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Check that the rows of a table are called as the statement was planned with. The statement has its lock of the table
-- by then. A change of the naming waits for that lock, and commits before the snapshot here or after the write.
-- Takes the table and the generation of its naming.
-- Returns true, or raises 42P01, which undoes the write.
-- VOLATILE: it takes a fresh snapshot, with the lock of the table in hand.
-- SECURITY DEFINER: the statement of a write may run under a role of its caller, which has no right on the naming.
CREATE FUNCTION fencing.check_table_naming_v1(p_relation oid, p_generation uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF EXISTS (
        SELECT FROM fencing.table_naming AS n WHERE n.relation = p_relation AND n.generation = p_generation
    ) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;

-- Check, for the announcement of an object write, that the keys of its bucket are called as the gateway believes. The
-- lock of the naming is held until the transaction ends. A change takes that lock alone, so each announcement is there
-- before it or is refused.
-- Takes the bucket and the generation of its naming. A null generation checks nothing: the write is only observed.
-- Returns true, or raises FN503, which undoes the announcement.
CREATE FUNCTION fencing.check_bucket_naming_v1(p_bucket text, p_generation uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF p_generation IS NULL OR EXISTS (
        SELECT FROM fencing.bucket_naming AS n WHERE n.name = p_bucket AND n.generation = p_generation
    ) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'FN503', MESSAGE = 'fencing.a_naming_that_has_changed';
END
$function$;
