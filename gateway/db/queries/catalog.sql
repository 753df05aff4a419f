-- name: relations
-- Every table and view of the exposed schemas: columns, keys, what refers to what, and what else happens when it is written.
SELECT
    c.oid::bigint AS oid,
    n.nspname AS schema,
    c.relname AS name,
    c.relkind::text AS kind,
    obj_description(c.oid, 'pg_class') AS description,
    c.relrowsecurity AS row_security,
    -- The versions of all that may run code when a row is written: check_version_v1 compares them.
    encode(sha256(convert_to(concat_ws(';',
        (SELECT string_agg(t.xmin::text, ',' ORDER BY t.oid) FROM pg_catalog.pg_trigger AS t WHERE t.tgrelid = c.oid),
        (SELECT string_agg(i.xmin::text, ',' ORDER BY i.indexrelid) FROM pg_catalog.pg_index AS i WHERE i.indrelid = c.oid),
        (SELECT string_agg(k.xmin::text, ',' ORDER BY k.oid) FROM pg_catalog.pg_constraint AS k WHERE k.conrelid = c.oid),
        (SELECT string_agg(d.xmin::text, ',' ORDER BY d.oid) FROM pg_catalog.pg_attrdef AS d WHERE d.adrelid = c.oid)), 'UTF8')), 'hex') AS version,
    c.relkind <> 'r' OR c.relhassubclass OR c.relispartition OR c.relrowsecurity OR EXISTS (
        SELECT FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            AND t.typnamespace <> 'pg_catalog'::regnamespace AND t.typtype <> 'e'
    ) OR EXISTS (
        -- Another key here may change rows of another table, whose triggers read settings.
        SELECT FROM pg_constraint AS k WHERE k.confrelid = c.oid AND k.contype = 'f' AND k.confupdtype NOT IN ('a', 'r')
    ) OR EXISTS (
        SELECT FROM pg_index AS i, unnest(i.indclass) AS class (oid) WHERE i.indrelid = c.oid AND class.oid >= 16384
    ) OR EXISTS (
        -- Of PostgreSQL's own functions, only immutable ones and a few others are known to read no setting. Only these
        -- nodes run no code but the functions that they name: a cast by input and output runs the checks of domains.
        SELECT FROM (
            SELECT k.conbin::text FROM pg_constraint AS k WHERE k.conrelid = c.oid AND k.conbin IS NOT NULL
            UNION ALL SELECT d.adbin::text FROM pg_attrdef AS d WHERE d.adrelid = c.oid
            UNION ALL SELECT concat(i.indexprs::text, i.indpred::text) FROM pg_index AS i WHERE i.indrelid = c.oid
        ) AS e (tree)
        WHERE EXISTS (
            SELECT FROM regexp_matches(e.tree, '\{([A-Z]+)', 'g') AS node (names)
            WHERE node.names[1] <> ALL (ARRAY[
                'OPEXPR', 'BOOLEXPR', 'FUNCEXPR', 'SCALARARRAYOPEXPR', 'DISTINCTEXPR', 'NULLIFEXPR', 'VAR', 'CONST',
                'RELABELTYPE', 'COLLATE', 'COLLATEEXPR', 'NULLTEST', 'BOOLEANTEST', 'ARRAY', 'ARRAYEXPR', 'ARRAYCOERCEEXPR',
                'CASE', 'CASEEXPR', 'WHEN', 'CASEWHEN', 'CASETESTEXPR', 'COALESCE', 'COALESCEEXPR', 'NEXTVALUEEXPR',
                'SQLVALUEFUNCTION'])
        ) OR EXISTS (
            SELECT FROM regexp_matches(e.tree, ':(?:funcid|opfuncid) (\d+)', 'g') AS called (oids)
            LEFT JOIN pg_proc AS p ON p.oid = called.oids[1]::oid
            WHERE p.oid IS NULL OR p.oid >= 16384 OR (p.provolatile <> 'i' AND p.proname <> ALL (ARRAY[
                'now', 'clock_timestamp', 'statement_timestamp', 'transaction_timestamp', 'gen_random_uuid', 'nextval',
                'random']))
        )
    ) AS reads_settings,
    c.relhasrules AS has_rules,
    c.relhassubclass AS has_children,
    far.reached AS reaches_foreign,
    fencing.is_distributed_v1(c.oid) AS distributed,
    -- A foreign table asks its wrapper, which may have no handler or no server; the gateway does not write to it anyway.
    CASE WHEN far.reached THEN 0 ELSE pg_relation_is_updatable(c.oid::regclass, true) END AS updatable,
    (
        SELECT coalesce(json_agg(json_build_object(
            'name', a.attname,
            'number', a.attnum,
            -- Without its modifier a type takes any value of its family, so that a filter neither cuts nor pads.
            'type', format_type(a.atttypid, -1),
            'exact_type', format_type(a.atttypid, a.atttypmod),
            'base_type', format_type(coalesce(base.oid, t.oid), -1),
            'has_modifier', coalesce(base.modifier, a.atttypmod) <> -1,
            'is_enum', coalesce(base.typtype, t.typtype) = 'e',
            'is_json', t.typname IN ('json', 'jsonb'),
            'deterministic', coalesce(co.collisdeterministic, true),
            'generated', a.attgenerated <> '',
            'identity_always', a.attidentity = 'a',
            'nullable', NOT (a.attnotnull OR t.typnotnull),
            'description', col_description(c.oid, a.attnum),
            'default', CASE
                WHEN a.attgenerated <> '' THEN NULL
                WHEN a.attidentity <> '' THEN format(
                    'nextval(%L::regclass)',
                    pg_get_serial_sequence(format('%I.%I', n.nspname, c.relname), a.attname))
                ELSE pg_get_expr(d.adbin, d.adrelid) END
        ) ORDER BY a.attnum), '[]')
        FROM pg_attribute AS a
        JOIN pg_type AS t ON t.oid = a.atttypid
        -- The type below a domain, or below the domain below it, and the modifier it has there.
        LEFT JOIN LATERAL (
            WITH RECURSIVE below AS (
                SELECT u.oid, u.typtype, u.typbasetype, u.typtypmod, t.typtypmod AS modifier
                FROM pg_type AS u WHERE t.typtype = 'd' AND u.oid = t.typbasetype
                UNION ALL
                SELECT u.oid, u.typtype, u.typbasetype, u.typtypmod, b.typtypmod
                FROM below AS b JOIN pg_type AS u ON u.oid = b.typbasetype WHERE b.typtype = 'd'
            )
            SELECT b.oid, b.typtype, b.modifier FROM below AS b WHERE b.typtype <> 'd'
        ) AS base ON true
        LEFT JOIN pg_collation AS co ON co.oid = a.attcollation
        LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    )::text AS columns,
    -- Any alteration of a column gives its row here another version.
    ARRAY(
        SELECT a.xmin FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 ORDER BY a.attnum
    )::text AS column_versions,
    (
        SELECT coalesce(json_agg(json_build_object(
            'primary', i.indisprimary,
            'index', i.indexrelid::bigint,
            'columns', (
                SELECT json_agg(a.attname ORDER BY k.position)
                FROM unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, position)
                JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = k.number
                WHERE k.position <= i.indnkeyatts)
        ) ORDER BY i.indexrelid), '[]')
        FROM pg_index AS i
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
    )::text AS keys,
    (
        SELECT coalesce(json_agg(json_build_object(
            'name', f.conname,
            'columns', names.own,
            'target_schema', tn.nspname,
            'target_table', tc.relname,
            'target_columns', names.target,
            'unique', EXISTS (
                SELECT FROM pg_index AS i
                WHERE i.indrelid = f.conrelid AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
                    AND (i.indkey::smallint[])[0:i.indnkeyatts - 1] <@ f.conkey)
        ) ORDER BY f.conname), '[]')
        FROM pg_constraint AS f
        JOIN pg_class AS tc ON tc.oid = f.confrelid
        JOIN pg_namespace AS tn ON tn.oid = tc.relnamespace
        CROSS JOIN LATERAL (
            SELECT json_agg(a.attname ORDER BY k.position) AS own, json_agg(t.attname ORDER BY k.position) AS target
            FROM unnest(f.conkey, f.confkey) WITH ORDINALITY AS k (own, target, position)
            JOIN pg_attribute AS a ON a.attrelid = f.conrelid AND a.attnum = k.own
            JOIN pg_attribute AS t ON t.attrelid = f.confrelid AND t.attnum = k.target
        ) AS names
        -- A partitioned table that is referred to has a constraint for each partition below the one that was declared.
        WHERE f.conrelid = c.oid AND f.contype = 'f' AND NOT EXISTS (
            SELECT FROM pg_constraint AS p WHERE p.oid = f.conparentid AND p.conrelid = f.conrelid)
    )::text AS foreign_keys,
    -- tgtype: 1 for each row, 2 before, 4 insert, 8 delete, 16 update, 64 instead. The guard's own triggers only look.
    (
        SELECT coalesce(json_agg(json_build_object(
            'name', g.tgname,
            'events', array_remove(ARRAY[
                CASE WHEN g.tgtype & 4 <> 0 THEN 'insert' END, CASE WHEN g.tgtype & 8 <> 0 THEN 'delete' END,
                CASE WHEN g.tgtype & 16 <> 0 THEN 'update' END], NULL),
            'source', CASE WHEN l.lanname = 'plpgsql' THEN p.prosrc ELSE '' END,
            'when', CASE WHEN g.tgtype & 64 <> 0 THEN 'instead' WHEN g.tgtype & 2 <> 0 THEN 'before' ELSE 'after' END,
            'each_row', g.tgtype & 1 <> 0,
            'writes', l.lanname NOT IN ('plpgsql', 'sql')
                OR coalesce(p.prosrc, '') ~* '\m(insert|update|delete|merge|truncate|copy|execute|perform|call)\M'
        ) ORDER BY g.tgname), '[]')
        FROM pg_trigger AS g
        JOIN pg_proc AS p ON p.oid = g.tgfoid
        JOIN pg_language AS l ON l.oid = p.prolang
        WHERE g.tgrelid = c.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND g.tgtype & 28 <> 0
            AND p.pronamespace IS DISTINCT FROM to_regnamespace('fencing')
    )::text AS triggers,
    (
        SELECT coalesce(json_agg(json_build_object(
            'name', r.rulename,
            'events', ARRAY[CASE r.ev_type WHEN '2' THEN 'update' WHEN '3' THEN 'insert' ELSE 'delete' END],
            'source', pg_get_ruledef(r.oid)
        ) ORDER BY r.rulename), '[]')
        FROM pg_rewrite AS r
        WHERE r.ev_class = c.oid AND r.ev_type <> '1' AND r.ev_enabled <> 'D'
    )::text AS rules,
    (
        WITH RECURSIVE below AS (
            SELECT i.inhrelid FROM pg_inherits AS i WHERE i.inhparent = c.oid
            UNION
            SELECT i.inhrelid FROM pg_inherits AS i JOIN below AS b ON i.inhparent = b.inhrelid
        )
        SELECT coalesce(json_agg(json_build_array(cn.nspname, cc.relname) ORDER BY cn.nspname, cc.relname), '[]')
        FROM below AS b
        JOIN pg_class AS cc ON cc.oid = b.inhrelid
        JOIN pg_namespace AS cn ON cn.oid = cc.relnamespace
    )::text AS children
