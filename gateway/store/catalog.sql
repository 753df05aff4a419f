-- name: relations
-- Every table and view of the exposed schemas, with its columns, primary key and other unique keys.
SELECT
    n.nspname AS schema,
    c.relname AS name,
    c.relkind::text AS kind,
    (
        SELECT coalesce(json_agg(json_build_object(
            'name', a.attname,
            -- Without its modifier a type takes any value of its family, so that a filter neither cuts nor pads.
            'type', format_type(a.atttypid, -1),
            'exact_type', format_type(a.atttypid, a.atttypmod),
            'base_type', format_type(coalesce(nullif(t.typbasetype, 0), t.oid), -1),
            'has_modifier', CASE WHEN t.typbasetype <> 0 THEN t.typtypmod <> -1 ELSE a.atttypmod <> -1 END,
            'is_enum', t.typtype = 'e',
            'is_json', t.typname IN ('json', 'jsonb'),
            'deterministic', coalesce(co.collisdeterministic, true),
            'generated', a.attgenerated <> '',
            'default', CASE
                WHEN a.attgenerated <> '' THEN NULL
                WHEN a.attidentity <> '' THEN format(
                    'nextval(%L::regclass)',
                    pg_get_serial_sequence(format('%I.%I', n.nspname, c.relname), a.attname))
                ELSE pg_get_expr(d.adbin, d.adrelid) END
        ) ORDER BY a.attnum), '[]')
        FROM pg_attribute AS a
        JOIN pg_type AS t ON t.oid = a.atttypid
        LEFT JOIN pg_collation AS co ON co.oid = a.attcollation
        LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    )::text AS columns,
    (
        SELECT coalesce(json_agg(json_build_object(
            'primary', i.indisprimary,
            'columns', (
                SELECT json_agg(a.attname ORDER BY k.position)
                FROM unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, position)
                JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.number
                WHERE k.position <= i.indnkeyatts)
        ) ORDER BY i.indexrelid), '[]')
        FROM pg_index AS i
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
    )::text AS keys,
    -- tgtype 1: once for each row. The others fire even for a statement that touches none.
    EXISTS (
        SELECT FROM pg_trigger AS g WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgtype & 1 = 0
    ) AS has_statement_triggers
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = ANY ($1::text[]) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
ORDER BY 1, 2
