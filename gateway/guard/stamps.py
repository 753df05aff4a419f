"""The SQL of a guard that watches: it keeps a stamp for each row, a hash of it, beside what it checks. Text only.

The trigger that stamps is the one that checks: whoever switches the check off switches the stamps off with it, and what
is written meanwhile is found. What becomes of stamps is in ``gateway/db/schema/watch.sql``.
"""

TRUNCATED = "fencing_guard_truncated"

# Texts of whole rows stand in stamps: what else they depend on than what is pinned for names.
SETTINGS = " SET lc_monetary = 'C'"

# The gateway's own writes come here too, to be stamped.
BODY = """
<<touched>>
DECLARE
    {declarations}
    was text;
    becomes text;
    old_key text[];
    new_key text[];
    old_hash bigint;
    new_hash bigint;
    checked boolean := SESSION_USER <> TG_ARGV[2];
    observes boolean := TG_ARGV[0] = 'observe';
    once_only boolean := TG_ARGV[1] = 'strict';
BEGIN
    IF TG_OP <> 'INSERT' THEN
        {old}
        was := {name};
        old_key := {old_key};
        old_hash := hashtextextended(format('%s', OLD) COLLATE "C", 0);
        IF checked THEN
            PERFORM fencing.guard_v1(was, TG_ARGV[4], TG_OP, observes, once_only);
        END IF;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        {new}
        becomes := {name};
        new_key := {new_key};
        new_hash := hashtextextended(format('%s', NEW) COLLATE "C", 0);
        IF checked AND (TG_OP = 'INSERT' OR becomes IS DISTINCT FROM was) THEN
            PERFORM fencing.guard_v1(becomes, TG_ARGV[4], TG_OP, observes, once_only);
        END IF;
    END IF;
    IF old_key = new_key THEN
        PERFORM fencing.stamp_v1(TG_RELID, new_key, old_hash, new_hash, becomes);
    ELSE
        IF old_key IS NOT NULL THEN
            PERFORM fencing.stamp_v1(TG_RELID, old_key, old_hash, NULL, was);
        END IF;
        IF new_key IS NOT NULL THEN
            PERFORM fencing.stamp_v1(TG_RELID, new_key, NULL, new_hash, becomes);
        END IF;
    END IF;
    RETURN NULL;
END
"""

# In a function that is given any row, `$1`.
NAMING_BODY = """
<<touched>>
DECLARE
    {declarations}
BEGIN
    {row}
    RETURN {name};
END
"""


def naming_function(function: str) -> str:
    """The name of the function that names rows, beside a trigger function of this name."""
    return function.replace("guard_", "named_", 1)


def on_truncate(relation: str, *, wanted: bool) -> str:
    """The trigger that forgets the stamps of a table, quoted, that was truncated; or that there is none any more."""
    if not wanted:
        return f"DROP TRIGGER IF EXISTS {TRUNCATED} ON {relation};"
    return (
        f"CREATE OR REPLACE TRIGGER {TRUNCATED} AFTER TRUNCATE ON {relation}\n"
        "    FOR EACH STATEMENT EXECUTE FUNCTION fencing.stamp_truncate_v1();"
    )
