-- name: missing
-- Return the rights that the role lacks on the fencing schema, for given tables with their privileges, and functions.
SELECT 'USAGE on the schema fencing' AS privilege
FROM pg_namespace WHERE nspname = 'fencing' AND NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
SELECT format('%s on fencing.%s', wanted.privilege, wanted.relation)
FROM unnest($1::text[], $2::text[]) AS wanted (relation, privilege)
JOIN pg_namespace AS n ON n.nspname = 'fencing'
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = wanted.relation
WHERE NOT has_table_privilege(c.oid, wanted.privilege)
UNION ALL
SELECT format('EXECUTE on fencing.%s', p.proname)
FROM pg_proc AS p
JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = 'fencing' AND (NOT p.prosecdef OR p.proname = ANY ($3::text[]))
  AND NOT has_function_privilege(p.oid, 'EXECUTE')

-- name: take_room
-- Take so many bytes on the disk of the fencing tables, until the transaction is rolled back.
INSERT INTO fencing.payload (entry, media_type, body, truncated) VALUES (gen_random_uuid(), 'none', $1, false)

-- name: missing_to_migrate
-- The right that this session lacks to migrate, and the owner who has it. The owner of the database installs the
-- schema, and the owner of the schema migrates it.
SELECT current_user::text AS role, format('CREATE on the database %s', d.datname) AS lacking,
    pg_get_userbyid(d.datdba)::text AS owner,
    format('GRANT CREATE ON DATABASE %I TO %I', d.datname, current_user) AS fix
FROM pg_database AS d
WHERE d.datname = current_database() AND to_regnamespace('fencing') IS NULL AND NOT has_database_privilege(d.oid, 'CREATE')
UNION ALL
SELECT DISTINCT current_user, 'ownership of the schema fencing', pg_get_userbyid(o.owner),
    format('GRANT %I TO %I', pg_get_userbyid(o.owner), current_user)
FROM (
    SELECT nspowner AS owner FROM pg_namespace WHERE nspname = 'fencing'
    UNION
    SELECT c.relowner FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = 'fencing' AND c.relkind IN ('r', 'p', 'v')
) AS o
WHERE NOT pg_has_role(o.owner, 'USAGE')
ORDER BY 3

-- name: alone
-- Wait for other sessions that migrate or grant.
SELECT pg_advisory_xact_lock($1)

-- name: owned
-- Tables of the schema that a role could do anything to.
SELECT FROM pg_class AS c
WHERE c.relnamespace = 'fencing'::regnamespace AND c.relkind IN ('r', 'p') AND pg_has_role($1::text, c.relowner, 'MEMBER')
LIMIT 1

-- name: grants
-- Statements that give a role what it needs and take the rest away, given the same and the role.
SELECT format('REVOKE ALL ON ALL TABLES IN SCHEMA fencing FROM %I', $4::text) AS statement
UNION ALL
SELECT format('GRANT USAGE ON SCHEMA fencing TO %I', $4)
UNION ALL
SELECT format('GRANT %s ON fencing.%I TO %I', string_agg(wanted.privilege, ', '), wanted.relation, $4)
FROM unnest($1::text[], $2::text[]) AS wanted (relation, privilege)
GROUP BY wanted.relation
UNION ALL
SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::regprocedure, $4)
FROM pg_proc AS p
WHERE p.pronamespace = 'fencing'::regnamespace AND (NOT p.prosecdef OR p.proname = ANY ($3::text[]))

-- name: excessive
-- Return the changes that the role could make to the record beside adding to it, as its owner or by its rights.
SELECT format('ownership of fencing.%s', c.relname) AS privilege
FROM pg_class AS c
WHERE c.oid = ANY (ARRAY['fencing.entry', 'fencing.intake', 'fencing.head']::regclass[])
  AND pg_has_role(c.relowner, 'MEMBER')
UNION ALL
SELECT format('%s on fencing.%s', wanted.privilege, c.relname)
FROM pg_class AS c
CROSS JOIN unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER']) AS wanted (privilege)
WHERE (
        c.oid = ANY (ARRAY['fencing.intake', 'fencing.head']::regclass[])
        OR c.oid IN (SELECT t.relid FROM pg_partition_tree('fencing.entry') AS t)
    )
  AND NOT pg_has_role(c.relowner, 'MEMBER')
  AND has_table_privilege(c.oid, wanted.privilege)
  AND (wanted.privilege <> 'INSERT' OR c.oid <> 'fencing.intake'::regclass)
