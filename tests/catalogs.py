"""The catalog of the schema ``fencing`` as text, so that two databases can be compared object by object."""

import json
import re

import asyncpg

# The first two columns name an object and one of its parts, the third is its definition.
_OBJECTS = """
WITH home AS (SELECT 'fencing'::regnamespace::oid AS oid),
relation AS (SELECT c.* FROM pg_class AS c JOIN home ON c.relnamespace = home.oid),
-- The types of row that tables and views bring along are described with these.
own_type AS (
    SELECT t.* FROM pg_type AS t JOIN home ON t.typnamespace = home.oid
    WHERE t.typelem = 0 AND (t.typrelid = 0 OR t.typrelid IN (SELECT oid FROM relation WHERE relkind = 'c'))
)
SELECT 'schema', nspname::text, jsonb_build_array(nspowner::regrole, nspacl, obj_description(n.oid, 'pg_namespace'))
FROM pg_namespace AS n JOIN home USING (oid)
UNION ALL
-- All there is in the schema, whatever its kind.
SELECT 'object', format('%s %s', o.type, o.identity), 'true'
FROM home
JOIN pg_depend AS d ON d.refclassid = 'pg_namespace'::regclass AND d.refobjid = home.oid
CROSS JOIN LATERAL pg_identify_object(d.classid, d.objid, d.objsubid) AS o
UNION ALL
SELECT 'relation', r.oid::regclass::text, jsonb_build_array(
    r.relkind, r.relpersistence, r.reloptions, r.relrowsecurity, r.relforcerowsecurity, r.relreplident,
    r.relispartition, pg_get_expr(r.relpartbound, r.oid), pg_get_partkeydef(r.oid), r.relowner::regrole, r.relacl,
    CASE WHEN r.relkind IN ('v', 'm') THEN pg_get_viewdef(r.oid) END, obj_description(r.oid, 'pg_class'),
    ARRAY(SELECT i.inhparent::regclass FROM pg_inherits AS i WHERE i.inhrelid = r.oid ORDER BY i.inhseqno))
FROM relation AS r
UNION ALL
SELECT 'column', format('%s.%s', r.oid::regclass, a.attname), jsonb_build_array(
    a.attnum, format_type(a.atttypid, a.atttypmod), a.attcollation::regcollation, a.attnotnull,
    pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated, a.attstorage, a.attcompression, a.attoptions,
    a.attislocal, a.attinhcount, a.attacl, col_description(r.oid, a.attnum))
FROM relation AS r
JOIN pg_attribute AS a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef AS d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
UNION ALL
SELECT 'constraint',
    format('%s on %s', c.conname, coalesce(nullif(c.conrelid, 0)::regclass::text, c.contypid::regtype::text)),
    jsonb_build_array(pg_get_constraintdef(c.oid), c.convalidated, c.conislocal, c.coninhcount,
        obj_description(c.oid, 'pg_constraint'))
FROM pg_constraint AS c JOIN home ON c.connamespace = home.oid
UNION ALL
SELECT 'index', i.indexrelid::regclass::text,
    jsonb_build_array(pg_get_indexdef(i.indexrelid), i.indisvalid, i.indisclustered, i.indisreplident)
FROM pg_index AS i JOIN relation AS r ON r.oid = i.indrelid
UNION ALL
SELECT 'function', p.oid::regprocedure::text, jsonb_build_array(
    CASE WHEN p.prokind = 'a' THEN to_jsonb(a) - 'aggfnoid' ELSE to_jsonb(pg_get_functiondef(p.oid)) END,
    pg_get_function_result(p.oid), p.proowner::regrole, p.proacl, obj_description(p.oid, 'pg_proc'))
FROM pg_proc AS p JOIN home ON p.pronamespace = home.oid LEFT JOIN pg_aggregate AS a ON a.aggfnoid = p.oid
UNION ALL
SELECT 'trigger', format('%s on %s', t.tgname, t.tgrelid::regclass),
    jsonb_build_array(pg_get_triggerdef(t.oid), t.tgenabled, obj_description(t.oid, 'pg_trigger'))
FROM pg_trigger AS t JOIN relation AS r ON r.oid = t.tgrelid WHERE NOT t.tgisinternal
UNION ALL
SELECT 'type', t.oid::regtype::text, jsonb_build_array(
    t.typtype, format_type(t.typbasetype, t.typtypmod), t.typnotnull, t.typdefault, t.typowner::regrole, t.typacl,
    ARRAY(SELECT e.enumlabel FROM pg_enum AS e WHERE e.enumtypid = t.oid ORDER BY e.enumsortorder),
    obj_description(t.oid, 'pg_type'))
FROM own_type AS t
UNION ALL
SELECT 'sequence', s.seqrelid::regclass::text, jsonb_build_array(
    format_type(s.seqtypid, NULL), s.seqstart, s.seqincrement, s.seqmin, s.seqmax, s.seqcache, s.seqcycle,
    (SELECT format('%s.%s', d.refobjid::regclass, d.refobjsubid) FROM pg_depend AS d
     WHERE d.classid = 'pg_class'::regclass AND d.objid = s.seqrelid AND d.refclassid = 'pg_class'::regclass))
FROM pg_sequence AS s JOIN relation AS r ON r.oid = s.seqrelid
UNION ALL
SELECT 'rule', format('%s on %s', w.rulename, w.ev_class::regclass),
    jsonb_build_array(pg_get_ruledef(w.oid), w.ev_enabled)
FROM pg_rewrite AS w JOIN relation AS r ON r.oid = w.ev_class
UNION ALL
SELECT 'policy', format('%s on %s', p.polname, p.polrelid::regclass), jsonb_build_array(
    p.polcmd, p.polpermissive, p.polroles::regrole[], pg_get_expr(p.polqual, p.polrelid),
    pg_get_expr(p.polwithcheck, p.polrelid))
FROM pg_policy AS p JOIN relation AS r ON r.oid = p.polrelid
UNION ALL
SELECT 'default privileges', format('%s of %s', a.defaclobjtype, a.defaclrole::regrole), to_jsonb(a.defaclacl::text[])
FROM pg_default_acl AS a JOIN home ON a.defaclnamespace = home.oid
"""

_TABLES = """
SELECT format('fencing.%I', relname) AS name FROM pg_class
WHERE relnamespace = 'fencing'::regnamespace AND relkind IN ('r', 'p')
"""

_COMMENT = re.compile(r"^ *--.*\n", re.MULTILINE)


async def catalog(connection: asyncpg.Connection) -> dict[str, str]:
    """Return the definition of each object of the schema, and the rows that its installation puts into tables.

    The order of columns counts. Times at which rows were made do not, nor the identity of the database, nor lines of
    comments inside functions.
    """
    async with connection.transaction():
        await connection.execute("SET LOCAL search_path = pg_catalog")  # or names would lack their schemas
        found = {f"{kind} {name}": _readable(definition) for kind, name, definition in await connection.fetch(_OBJECTS)}
        for table in await connection.fetch(_TABLES):
            statement = f"SELECT to_jsonb(t) - 'at' - 'identity' FROM {table['name']} AS t"
            found[f"rows {table['name']}"] = "\n".join(sorted(row[0] for row in await connection.fetch(statement)))
    return found


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Return the names of the objects that two catalogs do not agree on."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _readable(definition: str) -> str:
    parts = json.loads(definition)
    texts = [
        part if isinstance(part, str) else json.dumps(part) for part in (parts if isinstance(parts, list) else [parts])
    ]
    return "\n".join(_COMMENT.sub("", text) for text in texts)
