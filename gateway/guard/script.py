"""The SQL of a guard: the triggers of one table, the function that names its rows, the grants; and that of PostgREST.

Text only, no database.

The trigger function runs with its owner's rights, on values of types that other people may have defined. So it takes
their texts and continues with types of PostgreSQL's own. A text comes from ``format``, which uses a type's own output
function, never a cast, because the owner of a type can define casts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from gateway.fencing.decision import Enforcement, Equal
from gateway.tables.catalog import Column
from gateway.tables.naming import Naming, table_resource
from gateway.tables.sql.expressions import quote, string
from gateway.tables.sql.statements import name_expression

TRUNCATED = "fencing_guard_truncated"

# Texts of whole rows stand in stamps: what else they depend on than what is pinned for names.
SETTINGS = " SET lc_monetary = 'C'"

# The gateway's own writes come here too, to be stamped. Their cascades and triggers are checked as well.
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
    checked boolean := SESSION_USER <> TG_ARGV[2] OR pg_trigger_depth() > 1;
    observes boolean := TG_ARGV[0] = 'observe';
    once_only boolean := TG_ARGV[1] = 'strict';
BEGIN
    IF TG_OP <> 'INSERT' THEN
        {old}
        was := {name};
        old_key := {old_key};
        old_hash := hashtextextended(format('%s', OLD) COLLATE "C", 0);
        IF checked THEN
            PERFORM fencing.guard_v2(was, TG_ARGV[4], TG_OP, observes, once_only);
        END IF;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        {new}
        becomes := {name};
        new_key := {new_key};
        new_hash := hashtextextended(format('%s', NEW) COLLATE "C", 0);
        IF checked AND (TG_OP = 'INSERT' OR becomes IS DISTINCT FROM was) THEN
            PERFORM fencing.guard_v2(becomes, TG_ARGV[4], TG_OP, observes, once_only);
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
    """Return the name of the function that names rows, beside a trigger function of this name."""
    return function.replace("guard_", "named_", 1)


def on_truncate(relation: str, *, wanted: bool) -> str:
    """Return the trigger that forgets the stamps of a truncated table, quoted, or the removal of that trigger."""
    if not wanted:
        return f"DROP TRIGGER IF EXISTS {TRUNCATED} ON {relation};"
    return (
        f"CREATE OR REPLACE TRIGGER {TRUNCATED} AFTER TRUNCATE ON {relation}\n"
        "    FOR EACH STATEMENT EXECUTE FUNCTION fencing.stamp_truncate_v1();"
    )


STATEMENT, ROW, TRUNCATE = "fencing_guard_statement", "fencing_guard_row", "fencing_guard_truncate"
BY_STATEMENT = {
    "INSERT": ("fencing_guard_inserted", "NEW TABLE AS fencing_new"),
    "UPDATE": ("fencing_guard_updated", "OLD TABLE AS fencing_old NEW TABLE AS fencing_new"),
    "DELETE": ("fencing_guard_deleted", "OLD TABLE AS fencing_old"),
}
"""The triggers that check the rows of a statement together, and the rows that each is shown."""
WATCH = "watch"
"""The last argument of the triggers of a guard that watches."""

# Types of which ``::text`` is not what the output function gives, and the type a value is brought back to for it.
_RESTORED = {
    **dict.fromkeys(("smallint", "integer", "bigint", "uuid", "date", "boolean", "inet", "cidr")),
    "character": "bpchar",
    "bpchar": "bpchar",
}
_TOUCHED = "touched"

# Texts of values stand in resource names: the session of the writer is pinned as the gateway's own sessions are. Each
# setting costs half a microsecond at each call, and the texts of numbers depend on none.
_SEARCH_PATH = "SET search_path = pg_catalog, pg_temp"
_INDEPENDENT = frozenset(("smallint", "integer", "bigint", "uuid", "boolean"))
_SETTINGS = f"""\
{_SEARCH_PATH} SET timezone = 'UTC' SET datestyle = 'ISO, YMD' SET intervalstyle = 'iso_8601'
SET bytea_output = 'hex' SET extra_float_digits = 1"""

_BODY = """
<<touched>>
DECLARE
    {declarations}
    was text;
    becomes text;
    observes boolean := TG_ARGV[0] = 'observe';
    once_only boolean := TG_ARGV[1] = 'strict';
