"""What each statement asks about its table, and a write about its fence, as functions.

Inside the statement these questions were plans of their own, and PostgreSQL sets every plan up for each execution, also
where it is not asked: half of what a write cost in a batch (docs/decisions/029, 030).
"""

from alembic import op

revision = "0006"
down_revision = "0005"

# True, or an error that undoes what triggers have done by then: the table is what the statement was planned with.
# A column's row in the catalog gets another xmin with every change; a key lives and dies with its index, and any
# property of an index is null where there is none. VOLATILE: a fresh snapshot, taken with the table's lock in hand.
CHECK_UNCHANGED = """
CREATE FUNCTION fencing.check_unchanged_v1(
    p_table oid, p_name text, p_kind "char", p_rules boolean, p_children boolean, p_row_security boolean,
    p_columns xid[], p_keyed boolean, p_key oid, p_statement_triggers boolean, p_row_triggers boolean
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_class AS c
        WHERE c.oid = p_table AND c.oid = pg_catalog.to_regclass(p_name) AND c.relkind = p_kind
          AND (p_row_security OR NOT c.relrowsecurity)
          AND (p_rules OR NOT c.relhasrules)
          AND (p_children OR NOT c.relhassubclass)
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
$function$
"""

# For reads: only that the name still means this table, and that what is behind it still is one.
CHECK_RELATION = """
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
$function$
"""

# Whether the fence carries a higher token already: asked by a write that does not find its own there.
IS_OVERTAKEN = """
CREATE FUNCTION fencing.is_overtaken_v1(p_resource text, p_epoch integer, p_value bigint)
RETURNS boolean LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RETURN EXISTS (
        SELECT FROM fencing.fence f WHERE f.resource = p_resource AND (f.epoch, f.value) > (p_epoch, p_value)
    );
END
$function$
"""


def upgrade() -> None:
    for statement in (CHECK_UNCHANGED, CHECK_RELATION, IS_OVERTAKEN):
        op.get_bind().exec_driver_sql(statement)