FROM pg_class AS c
JOIN pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (SELECT fencing.reaches_foreign_v1(c.oid) OFFSET 0) AS far (reached)
WHERE n.nspname = ANY ($1::text[]) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
ORDER BY n.nspname, c.relname

-- name: references
-- The foreign keys that change rows of the referring table (a: no action, r: restrict; all others do), of all tables. And
-- what is below a table or a view: partitions, children, what a view shows. With $1, only what leads away from these
-- relations.
SELECT
    (
        SELECT coalesce(json_agg(json_build_object(
            'oid', f.oid::bigint,
            'parent', f.conparentid::bigint,
            'name', f.conname,
            'source', json_build_object('oid', s.oid::bigint, 'schema', sn.nspname, 'name', s.relname, 'kind', s.relkind),
            'target', json_build_object('oid', t.oid::bigint, 'schema', tn.nspname, 'name', t.relname, 'kind', t.relkind),
            'columns', pairs.own,
            'target_columns', pairs.target,
            'operators', pairs.operators,
            'collations', pairs.collations,
            'on_delete', f.confdeltype,
            'on_update', f.confupdtype,
            -- A column of PostgreSQL 15 and newer.
            'cleared', (
                SELECT coalesce(json_agg(a.attname ORDER BY a.attnum), '[]')
                FROM json_array_elements_text(CASE json_typeof(to_json(f) -> 'confdelsetcols')
                    WHEN 'array' THEN to_json(f) -> 'confdelsetcols' ELSE '[]' END) AS k (number)
                JOIN pg_attribute AS a ON a.attrelid = f.conrelid AND a.attnum = k.number::smallint)
        ) ORDER BY f.oid), '[]')
        FROM pg_constraint AS f
        JOIN pg_class AS s ON s.oid = f.conrelid
        JOIN pg_namespace AS sn ON sn.oid = s.relnamespace
        JOIN pg_class AS t ON t.oid = f.confrelid
        JOIN pg_namespace AS tn ON tn.oid = t.relnamespace
        CROSS JOIN LATERAL (
            SELECT
                json_agg(a.attname ORDER BY k.position) AS own,
                json_agg(b.attname ORDER BY k.position) AS target,
                json_agg(format('OPERATOR(%I.%s)', n.nspname, o.oprname) ORDER BY k.position) AS operators,
                -- As PostgreSQL compares them itself: under the target's collation if that is not deterministic.
                json_agg(CASE WHEN a.attcollation <> b.attcollation THEN format('%I.%I', cn.nspname, c.collname) END
                    ORDER BY k.position) AS collations
            FROM unnest(f.conkey, f.confkey, f.conpfeqop) WITH ORDINALITY AS k (own, target, operator, position)
            JOIN pg_attribute AS a ON a.attrelid = f.conrelid AND a.attnum = k.own
            JOIN pg_attribute AS b ON b.attrelid = f.confrelid AND b.attnum = k.target
            JOIN pg_operator AS o ON o.oid = k.operator
            JOIN pg_namespace AS n ON n.oid = o.oprnamespace
            LEFT JOIN pg_collation AS d ON d.oid = b.attcollation
            LEFT JOIN pg_collation AS c ON c.oid = CASE WHEN d.collisdeterministic THEN a.attcollation ELSE b.attcollation END
            LEFT JOIN pg_namespace AS cn ON cn.oid = c.collnamespace
        ) AS pairs
        -- A partitioned table that refers has a constraint for each of its partitions below the declared one.
        WHERE f.contype = 'f' AND (f.confdeltype NOT IN ('a', 'r') OR f.confupdtype NOT IN ('a', 'r'))
            AND NOT EXISTS (SELECT FROM pg_constraint AS p WHERE p.oid = f.conparentid AND p.confrelid = f.confrelid)
            AND ($1::oid[] IS NULL OR f.confrelid = ANY ($1::oid[]))
    )::text AS references,
    (
        SELECT coalesce(json_agg(json_build_array(b.above, b.below) ORDER BY b.above, b.below), '[]')
        FROM (
            SELECT i.inhparent::bigint AS above, i.inhrelid::bigint AS below
            FROM pg_inherits AS i
            WHERE $1::oid[] IS NULL OR i.inhparent = ANY ($1::oid[])
            UNION
            SELECT w.ev_class::bigint, d.refobjid::bigint
            FROM pg_rewrite AS w
            JOIN pg_class AS v ON v.oid = w.ev_class AND v.relkind = 'v'
            JOIN pg_depend AS d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid
                AND d.refclassid = 'pg_class'::regclass AND d.refobjid <> w.ev_class
            WHERE w.ev_type = '1' AND ($1::oid[] IS NULL OR w.ev_class = ANY ($1::oid[]))
        ) AS b
    )::text AS below