BEGIN
    -- The gateway comes here by cascades and triggers of its writes, other sessions by all of their writes.
    IF TG_OP <> 'INSERT' THEN
        {old}
        was := {name};
        PERFORM fencing.guard_v2(was, TG_ARGV[4], TG_OP, observes, once_only);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        {new}
        becomes := {name};
        IF TG_OP = 'INSERT' OR becomes IS DISTINCT FROM was THEN
            PERFORM fencing.guard_v2(becomes, TG_ARGV[4], TG_OP, observes, once_only);
        END IF;
    END IF;
    RETURN NULL;
END
"""


# The rows of a statement together: each resource is checked once, however many rows it has, and in one order for all
# sessions.
_STATEMENT_BODY = """
<<touched>>
DECLARE
    {declarations}
    observes boolean := TG_ARGV[0] = 'observe';
    once_only boolean := TG_ARGV[1] = 'strict';
BEGIN
    IF TG_OP = 'INSERT' THEN
        FOR {variables} IN {inserted} ORDER BY {places} LOOP
            PERFORM fencing.guard_v2({name}, TG_ARGV[4], TG_OP, observes, once_only);
        END LOOP;
    ELSIF TG_OP = 'DELETE' THEN
        FOR {variables} IN {deleted} ORDER BY {places} LOOP
            PERFORM fencing.guard_v2({name}, TG_ARGV[4], TG_OP, observes, once_only);
        END LOOP;
    ELSE
        FOR {variables} IN {updated} ORDER BY {places} LOOP
            PERFORM fencing.guard_v2({name}, TG_ARGV[4], TG_OP, observes, once_only);
        END LOOP;
    END IF;
    RETURN NULL;
END
"""
_OLD, _NEW = "fencing_old", "fencing_new"


@dataclass(frozen=True, slots=True)
class Guard:
    """The rule that the triggers of one table enforce. ``role``: the gateway's, whose sessions pass. ``watches``: the
    guard keeps a stamp for each row; then the table has a primary key. ``by_statement``: it checks the rows of a
    statement together; only for a table that stands alone and is not watched.
    """

    named: Naming
    mode: Enforcement
    equal: Equal
    role: str
    watches: bool = False
    by_statement: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of its triggers: those that ``gateway/db/schema/guard.sql`` names, and perhaps ``WATCH``."""
        watches = (WATCH,) if self.watches else ()
        return (self.mode.value, self.equal.value, self.role, self.named.template.text, self.target, *watches)

    @property
    def target(self) -> str:
        """The table as the record names it."""
        return table_resource(self.named.table)

    @property
    def body(self) -> str:
        """The source of the trigger function that checks rows."""
        pieces = {"declarations": self._declarations, "name": self._name}
        if self.by_statement:
            # A name without columns has no value to look for, but a row to be there.
            variables = ", ".join(part.name for part in self._touched) or "any_row"
            if not self._touched:
                pieces["declarations"] = "any_row integer;"
            pieces |= {"variables": variables, "inserted": self._values(_NEW), "deleted": self._values(_OLD)}
            pieces["places"] = ", ".join(str(1 + place) for place in range(max(len(self._touched), 1)))
            pieces["updated"] = f"{self._values(_OLD, '')} UNION {self._values(_NEW, '')}"
            return _STATEMENT_BODY.format(**pieces)
        pieces |= {"old": self._parts("OLD", 2), "new": self._parts("NEW", 2)}
        if not self.watches:
            return _BODY.format(**pieces)
        return BODY.format(**pieces, old_key=self._key("OLD"), new_key=self._key("NEW"))

    @property
    def settings(self) -> str:
        """The settings that its trigger function runs with."""
        if self.watches:
            return _SETTINGS + SETTINGS
        independent = all(_restored(part) in _INDEPENDENT for part in self._touched)
        return _SEARCH_PATH if independent else _SETTINGS

    @property
    def naming_body(self) -> str:
        """The source of a function that names a row it is given, for rows that no trigger has seen."""
        return NAMING_BODY.format(declarations=self._declarations, row=self._parts("$1", 1), name=self._name)

    @property
    def function(self) -> str:
        """Its name follows from its source: guards of two tables never replace each other's by accident."""
        return f"guard_{_digest(self.body)}"

    @property
    def naming(self) -> str:
        """The function beside it, by the name that ``guard_installed_v1`` looks for."""
        return naming_function(self.function)

    @property
    def _touched(self) -> tuple[Column, ...]:
        return tuple(replace(column, name=f"part{number}") for number, column in enumerate(self.named.columns, 1))

    @property
    def _declarations(self) -> str:
        return "\n    ".join(f"{part.name} {_restored(part)};" for part in self._touched)

    @property
    def _name(self) -> str:
        table = replace(self.named.table, name=_TOUCHED)
        return name_expression(replace(self.named, table=table, columns=self._touched))

    def _parts(self, row: str, depth: int) -> str:
        pairs = zip(self._touched, self.named.columns, strict=True)
        return ("\n" + depth * "    ").join(_taken(row, *pair) for pair in pairs)

    def _values(self, rows: str, distinct: str = "DISTINCT ") -> str:
        values = ", ".join(f'{_text(rows, column)} COLLATE "C"' for column in self.named.columns)
        return f"SELECT {distinct}{values or '1'} FROM {rows}"  # noqa: S608 - names, quoted

    def _key(self, row: str) -> str:
        texts = (f"format('%s', {row}.{quote(name)})" for name in self.named.table.primary_key)
        return f"ARRAY[{', '.join(texts)}]"


