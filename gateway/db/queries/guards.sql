-- name: session
-- Return the session's role as the triggers see it, and whether it could switch them off.
SELECT session_user::text AS role, (SELECT rolsuper FROM pg_roles WHERE rolname = session_user) AS superuser

-- name: role
-- A role by its name.
SELECT rolname::text AS role, rolsuper AS superuser FROM pg_roles WHERE rolname = $1::text

-- name: relation
-- One table: whose it is, what it consists of, who may write it, which guard function is its own alone.
SELECT
    pg_get_userbyid(c.relowner)::text AS owner,
    c.relispartition AS is_partition,
    c.relkind <> 'p' AND EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhparent = c.oid) AS has_heirs,
    c.relkind <> 'p' AND NOT EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhrelid = c.oid) AS stands_alone,
    -- The table first, then its partitions at every level.
    ARRAY(
        SELECT format('%I.%I', m.nspname, r.relname)
        FROM (SELECT c.oid AS relid, 0 AS level UNION SELECT p.relid, p.level FROM pg_partition_tree(c.oid) AS p) AS tree
        JOIN pg_class AS r ON r.oid = tree.relid
        JOIN pg_namespace AS m ON m.oid = r.relnamespace
        ORDER BY tree.level, 1
    ) AS relations,
    ARRAY(
        SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END
        FROM aclexplode(c.relacl) AS a
        WHERE a.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE') AND a.grantee <> c.relowner
        ORDER BY 1
    ) AS writers,
    ARRAY(
        SELECT p.proname::text FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
        WHERE t.tgrelid = c.oid AND t.tgname = 'fencing_guard_row' AND p.pronamespace = 'fencing'::regnamespace
          AND NOT EXISTS (
              SELECT FROM pg_trigger AS o WHERE o.tgfoid = p.oid AND o.tgrelid <> c.oid AND o.tgparentid = 0)
    ) AS functions,
    EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = c.oid AND starts_with(t.tgname, 'fencing_guard_')) AS guarded,
    -- Triggers do not see the values of these.
    ARRAY(
        SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attgenerated = 'v' AND NOT a.attisdropped
    ) AS virtual,
    -- The functions behind the triggers run with the rights of the role that installs them.
    has_table_privilege('fencing.fence', 'SELECT') AND has_table_privilege('fencing.fence', 'UPDATE')
        AND has_table_privilege('fencing.intent', 'SELECT') AND has_table_privilege('fencing.intake', 'SELECT')
        AND has_table_privilege('fencing.intake', 'INSERT') AND has_table_privilege('fencing.guarded', 'INSERT')
        AND has_table_privilege('fencing.stamp', 'INSERT') AND has_table_privilege('fencing.stamp', 'UPDATE') AS able,
    -- Null without a primary key.
    (
        SELECT bool_and(b.typnamespace = 'pg_catalog'::regnamespace)
        FROM pg_index AS i CROSS JOIN unnest(i.indkey::smallint[]) AS k (number)
        JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
        JOIN pg_type AS t ON t.oid = a.atttypid
        JOIN pg_type AS b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
        WHERE i.indrelid = c.oid AND i.indisprimary
    ) AS watchable
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1::text AND c.relname = $2::text

-- name: installed
-- Return every guard on tables of these schemas, with its function and the arguments of its triggers. Return which
-- triggers are missing or switched off. They belong on the table, its partitions, and tables that inherit from it.
SELECT
    n.nspname::text AS schema, c.relname::text AS "table", p.proname::text AS function, p.prosrc AS body,
    t.tgargs AS arguments, t.tgoldtable IS NOT NULL AS by_statement,
    ARRAY(
        SELECT format('%s on %s', wanted.name, tree.relid::regclass)
        FROM (
            SELECT c.oid AS relid
            UNION SELECT relid FROM pg_partition_tree(c.oid)
            UNION SELECT i.inhrelid FROM pg_inherits AS i WHERE i.inhparent = c.oid AND c.relkind <> 'p'
        ) AS tree
        CROSS JOIN unnest(fencing.guard_triggers_v1(c.oid)) AS wanted (name)
        WHERE NOT EXISTS (
            SELECT FROM pg_trigger AS g
            WHERE g.tgrelid = tree.relid AND g.tgname = wanted.name AND g.tgargs = t.tgargs AND g.tgenabled IN ('O', 'A'))
        ORDER BY 1
    ) AS missing
FROM pg_trigger AS t
JOIN pg_class AS c ON c.oid = t.tgrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_proc AS p ON p.oid = t.tgfoid
WHERE t.tgname = 'fencing_guard_row' AND t.tgparentid = 0 AND n.nspname = ANY ($1::text[])
ORDER BY 1, 2

-- name: relations
-- The tables that carry stamps, partitions by themselves.
SELECT w.relation::text AS relation FROM fencing.watch AS w
JOIN pg_class AS c ON c.oid = w.relation
WHERE has_table_privilege((SELECT o.relowner FROM pg_class AS o WHERE o.oid = 'fencing.stamp'::regclass), c.oid, 'SELECT')
ORDER BY 1

-- name: forget_stamps
-- The stamps of these tables are to be taken anew.
UPDATE fencing.watch AS w SET shape = NULL, passing = NULL WHERE w.target = $1::text RETURNING w.relation::text AS relation

-- name: step
-- One stretch of a pass over a watched table.
SELECT relation::text AS relation, passed, to_jsonb(findings) AS findings
FROM fencing.watch_step_v1($1::text::regclass, make_interval(secs => $2), $3, $4)

-- name: look
-- Which guards have got something missing or switched off since the last look.
SELECT reason, resource, target, found_by, rows FROM fencing.look_at_guards_v1()

-- name: refusals
-- Put on record what guards have refused since the last look.
SELECT id, at, count, resource, reason, epoch, value, holder, caller, target, client, fence_epoch, fence_value, fence_holder,
    fence_caller, fence_raised_at
FROM fencing.record_refusals_v2($1)
