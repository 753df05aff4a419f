-- Writes to tables: what each statement asks about its table. These questions are functions. Inside the statement
-- they would be plans of their own, which PostgreSQL sets up for each execution even where they are not asked. That
-- was half of what a write cost in a batch. docs/decisions/004 says why they are asked.

-- Undo a statement whose touched rows do not belong to the claimed resource.
-- Takes the name that was touched. Raises FN422 with that name as the message.
CREATE FUNCTION fencing.refuse_mismatch_v1(touched text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'FN422', MESSAGE = coalesce(touched, '');
END
$function$;

-- Tell whether Citus manages a table. It may write rows of such a table on another node than the fence, and by another
-- transaction there. The two become visible one after the other (docs/decisions/100-citus-tables-are-refused.md).
-- The shards on a node count as well: Citus moves them, and copies of a reference table must stay alike.
-- Returns false where there is no Citus. VOLATILE callers pass their fresh snapshot on.
CREATE FUNCTION fencing.is_distributed_v1(p_table oid) RETURNS boolean LANGUAGE plpgsql STABLE AS $function$
DECLARE
    distributed boolean;
BEGIN
    IF pg_catalog.current_setting('citus.shard_count', true) IS NULL
        OR pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NULL
    THEN
        RETURN false;
    END IF;
    EXECUTE 'SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_partition AS d WHERE d.logicalrelid = $1)
        OR pg_catalog.relation_is_a_known_shard($1)'
    INTO distributed USING p_table;
    RETURN distributed;
END
$function$;

-- Check that a transaction has used no other node. Code in the database may have written to tables that Citus manages.
-- Raises 0A000. Reads of such tables count, because Citus does not say which of them were writes.
CREATE FUNCTION fencing.check_one_node_v1() RETURNS void LANGUAGE plpgsql VOLATILE AS $function$
DECLARE
    elsewhere boolean;
BEGIN
    IF pg_catalog.current_setting('citus.shard_count', true) IS NULL
        OR pg_catalog.to_regprocedure('pg_catalog.get_current_transaction_id()') IS NULL
    THEN
        RETURN;
    END IF;
    EXECUTE 'SELECT t.transaction_number > 0 FROM pg_catalog.get_current_transaction_id() AS t' INTO elsewhere;
    IF elsewhere THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = 'Code in the database has used a table that Citus manages, in the transaction of a fenced write.',
            DETAIL = 'Fence and rows would commit on several nodes, one after the other. Nothing was written.',
            HINT = 'Let triggers and functions use tables of this node only.';
    END IF;
END
$function$;

-- Check that a table is what the statement was planned with. A column's row in the catalog gets another xmin with
-- each change. A key lives and dies with its index, and any property of an index that is gone is null.
-- Takes the table, its name and kind, which features the plan has allowed for, the xmin of its columns and its key. The
-- last argument tells whether Citus manages it.
-- Returns true, or raises 42P01, which undoes what triggers have done by then.
-- VOLATILE: it takes a fresh snapshot, with the lock of the table in hand.
CREATE FUNCTION fencing.check_unchanged_v1(
    p_table oid, p_name text, p_kind "char", p_rules boolean, p_children boolean, p_row_security boolean,
    p_columns xid[], p_keyed boolean, p_key oid, p_statement_triggers boolean, p_row_triggers boolean,
    p_distributed boolean
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_class AS c
        WHERE c.oid = p_table AND c.oid = pg_catalog.to_regclass(p_name) AND c.relkind = p_kind
          AND (p_row_security OR NOT c.relrowsecurity)
          AND (p_rules OR NOT c.relhasrules)
          AND (p_children OR NOT c.relhassubclass)
          -- Nothing else in the catalog changes when Citus takes a table over. Most servers have no such setting.
          AND (pg_catalog.current_setting('citus.shard_count', true) IS NULL
               OR fencing.is_distributed_v1(c.oid) = p_distributed)
          AND (NOT c.relhastriggers OR NOT EXISTS (
              SELECT FROM pg_catalog.pg_trigger AS g JOIN pg_catalog.pg_proc AS p ON p.oid = g.tgfoid
              WHERE g.tgrelid = p_table AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND g.tgtype & 28 <> 0
                AND ((NOT p_statement_triggers AND g.tgtype & 1 = 0)
                     OR (NOT p_row_triggers AND g.tgtype & 1 <> 0 AND g.tgtype & 66 <> 0))
                AND p.pronamespace <> 'fencing'::regnamespace
          ))
    ) AND ARRAY(
        SELECT a.xmin FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = p_table AND a.attnum > 0 ORDER BY a.attnum
    ) = p_columns
    AND (
        NOT p_keyed
        OR pg_catalog.pg_index_has_property(p_key, 'clusterable') IS NOT NULL
        OR p_key IS NULL
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = p_table AND i.indisprimary)
    ) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;

