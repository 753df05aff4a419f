"""No resource name has a segment ``.`` or ``..``: an HTTP client folds it, and so asks for another resource.

Names that have one get the new spelling, with what is known of them. The functions keep their names, so that a gateway of
the revision before disagrees with the database about such a name, and refuses the write.
"""

from alembic import op

revision = "0016"
down_revision = "0015"

# Must agree to the letter with gateway.fencing.resource.escape.
ESCAPE = """
CREATE OR REPLACE FUNCTION fencing.escape_v1(value text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE
    WHEN starts_with(value, '.') AND value COLLATE "C" ~ '^[.][.]?~*$' THEN value || '~'
    WHEN value COLLATE "C" ~ '^[A-Za-z0-9._~!$&''()*+;:@-]*$' THEN value
    ELSE (
        SELECT string_agg(
            CASE WHEN letter COLLATE "C" ~ '^[A-Za-z0-9._~!$&''()*+;:@-]$' THEN letter
                 ELSE regexp_replace(upper(encode(convert_to(letter, 'UTF8'), 'hex')), '(..)', '%\\1', 'g') END,
            '' ORDER BY position)
        FROM unnest(string_to_array(value, NULL)) WITH ORDINALITY AS letters (letter, position)
    )
END
"""

# Must agree to the letter with gateway.fencing.resource.canonical.
CANONICAL = """
CREATE OR REPLACE FUNCTION fencing.canonical_v1(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN octet_length(name) <= 512
    AND name COLLATE "C" ~ '^([A-Za-z0-9._~!$&''()*+;:@/-]|%[0-9A-F]{2})+$'
    AND name COLLATE "C" !~ '%(2[146-9ABDE]|3[0-9AB]|4[0-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])'
    AND name COLLATE "C" !~ '(^|/)[.][.]?(/|$)'
"""

# All that is kept by the name of a resource. The record says what happened, under the names of its time.
NAMED = ("fence", "intent", "forbidden", "object", "upload", "tombstone", "lock", "lease", "waiter", "stamp")
FOLDED = "(^|/)([.][.]?)(?=/|$)"
# In a JSON array of names, which have neither a quote nor a backslash in them.
FOLDED_IN_JSON = '(["/])([.][.]?)(?=[/"])'


def upgrade() -> None:
    connection = op.get_bind()
    connection.exec_driver_sql(ESCAPE)
    connection.exec_driver_sql(CANONICAL)
    for table in NAMED:
        connection.exec_driver_sql(_respell(table, "resource", FOLDED))
    connection.exec_driver_sql(_respell("idempotency", "claimed", FOLDED_IN_JSON))


def _respell(table: str, column: str, folded: str) -> str:
    respelled = f"regexp_replace({column}, '{folded}', '\\1\\2~', 'g')"
    return f"UPDATE fencing.{table} SET {column} = {respelled} WHERE {column} ~ '{folded}'"  # noqa: S608 - names of our own
