"""Tables that Citus manages, whose writes are refused: rows and fence could commit one after the other."""

PROBLEM = "Citus manages it, so its rows and their fences could commit on two nodes, one after the other"

ADVICE = (
    "Make it a table of this node again: SELECT undistribute_table('schema.table'). Or keep it in a database without "
    "Citus, with a gateway of its own."
)
