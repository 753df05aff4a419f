-- name: fenced
-- The given tables, with their partitions and heirs, and the tables of the fences; quoted. Guarded ones are marked, and
-- so are those of the fences: nothing guards them.
WITH RECURSIVE tree AS (
    SELECT c.oid, c.oid AS root FROM pg_class AS c WHERE c.oid = ANY ($1::text[]::regclass[]::oid[])
    UNION
    SELECT i.inhrelid, t.root FROM tree AS t JOIN pg_inherits AS i ON i.inhparent = t.oid
)
SELECT DISTINCT format('%I.%I', n.nspname, c.relname) AS relation, t.root = ANY ($2::text[]::regclass[]::oid[]) AS guarded
FROM tree AS t JOIN pg_class AS c ON c.oid = t.oid JOIN pg_namespace AS n ON n.oid = c.relnamespace
UNION ALL
SELECT format('fencing.%I', c.relname), false
FROM pg_class AS c
WHERE c.relnamespace = 'fencing'::regnamespace AND c.relname IN ('fence', 'intent', 'forbidden', 'lock', 'table_naming')
ORDER BY 1

-- name: of_server
-- Login roles that could write any table, or could get that right by themselves. Given: trusted roles, and how one role
-- may act as another.
WITH person AS (
    SELECT oid, rolname, rolsuper, rolcreaterole FROM pg_roles
    WHERE rolcanlogin AND rolname <> current_user AND rolname <> ALL ($1::text[])
)
SELECT 'superuser' AS way, p.rolname::text AS who, r.rolname::text AS through,
    CASE
        WHEN p.oid = r.oid AND r.oid = 10 THEN ''
        WHEN p.oid = r.oid THEN format('ALTER ROLE %I NOSUPERUSER', p.rolname)
        ELSE format('REVOKE %I FROM %I', r.rolname, p.rolname)
    END AS fix
FROM person AS p JOIN pg_roles AS r ON r.rolsuper AND (p.oid = r.oid OR (NOT p.rolsuper AND pg_has_role(p.oid, r.oid, $2)))
UNION ALL
SELECT CASE r.rolname WHEN 'pg_write_all_data' THEN 'all-data' ELSE 'server-files' END, p.rolname, r.rolname,
    format('REVOKE %I FROM %I', r.rolname, p.rolname)
FROM person AS p
JOIN pg_roles AS r ON r.rolname IN ('pg_write_all_data', 'pg_execute_server_program', 'pg_write_server_files')
WHERE NOT p.rolsuper AND pg_has_role(p.oid, r.oid, $2)
UNION ALL
SELECT 'create-role', rolname, rolname, format('ALTER ROLE %I NOCREATEROLE', rolname)
FROM person WHERE rolcreaterole AND NOT rolsuper AND current_setting('server_version_num')::int < 160000
UNION ALL
SELECT 'gateway', p.rolname, current_user, format('REVOKE %I FROM %I', current_user, p.rolname)
FROM person AS p WHERE NOT p.rolsuper AND pg_has_role(p.oid, (SELECT oid FROM pg_roles WHERE rolname = current_user), $2)
ORDER BY 1, 2, 3

-- name: sessions
-- Sessions with this database that are not those of gateways, by role and program. Given: tables, and trusted roles.
SELECT a.usename::text AS who, coalesce(a.application_name, '') AS application, a.usename = current_user AS own,
    count(*)::int AS sessions,
    count(*) FILTER (WHERE EXISTS (
        SELECT FROM pg_locks AS l
        WHERE l.pid = a.pid AND l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.database = a.datid
          AND l.relation = ANY ($1::text[]::regclass[]::oid[])
    ))::int AS writing
FROM pg_stat_activity AS a
WHERE a.datname = current_database() AND a.usename IS NOT NULL AND a.usename <> ALL ($2::text[])
  AND coalesce(a.application_name, '') NOT LIKE 'fencing-gateway%'
GROUP BY 1, 2, 3
ORDER BY 1, 2

