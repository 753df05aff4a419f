"""Whether a write may reach a foreign table: rows there are written by another transaction than the fence's.

A foreign table can be a partition, a child, or what a view or a rule writes, at any depth. A partition can be attached at
any time, and PostgreSQL lets writes of the parent go on meanwhile: so each such write asks again.
"""

from alembic import op

revision = "0017"
down_revision = "0016"

# What a view or a rule refers to counts as reached, also where it is only read: which of it is written stands in a form
# that only the server can read.
REACHES_FOREIGN = """
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
        SELECT FROM reached AS r JOIN pg_catalog.pg_class AS c ON c.oid = r.oid WHERE c.relkind = 'f'
    )
$function$
"""

# True, or the error of a table that has changed. VOLATILE: it sees each partition that the statement itself may see.
CHECK_FOREIGN = """
CREATE FUNCTION fencing.check_foreign_v1(p_table oid, p_reaches boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
    IF fencing.reaches_foreign_v1(p_table) = p_reaches THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$
"""


def upgrade() -> None:
    for statement in (REACHES_FOREIGN, CHECK_FOREIGN):
        op.get_bind().exec_driver_sql(statement)