-- Check that the code of a table is that which the statement was planned with: its triggers, indexes, constraints and
-- defaults have the same versions. Returns true, or raises 42P01.
-- VOLATILE: it takes a fresh snapshot, with the lock of the table in hand.
CREATE FUNCTION fencing.check_version_v1(p_table oid, p_version text) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
    IF p_version = pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.concat_ws(';',
        (SELECT pg_catalog.string_agg(t.xmin::text, ',' ORDER BY t.oid) FROM pg_catalog.pg_trigger AS t WHERE t.tgrelid = p_table),
        (SELECT pg_catalog.string_agg(i.xmin::text, ',' ORDER BY i.indexrelid) FROM pg_catalog.pg_index AS i WHERE i.indrelid = p_table),
        (SELECT pg_catalog.string_agg(k.xmin::text, ',' ORDER BY k.oid) FROM pg_catalog.pg_constraint AS k WHERE k.conrelid = p_table),
        (SELECT pg_catalog.string_agg(d.xmin::text, ',' ORDER BY d.oid) FROM pg_catalog.pg_attrdef AS d WHERE d.adrelid = p_table)), 'UTF8')), 'hex')
    THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;

-- Check, for a read, that the name still means this table, and that the relation is still of this kind.
-- Returns true, or raises 42P01.
CREATE FUNCTION fencing.check_relation_v1(p_table oid, p_name text, p_kind "char", p_row_security boolean)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_class AS c
        WHERE c.oid = p_table AND c.oid = pg_catalog.to_regclass(p_name) AND c.relkind = p_kind
          AND (p_row_security OR NOT c.relrowsecurity)
    ) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;

-- Tell whether a write of a table may reach a foreign table, or one that Citus manages. Another transaction than the
-- fence's writes their rows. A foreign table can be a partition, a child, or what a view or a rule writes, at any depth. All that a view or a
-- rule refers to counts as reached, even where it is only read. Only the server can tell which of it is written.
CREATE FUNCTION fencing.reaches_foreign_v1(p_table oid) RETURNS boolean LANGUAGE sql STABLE AS $function$
    WITH RECURSIVE reached (oid) AS (
        SELECT p_table
        UNION
        SELECT next.oid
        FROM reached AS r CROSS JOIN LATERAL (
            SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = r.oid
            UNION ALL
            SELECT d.refobjid
            FROM pg_catalog.pg_rewrite AS w JOIN pg_catalog.pg_depend AS d ON d.objid = w.oid
            WHERE w.ev_class = r.oid AND d.classid = 'pg_catalog.pg_rewrite'::regclass
              AND d.refclassid = 'pg_catalog.pg_class'::regclass
        ) AS next (oid)
    )
    SELECT EXISTS (
        SELECT FROM reached AS r JOIN pg_catalog.pg_class AS c ON c.oid = r.oid
        WHERE c.relkind = 'f'
           OR (pg_catalog.current_setting('citus.shard_count', true) IS NOT NULL AND fencing.is_distributed_v1(c.oid))
    )
$function$;

-- Check that a table reaches foreign tables if and only if the plan says so. A partition can be attached at any time,
-- and writes of the parent go on meanwhile: so each such write asks again.
-- Returns true, or raises 42P01. VOLATILE: it sees each partition that the statement itself may see.
CREATE FUNCTION fencing.check_foreign_v1(p_table oid, p_reaches boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
    IF fencing.reaches_foreign_v1(p_table) = p_reaches THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;