-- name: functions
-- The functions of these names (schema.name), each of its forms: what goes in by name, and what comes out.
SELECT
    n.nspname AS schema,
    p.proname AS name,
    p.provolatile::text AS volatility,
    p.proretset AS returns_set,
    format_type(coalesce(nullif(t.typbasetype, 0), t.oid), -1) AS type,
    t.typtype = 'c' OR b.typtype = 'c' OR coalesce(p.proargmodes::text[] && '{o,b,t}', false) AS composite,
    obj_description(p.oid, 'pg_proc') AS description,
    (
        SELECT coalesce(json_agg(json_build_object(
            'name', coalesce(g.name, ''),
            'type', format_type(g.type, -1),
            'required', g.place <= p.pronargs - p.pronargdefaults,
            'variadic', g.mode = 'v'
        ) ORDER BY g.place), '[]')
        FROM (
            SELECT a.name, a.type, coalesce(a.mode, 'i') AS mode, row_number() OVER (ORDER BY a.number) AS place
            FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[]), p.proargnames, p.proargmodes)
                WITH ORDINALITY AS a (type, name, mode, number)
            WHERE a.type IS NOT NULL AND coalesce(a.mode, 'i') IN ('i', 'b', 'v')
        ) AS g
    )::text AS parameters,
    (
        SELECT coalesce(json_agg(json_build_object(
            'name', o.name,
            'type', format_type(o.type, -1),
            'exact_type', format_type(o.type, -1),
            'base_type', format_type(coalesce(nullif(ot.typbasetype, 0), ot.oid), -1),
            'is_enum', ot.typtype = 'e',
            'is_json', ot.typname IN ('json', 'jsonb')
        ) ORDER BY o.number), '[]')
        FROM (
            SELECT a.name, a.type, a.number
            FROM unnest(p.proallargtypes, p.proargnames, p.proargmodes) WITH ORDINALITY AS a (type, name, mode, number)
            WHERE a.mode IN ('o', 'b', 't')
            UNION ALL
            SELECT a.attname, a.atttypid, a.attnum
            FROM pg_attribute AS a
            WHERE a.attrelid = coalesce(nullif(b.typrelid, 0), t.typrelid) AND a.attrelid <> 0
                AND a.attnum > 0 AND NOT a.attisdropped
        ) AS o
        JOIN pg_type AS ot ON ot.oid = o.type
    )::text AS columns
FROM pg_proc AS p
JOIN pg_namespace AS n ON n.oid = p.pronamespace
JOIN pg_type AS t ON t.oid = p.prorettype
LEFT JOIN pg_type AS b ON b.oid = nullif(t.typbasetype, 0)
WHERE n.nspname || '.' || p.proname = ANY ($1::text[])
    AND p.prokind = 'f' AND t.typname NOT IN ('trigger', 'event_trigger')
ORDER BY 1, 2, p.oid

-- name: schemas
-- All schemas of the users, whose names are suggested for one that does not exist.
SELECT n.nspname AS name FROM pg_namespace AS n
WHERE n.nspname NOT LIKE 'pg\_%' AND n.nspname NOT IN ('information_schema', 'fencing')
ORDER BY 1

-- name: function_names
-- The functions of schemas as schema.name, whatever they take and return.
SELECT DISTINCT n.nspname || '.' || p.proname AS name
FROM pg_proc AS p
JOIN pg_namespace AS n ON n.oid = p.pronamespace
WHERE n.nspname = ANY ($1::text[]) AND p.prokind = 'f'
ORDER BY 1