-- name: on_tables
-- The ways in which a login role could write one of the given tables without the gateway. Given: the tables, trusted
-- roles, and how one role may act as another. Roles that could write any table are left out.
WITH RECURSIVE
fenced AS (
    SELECT c.oid, c.relname, c.relowner, c.relacl, n.nspname, n.nspowner, format('%I.%I', n.nspname, c.relname) AS relation
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.oid = ANY ($1::text[]::regclass[]::oid[])
),
acting AS (
    -- Each login role, with each role that it may act as.
    SELECT p.rolname::text AS person, r.oid AS role, r.rolname::text AS through
    FROM pg_roles AS p JOIN pg_roles AS r ON pg_has_role(p.oid, r.oid, $3)
    WHERE p.rolcanlogin AND NOT p.rolsuper AND p.rolname <> current_user AND p.rolname <> ALL ($2::text[])
      AND NOT r.rolsuper AND r.rolname <> current_user AND r.rolname <> ALL ($2::text[])
    UNION ALL
    SELECT 'PUBLIC', 0, 'PUBLIC'
),
granted AS (
    SELECT c.oid AS relation, g.grantee, g.privilege_type AS privilege
    FROM pg_class AS c CROSS JOIN aclexplode(c.relacl) AS g
    WHERE c.relkind IN ('r', 'p', 'v', 'f') AND g.grantee <> c.relowner
    UNION
    SELECT c.oid, g.grantee, g.privilege_type
    FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attacl IS NOT NULL
    CROSS JOIN aclexplode(a.attacl) AS g
    WHERE c.relkind IN ('r', 'p', 'v', 'f') AND g.grantee <> c.relowner
),
writer AS (
    -- The login roles that could write a relation, and by which privileges of which role.
    SELECT g.relation, a.person, a.through, string_agg(DISTINCT g.privilege, ', ' ORDER BY g.privilege) AS privileges
    FROM granted AS g JOIN acting AS a ON a.role = g.grantee
    WHERE g.privilege IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER')
       -- Up to PostgreSQL 17, a cascade runs the triggers of the other table with the rights of the writer.
       OR (g.privilege = 'REFERENCES' AND current_setting('server_version_num')::int < 180000)
    GROUP BY 1, 2, 3
    UNION ALL
    SELECT c.oid, a.person, a.through, 'OWNERSHIP'
    FROM pg_class AS c JOIN acting AS a ON a.role = c.relowner WHERE c.relkind IN ('r', 'p', 'v', 'f')
),
behind AS (
    -- The relations whose rules write a table, also through other views. Each is tried with its owner's rights.
    SELECT f.oid AS root, f.relation, f.oid AS written FROM fenced AS f
    UNION
    SELECT b.root, b.relation, v.oid
    FROM behind AS b
    JOIN pg_depend AS d
        ON d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = b.written
    JOIN pg_rewrite AS r ON r.oid = d.objid AND r.ev_class <> b.written
    JOIN pg_class AS v ON v.oid = r.ev_class
    WHERE (r.ev_type <> '1' OR pg_relation_is_updatable(v.oid, false) & 28 <> 0)
      AND NOT coalesce((SELECT option_value::boolean FROM pg_options_to_table(v.reloptions)
          WHERE option_name = 'security_invoker'), false)
      AND has_table_privilege(v.relowner, b.written, 'INSERT, UPDATE, DELETE')
),
above AS (
    -- The tables whose writes change rows of a table because it is a part of them. No right on the part is needed.
    SELECT f.relation, i.inhparent AS oid FROM fenced AS f JOIN pg_inherits AS i ON i.inhrelid = f.oid
    UNION
    SELECT a.relation, i.inhparent FROM above AS a JOIN pg_inherits AS i ON i.inhrelid = a.oid
),
upstream AS (
    -- The tables whose rows a table follows by foreign keys, also through other tables.
    SELECT f.oid AS root, f.relation, f.oid AS changed FROM fenced AS f
    UNION
    SELECT u.root, u.relation, k.confrelid
    FROM upstream AS u
    JOIN pg_constraint AS k ON k.conrelid = u.changed AND k.contype = 'f'
        AND (k.confdeltype IN ('c', 'n', 'd') OR k.confupdtype IN ('c', 'n', 'd'))
),
code AS (
    -- The functions that a write of the table runs, with the rights of its writer.
    SELECT f.relation, t.tgfoid AS function FROM fenced AS f JOIN pg_trigger AS t ON t.tgrelid = f.oid AND NOT t.tgisinternal
    UNION
    SELECT f.relation, d.refobjid
    FROM fenced AS f
    JOIN (
        SELECT 'pg_attrdef'::regclass AS kind, oid, adrelid AS relid FROM pg_attrdef
        UNION ALL SELECT 'pg_constraint'::regclass, oid, conrelid FROM pg_constraint
        UNION ALL SELECT 'pg_policy'::regclass, oid, polrelid FROM pg_policy
        UNION ALL SELECT 'pg_class'::regclass, indexrelid, indrelid FROM pg_index
        UNION ALL SELECT 'pg_rewrite'::regclass, oid, ev_class FROM pg_rewrite
    ) AS part ON part.relid = f.oid
    JOIN pg_depend AS d ON d.classid = part.kind AND d.objid = part.oid AND d.refclassid = 'pg_proc'::regclass
    UNION
    SELECT f.relation, p.oid
    FROM fenced AS f JOIN pg_proc AS p ON p.pronamespace = 'fencing'::regnamespace
    WHERE f.relation = 'fencing.fence'
),
definer AS (
    -- Functions that write a table with the rights of their owner, as far as their text or their dependencies say.
    SELECT f.oid AS relation, f.relation AS name, p.oid AS function, p.oid::regprocedure::text AS signature,
        p.proacl, p.proowner, p.prorettype
    FROM fenced AS f
    JOIN pg_proc AS p ON p.prosecdef AND p.pronamespace <> ALL (ARRAY['pg_catalog', 'fencing']::regnamespace[])
    WHERE has_table_privilege(p.proowner, f.oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
      AND (
          p.prosrc ~ ('\m' || regexp_replace(f.relname, '([^A-Za-z0-9_])', '\\\1', 'g') || '\M')
          OR EXISTS (
              SELECT FROM pg_depend AS d
              WHERE d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                AND d.refclassid = 'pg_class'::regclass AND d.refobjid = f.oid)
      )
)
SELECT f.relation, 'owner' AS way, a.person AS who, a.through, '' AS detail,
    format(E'GRANT USAGE ON SCHEMA %I TO fencing_tables;\nALTER TABLE %s OWNER TO fencing_tables', f.nspname, f.relation)
        AS fix
FROM fenced AS f JOIN acting AS a ON a.role = f.relowner
UNION ALL
SELECT f.relation, 'schema', a.person, a.through, f.nspname,
    format('ALTER SCHEMA %I OWNER TO fencing_tables', f.nspname)
FROM fenced AS f JOIN acting AS a ON a.role = f.nspowner
UNION ALL
SELECT c.relation, CASE WHEN p.pronamespace = 'fencing'::regnamespace THEN 'owner' ELSE 'code' END, a.person, a.through,
    CASE WHEN p.pronamespace <> 'fencing'::regnamespace THEN p.oid::regprocedure::text ELSE '' END,
    format('ALTER ROUTINE %s OWNER TO fencing_tables', p.oid::regprocedure)
FROM code AS c
JOIN pg_proc AS p ON p.oid = c.function AND p.pronamespace <> 'pg_catalog'::regnamespace
JOIN acting AS a ON a.role = p.proowner
UNION ALL
SELECT f.relation, 'grant', w.person, w.through, w.privileges,
    -- The gateway may have the same privileges from the same role.
    coalesce((
        SELECT format(E'GRANT %s ON %s TO %I;\n', string_agg(p, ', '), f.relation, current_user)
        FROM regexp_split_to_table(w.privileges, ', ') AS p
        WHERE (w.through = 'PUBLIC' OR pg_has_role(w.through, 'MEMBER')) AND p IN ('INSERT', 'UPDATE', 'DELETE')
          AND has_table_privilege(f.oid, p)
        HAVING count(*) > 0
    ), '') || format('REVOKE %s ON %s FROM %s CASCADE', w.privileges, f.relation,
        CASE w.through WHEN 'PUBLIC' THEN 'PUBLIC' ELSE quote_ident(w.through) END)
FROM fenced AS f JOIN writer AS w ON w.relation = f.oid
WHERE w.privileges <> 'OWNERSHIP'
UNION ALL
SELECT d.name, 'function', a.person, a.through, d.signature,
    format('REVOKE EXECUTE ON FUNCTION %s FROM %s CASCADE', d.signature,
        CASE a.through WHEN 'PUBLIC' THEN 'PUBLIC' ELSE quote_ident(a.through) END)
FROM definer AS d
CROSS JOIN aclexplode(coalesce(d.proacl, acldefault('f', d.proowner))) AS g
JOIN acting AS a ON a.role = g.grantee
WHERE d.prorettype <> 'trigger'::regtype AND g.grantee <> d.proowner
UNION ALL
SELECT d.name, 'function', a.person, a.through, d.signature, format('ALTER FUNCTION %s SECURITY INVOKER', d.signature)
FROM definer AS d JOIN acting AS a ON a.role = d.proowner
WHERE d.prorettype <> 'trigger'::regtype
UNION ALL
SELECT d.name, 'trigger', w.person, w.through, t.tgrelid::regclass::text,
    format('ALTER FUNCTION %s SECURITY INVOKER', d.signature)
FROM definer AS d
JOIN pg_trigger AS t ON t.tgfoid = d.function AND NOT t.tgisinternal AND t.tgenabled <> 'D'
JOIN writer AS w ON w.relation = t.tgrelid
WHERE t.tgrelid NOT IN (SELECT oid FROM fenced)
UNION ALL
SELECT b.relation, 'view', w.person, w.through, b.written::regclass::text,
    CASE w.privileges
        WHEN 'OWNERSHIP' THEN format('ALTER TABLE %s OWNER TO fencing_tables', b.written::regclass)
        ELSE format('REVOKE %s ON %s FROM %s CASCADE', w.privileges, b.written::regclass,
            CASE w.through WHEN 'PUBLIC' THEN 'PUBLIC' ELSE quote_ident(w.through) END)
    END
FROM behind AS b JOIN writer AS w ON w.relation = b.written
WHERE b.written NOT IN (SELECT oid FROM fenced)
UNION ALL
SELECT b.relation, 'part', w.person, w.through, b.oid::regclass::text,
    CASE w.privileges
        WHEN 'OWNERSHIP' THEN format('ALTER TABLE %s OWNER TO fencing_tables', b.oid::regclass)
        ELSE format('REVOKE %s ON %s FROM %s CASCADE', w.privileges, b.oid::regclass,
            CASE w.through WHEN 'PUBLIC' THEN 'PUBLIC' ELSE quote_ident(w.through) END)
    END
FROM above AS b JOIN writer AS w ON w.relation = b.oid
WHERE b.oid NOT IN (SELECT oid FROM fenced)
UNION ALL
SELECT u.relation, 'cascade', w.person, w.through, u.changed::regclass::text,
    CASE w.privileges
        WHEN 'OWNERSHIP' THEN format('ALTER TABLE %s OWNER TO fencing_tables', u.changed::regclass)
        ELSE format('REVOKE %s ON %s FROM %s CASCADE', w.privileges, u.changed::regclass,
            CASE w.through WHEN 'PUBLIC' THEN 'PUBLIC' ELSE quote_ident(w.through) END)
    END
FROM upstream AS u JOIN writer AS w ON w.relation = u.changed
WHERE u.changed NOT IN (SELECT oid FROM fenced)
UNION ALL
SELECT f.relation, 'subscription', s.subname, s.subname, s.subname, format('ALTER SUBSCRIPTION %I DISABLE', s.subname)
FROM fenced AS f
JOIN pg_subscription_rel AS sr ON sr.srrelid = f.oid
JOIN pg_subscription AS s ON s.oid = sr.srsubid AND s.subenabled
ORDER BY 1, 2, 3, 4, 5

-- name: on_later_tables
-- Default privileges that let others write tables that are created later in these schemas.
SELECT coalesce(format('schema %s', n.nspname), 'every schema') AS place, pg_get_userbyid(d.defaclrole)::text AS creator,
    CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(g.grantee)::text END AS who,
    string_agg(g.privilege_type, ', ' ORDER BY g.privilege_type) AS privileges,
    format('ALTER DEFAULT PRIVILEGES FOR ROLE %I%s REVOKE %s ON TABLES FROM %s', pg_get_userbyid(d.defaclrole),
        ' IN SCHEMA ' || quote_ident(n.nspname), string_agg(g.privilege_type, ', ' ORDER BY g.privilege_type),
        CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END) AS fix
FROM pg_default_acl AS d
LEFT JOIN pg_namespace AS n ON n.oid = d.defaclnamespace
CROSS JOIN aclexplode(d.defaclacl) AS g
WHERE d.defaclobjtype = 'r' AND (n.oid IS NULL OR n.nspname = ANY ($1::text[]))
  AND g.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER')
  AND g.grantee <> d.defaclrole AND pg_get_userbyid(g.grantee) <> current_user
  AND pg_get_userbyid(g.grantee) <> ALL ($2::text[])
GROUP BY d.defaclrole, n.nspname, g.grantee
ORDER BY 1, 2, 3

-- name: past_triggers
-- Login roles that may switch triggers off for their session, and so go past a guard.
SELECT p.rolname::text AS who,
    format('REVOKE SET ON PARAMETER session_replication_role FROM %I', p.rolname) AS fix
FROM pg_roles AS p
WHERE p.rolcanlogin AND NOT p.rolsuper AND p.rolname <> current_user AND p.rolname <> ALL ($1::text[])
  AND {has_parameter_privilege}(p.oid, 'session_replication_role', 'SET')
ORDER BY 1