def install(guard: Guard, relations: Sequence[str], outdated: Sequence[str]) -> str:
    """Return the statements that put the guard on its table, or in the place of an older one.

    ``relations``: the table and its partitions at every level, quoted, the table first. ``outdated``: names of
    functions in the schema fencing that are unused afterwards.
    """
    body, function = guard.body, f"fencing.{guard.function}"
    return "\n".join([
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger",
        "LANGUAGE plpgsql STABLE SECURITY DEFINER",
        guard.settings,
        f"AS $guard_{_digest(body)}${body}$guard_{_digest(body)}$;",
        f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC;",
        *(_naming(guard) if guard.watches else ()),
        *(on_truncate(one, wanted=guard.watches) for one in relations),
        *(_trigger(guard, STATEMENT, "BEFORE INSERT OR UPDATE OR DELETE", one) for one in relations),
        *(_trigger(guard, TRUNCATE, "BEFORE TRUNCATE", one) for one in relations),
        *_rows(guard, relations[0], function),
        *_dropped(outdated),
        # From now on, a missing part of the guard goes on record.
        _registered(guard, relations[0]),
        # The particulars of its refusals outlive the rollback.
        "SELECT fencing.keep_refusals_v1();",
    ])  # fmt: skip


def remove(relations: Sequence[str], functions: Sequence[str]) -> str:
    """Return the statements that remove a guard. ``relations`` as for ``install``; ``functions`` are the guard's."""
    return "\n".join([
        f"DROP TRIGGER IF EXISTS {ROW} ON {relations[0]};",
        *(f"DROP TRIGGER IF EXISTS {name} ON {relations[0]};" for name, _ in BY_STATEMENT.values()),
        *(f"DROP TRIGGER IF EXISTS {name} ON {one};" for one in relations for name in (STATEMENT, TRUNCATE)),
        *(on_truncate(one, wanted=False) for one in relations),
        *_dropped(functions),
        f"SELECT fencing.guard_removed_v1({string(relations[0])});",
    ])  # fmt: skip


_OF_WRITERS = (
    "hold(text, text, text, boolean)",
    "acquire(text, text, double precision, text, text, boolean)",
    "renew(text, uuid, double precision)",
    "release(text, text, text)",
)


def grants(role: str) -> str:
    """Return the statements that let a role acquire locks and claim tokens, without a right on any table of fencing."""
    return "\n".join([
        f"GRANT USAGE ON SCHEMA fencing TO {quote(role)};",
        *(f"GRANT EXECUTE ON FUNCTION fencing.{function} TO {quote(role)};" for function in _OF_WRITERS),
    ])  # fmt: skip


def _rows(guard: Guard, relation: str, function: str) -> Iterator[str]:
    """Return the triggers that check rows. AFTER: whatever other triggers have made of a row is what is checked."""
    if not guard.by_statement:
        yield from (f"DROP TRIGGER IF EXISTS {name} ON {relation};" for name, _ in BY_STATEMENT.values())
        # Partitions get it by themselves.
        yield _trigger(guard, ROW, "AFTER INSERT OR UPDATE OR DELETE", relation, function)
        return
    for event, (name, shown) in BY_STATEMENT.items():
        yield _trigger(guard, name, f"AFTER {event}", relation, function, f" REFERENCING {shown}")
    # Writes through a parent would fire only the parent's triggers for statements. PostgreSQL gives no parent to a
    # table that has a trigger for rows with a transition table. This one never fires.
    yield (
        f"CREATE OR REPLACE TRIGGER {ROW} AFTER DELETE ON {relation} REFERENCING OLD TABLE AS {_OLD}\n"
        f"    FOR EACH ROW WHEN (false)\n"
        f"    EXECUTE FUNCTION {function}({', '.join(string(argument) for argument in guard.arguments)});"
    )