ORDER BY 1

-- name: parameters
-- The types of the parameters of a prepared statement.
SELECT parameter_types::text[] AS kinds FROM pg_prepared_statements WHERE name = $1

-- name: server
-- Return facts of the server, and of a session of the gateway on it.
SELECT
    current_setting('server_version') AS version,
    current_setting('server_version_num')::integer AS version_number,
    current_database()::text AS database,
    current_user::text AS role,
    (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) AS superuser,
    pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean AS read_only,
    current_setting('transaction_isolation') AS isolation,
    current_setting('TimeZone') AS time_zone,
    current_setting('DateStyle') AS date_style,
    current_setting('fsync')::boolean AS fsync,
    current_setting('synchronous_commit') <> 'off' AS synchronous_commit

-- name: exposed
-- Each exposed schema: whether it is there and usable, and its tables and views.
SELECT wanted.schema, n.oid IS NOT NULL AS present, coalesce(has_schema_privilege(n.oid, 'USAGE'), false) AS usable,
    ARRAY(
        SELECT c.relname::text FROM pg_class AS c
        WHERE c.relnamespace = n.oid AND c.relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY 1
    ) AS relations
FROM unnest($1::text[]) WITH ORDINALITY AS wanted (schema, position)
LEFT JOIN pg_namespace AS n ON n.nspname = wanted.schema
ORDER BY wanted.position

-- name: missing_on_exposed
-- Privileges that the gateway's role has on no column of a table of an exposed schema.
SELECT format('%s.%s', n.nspname, c.relname) AS relation, array_agg(wanted.privilege ORDER BY wanted.position) AS privileges,
    format('GRANT %s ON %I.%I TO %I', string_agg(wanted.privilege, ', ' ORDER BY wanted.position), n.nspname, c.relname,
        current_user) AS fix
FROM pg_namespace AS n
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY AS wanted (privilege, position)
WHERE n.nspname = ANY ($1::text[]) AND NOT has_table_privilege(c.oid, wanted.privilege)
  AND (wanted.privilege = 'DELETE' OR NOT has_any_column_privilege(c.oid, wanted.privilege))
GROUP BY n.nspname, c.relname ORDER BY 1

-- name: missing_on_sequences
-- Sequences behind the defaults of exposed tables that the gateway's role may not use.
SELECT format('%s.%s', m.nspname, s.relname) AS relation,
    format('GRANT USAGE ON SEQUENCE %I.%I TO %I', m.nspname, s.relname, current_user) AS fix
FROM pg_namespace AS n
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
JOIN pg_attrdef AS a ON a.adrelid = c.oid
JOIN pg_depend AS d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid AND d.refclassid = 'pg_class'::regclass
JOIN pg_class AS s ON s.oid = d.refobjid AND s.relkind = 'S'
JOIN pg_namespace AS m ON m.oid = s.relnamespace
WHERE n.nspname = ANY ($1::text[]) AND has_any_column_privilege(c.oid, 'INSERT')
  -- PostgreSQL may ask for the privilege before it compares the kind, which is an error for a table.
  AND CASE WHEN s.relkind = 'S' THEN NOT has_sequence_privilege(s.oid, 'USAGE') END
ORDER BY 1

-- name: let_act
-- Statements that let roles call what the fenced statements of their callers call: functions alone, no tables.
SELECT format('GRANT USAGE ON SCHEMA fencing TO %I', u.name) AS statement FROM unnest($1::text[]) AS u (name)
UNION ALL
SELECT format('GRANT EXECUTE ON FUNCTION %s TO %I', p.oid::regprocedure, u.name)
FROM unnest($1::text[]) AS u (name), pg_proc AS p
WHERE p.pronamespace = 'fencing'::regnamespace AND p.proname = ANY ($2::text[])

-- name: acting_roles
-- Return facts about the roles that callers act under.
SELECT u.name, quote_ident(u.name) AS quoted, quote_ident(current_user) AS gateway, r.oid IS NOT NULL AS exists,
       coalesce(pg_has_role(r.oid, 'MEMBER'), false) AS member,
       coalesce(has_schema_privilege(r.oid, 'fencing', 'USAGE'), false) AS may_call,
       coalesce(r.rolsuper OR r.rolbypassrls, false) AS unbound
FROM unnest($1::text[]) WITH ORDINALITY AS u (name, number) LEFT JOIN pg_roles AS r ON r.rolname = u.name
ORDER BY u.number
