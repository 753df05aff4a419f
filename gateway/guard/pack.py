"""The guard behind a stock PostgREST or Supabase: a ``db-pre-request`` function that claims the headers' tokens.

It runs in the transaction of the request, as a statement before the one that writes. It tells the guard's triggers
which tokens are held. Text only, no database.
"""

from collections.abc import Sequence

from gateway.tables.sql.expressions import quote

FUNCTION = "fencing.postgrest_pre_request"

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