def _naming(guard: Guard) -> Iterator[str]:
    """Return the function that names rows which no trigger has seen."""
    body, function = guard.naming_body, f"fencing.{guard.naming}(anyelement)"
    yield f"CREATE OR REPLACE FUNCTION {function} RETURNS text LANGUAGE plpgsql STABLE {_SETTINGS}"
    yield f"AS $named_{_digest(body)}${body}$named_{_digest(body)}$;"
    yield f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC;"


def _registered(guard: Guard, relation: str) -> str:
    watches = str(guard.watches).lower()
    return f"SELECT fencing.guard_installed_v1({string(relation)}, {string(guard.target)}, {watches});"


def _dropped(functions: Sequence[str]) -> Iterator[str]:
    for name in functions:
        yield f"DROP FUNCTION fencing.{quote(name)};"
        yield f"DROP FUNCTION IF EXISTS fencing.{quote(naming_function(name))}(anyelement);"


def _trigger(guard: Guard, name: str, moment: str, relation: str, function: str | None = None, shown: str = "") -> str:
    level = "ROW" if name == ROW else "STATEMENT"
    called = function or {STATEMENT: "fencing.guard_statement_v1", TRUNCATE: "fencing.guard_truncate_v1"}[name]
    # The one condition that costs the gateway next to nothing, and that a session cannot change: not by SET ROLE. The
    # gateway names the rows of its own statements, but not those that cascades and triggers of these change. PostgreSQL
    # looks at the depth when the row changes. A function would find that of the gateway's own writes in a cascade.
    beside = f"SESSION_USER <> {string(guard.role)}"
    if function is not None:
        beside += " OR pg_catalog.pg_trigger_depth() > 0"
    condition = "" if name == ROW and guard.watches else f" WHEN ({beside})"
    return (
        f"CREATE OR REPLACE TRIGGER {name} {moment} ON {relation}{shown}\n"
        f"    FOR EACH {level}{condition}\n"
        f"    EXECUTE FUNCTION {called}({', '.join(string(argument) for argument in guard.arguments)});"
    )


def _restored(column: Column) -> str:
    return _RESTORED.get(column.base_type, "text") or column.base_type


def _taken(row: str, part: Column, column: Column) -> str:
    return f"{part.name} := {_text(row, column)};"


def _text(row: str, column: Column) -> str:
    value = f"{row}.{quote(column.name)}"
    return f"CASE WHEN {value} IS NOT NULL THEN format('%s', {value}) END"


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


# Behind a stock PostgREST --------------------------------------------------------------------------------------------

FUNCTION = "fencing.postgrest_pre_request"
"""A ``db-pre-request`` function for a stock PostgREST or Supabase. It runs in the transaction of the request, as a
statement before the one that writes, and tells the triggers which tokens the headers show.
"""

