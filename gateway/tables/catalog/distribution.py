"""Tables that Citus manages are refused: their rows and fences could commit on two nodes, one after the other."""

from gateway.tables.catalog.snapshot import Table
from gateway.tables.dialect.grammar import not_implemented

PROBLEM = "Citus manages it, so its rows and their fences could commit on two nodes, one after the other"

ADVICE = (
    "Make it a table of this node again: SELECT undistribute_table('schema.table'). Or keep it in a database without "
    "Citus, with a gateway of its own."
)


def check(table: Table) -> None:
    """Raise ``DialectError`` for a table that Citus manages.

    Reads are refused, too: Citus would check on another node that the table is the one that was planned.
    """
    if table.distributed:
        raise not_implemented(f"A request for {table.schema}.{table.name}, which Citus manages,", ADVICE)
