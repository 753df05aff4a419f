-- name: server
-- What the server is and how it treats a session of the gateway.
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
SELECT format('%s.%s', n.nspname, c.relname) AS relation, array_agg(wanted.privilege ORDER BY wanted.position) AS privileges
FROM pg_namespace AS n
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind IN ('r', 'p')
CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) WITH ORDINALITY AS wanted (privilege, position)
WHERE n.nspname = ANY ($1::text[]) AND NOT has_table_privilege(c.oid, wanted.privilege)
  AND (wanted.privilege = 'DELETE' OR NOT has_any_column_privilege(c.oid, wanted.privilege))
GROUP BY 1 ORDER BY 1