_PACK = """\
-- Fencing tokens for a stock PostgREST, by its setting db-pre-request. Needs the schema of `gateway migrate`, and, for
-- each table that is to be fenced, the triggers of `gateway guard install`.
--
-- A request sends its token as to the gateway, and always says for which resource:
--     Fencing-Token: 34           (or X-Fencing-Token)
--     Fencing-Resource: order/5
--     Fencing-Holder: worker-7    (optional)
-- or several: Fencing-Token: order/5=34, stock/9=2.12
--
-- Refusals have PostgREST's statuses: 412 overtaken, 428 no token, 422 another resource's row, 400 malformed,
-- 503 an object write of an older holder is pending, which only the gateway's barrier settles.
--
-- What it cannot check, and the gateway can:
-- - It sees neither the query string nor the body, so it derives no resource. Which rows a request touches is verified
--   by the triggers, and only on tables that have them. On any other table a token raises the fence, and that is all.
-- - Functions (rpc) are verified by what they do to such tables, nothing else.
-- - A header that is sent twice reaches it once: PostgREST hands on one value.
-- - Refusals undo what their transaction has written. They are in the server's log, and in sequences, until a gateway
--   puts them on record, or SELECT * FROM fencing.record_refusals_v2(NULL) as the owner of the schema.
-- - Requests that read claim nothing: read after the barrier, or after a write.

CREATE OR REPLACE FUNCTION {function}() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $pack$
DECLARE
    sent jsonb := '{{}}';
    header record;
    claim record;
BEGIN
    IF current_setting('request.method', true) IN ('GET', 'HEAD', 'OPTIONS') THEN
        RETURN;
    END IF;
    -- From here on refusals carry PostgREST's kind of code, those of the triggers too.
    PERFORM set_config('fencing.dialect', 'postgrest', true);
    -- Some proxies fold "_" into "-": two spellings of one header must not smuggle in a second token.
    FOR header IN
        SELECT regexp_replace(replace(lower(h.name), '_', '-'), '^x-fencing-token$', 'fencing-token') AS name, h.value
        FROM jsonb_each_text(nullif(current_setting('request.headers', true), '')::jsonb) AS h (name, value)
    LOOP
        CONTINUE WHEN header.name NOT IN ('fencing-token', 'fencing-resource', 'fencing-holder');
        IF sent ? header.name THEN
            RAISE EXCEPTION USING ERRCODE = 'PT400', MESSAGE = format('The request carries %s twice.', header.name),
                HINT = 'Send it once, in one spelling.';
        END IF;
        sent := sent || jsonb_build_object(header.name, header.value);
    END LOOP;
    IF NOT sent ? 'fencing-token' THEN
        RETURN;
    ELSIF NOT sent ? 'fencing-resource' AND sent ->> 'fencing-token' NOT LIKE '%=%' THEN
        RAISE EXCEPTION USING ERRCODE = 'PT422', MESSAGE = 'The resource of the fencing token is not named.',
            HINT = 'Name it in Fencing-Resource: it is not derived from the query here.';
    ELSIF sent ? 'fencing-resource' AND sent ->> 'fencing-token' LIKE '%=%' THEN
        RAISE EXCEPTION USING ERRCODE = 'PT400',
            MESSAGE = 'The pairs in Fencing-Token name their resources themselves.',
            HINT = 'Leave out Fencing-Resource.';
    END IF;
    FOR claim IN
        -- In the order of names, as everybody locks.
        SELECT p.pair, split_part(p.pair, '=', 1) AS resource, substr(p.pair, strpos(p.pair, '=') + 1) AS token,
            count(*) OVER (PARTITION BY split_part(p.pair, '=', 1)) AS times
        FROM (
            SELECT btrim(u.pair, E' \\t') FROM unnest(string_to_array(sent ->> 'fencing-token', ',')) AS u (pair)
            WHERE NOT sent ? 'fencing-resource'
            UNION ALL
            SELECT (sent ->> 'fencing-resource') || '=' || (sent ->> 'fencing-token') WHERE sent ? 'fencing-resource'
        ) AS p (pair)
        ORDER BY split_part(p.pair, '=', 1) COLLATE "C"
    LOOP
        IF claim.pair NOT LIKE '%=%' THEN
            RAISE EXCEPTION USING ERRCODE = 'PT400',
                MESSAGE = 'Fencing-Token mixes pairs of resource=token with something else.',
                HINT = 'Send one token, or a list such as ''order/5=34, stock/9=2.12''.';
        ELSIF claim.times > 1 THEN
            RAISE EXCEPTION USING ERRCODE = 'PT400',
                MESSAGE = format('The request carries two fencing tokens for %s.', left(claim.resource, 512)),
                HINT = 'Send one for each.';
        END IF;
        PERFORM fencing.hold(claim.resource, claim.token, sent ->> 'fencing-holder');
    END LOOP;
END
$pack$;
REVOKE ALL ON FUNCTION {function}() FROM PUBLIC;

-- PostgREST calls it with the role of the request. The schema fencing itself must not be among db-schemas.
{grants}

-- db-pre-request = "{function}" in the configuration of PostgREST, or on Supabase:
--     ALTER ROLE authenticator SET pgrst.db_pre_request = '{function}';
--     NOTIFY pgrst, 'reload config';
"""


def pack(roles: Sequence[str]) -> str:
    """Return the script. ``roles``, such as ``authenticated``, get grants; without any, they are comments."""
    lines = [line for role in roles for line in _grants(quote(role))]
    lines = lines or [f"-- {line}" for line in _grants("authenticated")]
    return _PACK.format(function=FUNCTION, grants="\n".join(lines))


def _grants(role: str) -> tuple[str, str]:
    return (
        f"GRANT USAGE ON SCHEMA fencing TO {role};",
        f"GRANT EXECUTE ON FUNCTION {FUNCTION}() TO {role};",
    )
