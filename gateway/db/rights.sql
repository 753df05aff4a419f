-- name: missing
-- What the role lacks on the fencing schema, given tables and the privilege needed on each, and functions.
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
-- What the role could do to the record but add to it: as its owner, or by rights that it has.
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
