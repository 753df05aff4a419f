-- The guard: sessions that write a fenced table without the gateway claim tokens by fencing.hold, and triggers check.
--
-- `gateway guard install` puts the triggers on a table; docs/guard.md and docs/decisions/028 say what they see. There
-- is one rule behind all of it: the snapshot of the writing statement must be younger than the raise of the fence. A
-- trigger fires inside that statement, so it never raises. It looks at the fence with the statement's own snapshot.
-- Only where that shows exactly the token does it lock the row and look again.

-- Read a token from its text.
-- Returns nulls where the text is no token. Agrees to the letter with gateway.fencing.token.Token.parse.
CREATE FUNCTION fencing.read_token_v1(token text, OUT epoch integer, OUT value bigint)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    parts text[] := regexp_match(token COLLATE "C", '^(?:(0|[1-9][0-9]{0,9})\.)?(0|[1-9][0-9]{0,18})$');
BEGIN
    IF coalesce(parts[1], '0')::bigint <= 2147483647 AND parts[2]::numeric <= 9223372036854775807 THEN
        epoch := coalesce(parts[1], '0')::integer;
        value := parts[2]::bigint;
    END IF;
END
$function$;

-- Name the writer as the record does: by the role it has taken on, else by the one it has logged in as.
CREATE FUNCTION fencing.session_role_v1() RETURNS text LANGUAGE sql STABLE
RETURN 'role:' || coalesce(nullif(current_setting('role'), 'none'), session_user);

-- Return what tells this transaction from every other one. A strict resource remembers it as the write that used its
-- token up.
CREATE FUNCTION fencing.transaction_v1() RETURNS uuid LANGUAGE sql STABLE
RETURN md5(pg_current_xact_id()::text || ' ' || extract(epoch FROM now()))::uuid;

-- Return what the session says it holds: resource -> token and holder. Any session may set these settings, so they
-- only say which fences to look at.
CREATE FUNCTION fencing.declared_v1() RETURNS jsonb LANGUAGE sql STABLE
RETURN CASE
    WHEN current_setting('fencing.resource', true) <> '' AND current_setting('fencing.token', true) <> ''
    THEN jsonb_build_object(current_setting('fencing.resource', true), jsonb_build_object(
        'token', current_setting('fencing.token', true), 'holder', nullif(current_setting('fencing.holder', true), '')))
    ELSE '{}' END || coalesce(nullif(current_setting('fencing.held', true), '')::jsonb, '{}');

-- The reasons of refusals. A refusal is counted by its place in this list (refusals.sql).
CREATE FUNCTION fencing.reasons_v1() RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN ARRAY[
    'token-stale', 'token-duplicate', 'token-used', 'token-required', 'token-unclaimed', 'token-malformed',
    'resource-malformed', 'holder-malformed', 'resource-mismatch', 'resource-underivable', 'isolation', 'writes-pending'];

-- Word a refusal, and raise it. All wording is here.
-- Takes the reason, the resource, the token and its holder, the fence that refuses, and the table.
-- Raises class FN and the HTTP status, or PT behind PostgREST (gateway/guard/script.py), which answers with that
-- status. The server's log gets the facts even where the session catches the error: rows in a table would be undone
-- with it.
CREATE FUNCTION fencing.word_refusal_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    raised text := CASE WHEN p_fence.epoch > 0 THEN p_fence.epoch || '.' ELSE '' END || p_fence.value;
    raised_by text := coalesce(p_fence.holder, p_fence.caller, 'an unnamed holder');
    -- Cut to the longest name and token: settings and columns can have any length.
    resource text := coalesce(left(p_resource, 512), 'a row whose columns do not make up a resource name');
    facts jsonb := jsonb_strip_nulls(jsonb_build_object(
        'code', p_reason, 'resource', left(p_resource, 512), 'token', left(p_token, 64), 'holder', left(p_holder, 200),
        'fence', raised,
        'raised_by', CASE WHEN raised IS NOT NULL THEN raised_by END,
        'raised_at', to_char(p_fence.raised_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'caller', fencing.session_role_v1(), 'target', p_target));
    family text := CASE WHEN current_setting('fencing.dialect', true) = 'postgrest' THEN 'PT' ELSE 'FN' END;
    overtaken text := 'Stop writing: a newer holder has taken over and retrying cannot succeed. '
        'Acquire the lock again to get a newer token.';
    hold_first text := format(E'In the transaction of the write, before it:\nSELECT fencing.hold(%L, ''TOKEN'');\n'
        'Or run the program while it holds the lock:\ngateway run --lock %s -- PROGRAM',
        coalesce(left(p_resource, 512), 'RESOURCE'), coalesce(left(p_resource, 512), 'RESOURCE'));
    status text;
    said text;
    advice text;
BEGIN
    CASE p_reason
        WHEN 'token-stale' THEN
            status := '412';
            said := format('The fencing token %s of %s has been overtaken by %s, raised by %s.',
                p_token, resource, raised, raised_by);
            advice := overtaken;
        WHEN 'token-duplicate' THEN
            status := '412';
            said := format('Another holder, %s, uses the fencing token %s of %s.', raised_by, p_token, resource);
            advice := 'Stop writing: two holders were given one token, so the lock service is broken. '
                'Retrying cannot succeed; repair the issuer.';
        WHEN 'token-used' THEN
            status := '412';
            said := format('The fencing token %s of %s has already written.', p_token, resource);
            advice := 'This resource is strict: each token writes once. Acquire the lock again to get a newer token.';
        WHEN 'token-required' THEN
            status := '428';
            said := format('A write of %s touches %s and holds no fencing token.', p_target, resource);
            advice := hold_first;
        WHEN 'token-unclaimed' THEN
            status := '428';
            said := format('The fencing token %s of %s had not been claimed when this statement began.',
                p_token, resource);
            advice := 'A statement must not claim the token it writes with: it would miss what the holder before has '
                'just committed. ' || hold_first;
        WHEN 'token-malformed' THEN
            status := '400';
            said := format('%s is not a fencing token.', coalesce(quote_literal(left(p_token, 64)), 'null'));
            advice := 'Give digits without sign, space or leading zero, optionally ''epoch.value'', as text.';
        WHEN 'resource-malformed' THEN
            status := '400';
            said := 'The resource name is not in canonical form.';
            advice := 'Use at most 512 bytes of RFC 3986 path characters and percent-encode everything else.';
        WHEN 'holder-malformed' THEN
            status := '400';
            said := 'The name of the holder must be 1 to 200 printable ASCII characters.';
            advice := 'Correct the name, or leave it out.';
        WHEN 'resource-mismatch' THEN
            status := '422';
            said := format('A write of %s touches %s, which this transaction does not hold.', p_target, resource);
            -- At most three names, each cut: a session may declare anything.
            advice := 'Narrow the write to the resources whose locks you hold, or hold this one too. You hold '
                || coalesce((
                    SELECT string_agg(left(name, 128), ', ' ORDER BY name) FILTER (WHERE number <= 3)
                           || CASE WHEN count(*) > 3 THEN format(' and %s more', count(*) - 3) ELSE '' END
                    FROM (SELECT name, row_number() OVER (ORDER BY name) AS number
                          FROM jsonb_object_keys(fencing.declared_v1()) AS name) AS held), 'none') || '.';
        WHEN 'resource-underivable' THEN
            status := '422';
            said := format('TRUNCATE %s touches every row, whatever its resource.', p_target);
            advice := 'Use DELETE with conditions that pick the rows of the resources you hold.';
        WHEN 'isolation' THEN
            status := '409';
            said := format('The fencing token %s of %s cannot be claimed in a %s transaction.',
                p_token, resource, upper(current_setting('transaction_isolation')));
            advice := 'Its snapshot may be older than what the holder before has committed. Claim it in a READ '
                'COMMITTED transaction of its own first; then it can be held here.';
        WHEN 'writes-pending' THEN
            status := '503';
            said := format('An object write of an older holder is pending on %s.', resource);
            advice := format('Only the gateway can settle it. Call its barrier, POST /v1/fences/%s/barrier, then '
                'start this transaction again.', resource);
    END CASE;
    RAISE LOG 'fencing: refused %', facts;
    RAISE EXCEPTION USING ERRCODE = family || status, MESSAGE = said, DETAIL = facts::text, HINT = advice;
END
$function$;

-- Keep the particulars of a refusal, then raise it.
-- Takes and raises what word_refusal_v1 does.
CREATE FUNCTION fencing.refuse_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    PERFORM fencing.keep_refusal_v1(p_reason, p_resource, p_token, p_holder, p_fence, p_target);
    PERFORM fencing.word_refusal_v1(p_reason, p_resource, p_token, p_holder, p_fence, p_target);
END
$function$;

-- Claim a token, and note for the triggers what is held. It claims as claim_v1 does, in a statement of its own before
-- the write. It runs with the rights of its owner: a writer needs none on the tables of this schema.
-- A gateway checks once for each session that its database is open. A writer's session may be a pooler's, so each
-- transaction checks it.
-- Takes the resource, the token as text, a name of the holder, and whether the resource is strict.
-- Returns the decision: raised or held. Raises a refusal, which undoes the claim, the raise included.
CREATE FUNCTION fencing.hold(resource text, token text, holder text DEFAULT NULL, strict boolean DEFAULT false)
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    shown record := fencing.read_token_v1(hold.token);
    claimed record;
    reason text;
BEGIN
    -- No writer says of itself that its raises are in the journal.
    PERFORM set_config('fencing.secured', '', true);
    PERFORM fencing.check_open_v1();
    reason := CASE
        WHEN fencing.canonical_v1(hold.resource) IS NOT TRUE THEN 'resource-malformed'
        WHEN shown.value IS NULL THEN 'token-malformed'
        WHEN hold.holder COLLATE "C" !~ '^[!-~]([ -~]{0,198}[!-~])?$' THEN 'holder-malformed'
        -- At these levels the snapshot does not move while the claim waits. A token that it already shows may be held.
        WHEN current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AND NOT EXISTS (
            SELECT FROM fencing.fence f
            WHERE f.resource = hold.resource AND (f.epoch, f.value) >= (shown.epoch, shown.value)) THEN 'isolation'
        END;
    IF reason IS NOT NULL THEN
        PERFORM fencing.refuse_v1(reason, hold.resource, hold.token, hold.holder, NULL, NULL);
    END IF;
    claimed := fencing.claim_v1(hold.resource, shown.epoch, shown.value, hold.holder, fencing.session_role_v1(),
        coalesce(hold.strict, false), fencing.transaction_v1());
    IF claimed.decision NOT IN ('raised', 'held') THEN
        PERFORM fencing.refuse_v1(claimed.decision, hold.resource, hold.token, hold.holder, claimed.fence, NULL);
    ELSIF claimed.pending THEN
        PERFORM fencing.refuse_v1('writes-pending', hold.resource, hold.token, hold.holder, claimed.fence, NULL);
    ELSIF claimed.decision = 'raised' THEN
        -- A raise that was acknowledged survives a crash of the server, whatever the database's default is.
        PERFORM set_config('synchronous_commit', 'on', true)
        WHERE current_setting('synchronous_commit') IN ('off', 'local');
    END IF;
    PERFORM set_config('fencing.held', (
        coalesce(nullif(current_setting('fencing.held', true), '')::jsonb, '{}')
        || jsonb_build_object(hold.resource, jsonb_build_object('token', hold.token, 'holder', hold.holder))
    )::text, true);
    RETURN claimed.decision;
END
$function$;
REVOKE ALL ON FUNCTION fencing.hold FROM PUBLIC;

-- Lock a fence against the next raise, and return its newest version. VOLATILE, unlike its callers.
CREATE FUNCTION fencing.guard_lock_v1(p_resource text) RETURNS fencing.fence
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    fence fencing.fence;
BEGIN
    SELECT * INTO STRICT fence FROM fencing.fence f WHERE f.resource = p_resource FOR SHARE;
    RETURN fence;
END
$function$;

-- Judge a write of one resource by what the session says it holds.
-- Returns the reason of the objection, null if there is none, with token, holder and fence.
-- STABLE on purpose, all the way down from the trigger: a STABLE function sees what the statement sees that called
-- it. Each statement in a VOLATILE function takes a snapshot of its own. So a fence that carries the token here was
-- raised before the writing statement began. That statement sees all that the holder before had written. Only then
-- does guard_lock_v1 lock the row and show its newest version.
CREATE FUNCTION fencing.guard_judge_v1(
    p_resource text, p_strict boolean, OUT reason text, OUT token text, OUT holder text, OUT fence fencing.fence
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    declared jsonb := fencing.declared_v1();
    shown record;
BEGIN
    IF p_resource IS NULL OR NOT declared ? p_resource THEN
        reason := CASE WHEN declared = '{}' THEN 'token-required' ELSE 'resource-mismatch' END;
        RETURN;
    END IF;
    token := declared -> p_resource ->> 'token';
    holder := declared -> p_resource ->> 'holder';
    shown := fencing.read_token_v1(token);
    IF shown.value IS NULL THEN
        reason := 'token-malformed';
        RETURN;
    END IF;
    SELECT * INTO fence FROM fencing.fence f WHERE f.resource = p_resource;
    IF fence.resource IS NULL OR (fence.epoch, fence.value) < (shown.epoch, shown.value) THEN
        reason := 'token-unclaimed';
        RETURN;
    END IF;
    IF (fence.epoch, fence.value) = (shown.epoch, shown.value) THEN
        fence := fencing.guard_lock_v1(p_resource);
    END IF;
    reason := CASE
        WHEN (fence.epoch, fence.value) > (shown.epoch, shown.value) THEN 'token-stale'
        WHEN holder <> fence.holder THEN 'token-duplicate'
        WHEN p_strict AND fence.write_id IS NULL THEN 'token-unclaimed'
        WHEN p_strict AND fence.write_id <> fencing.transaction_v1() THEN 'token-used'
        WHEN EXISTS (
            SELECT FROM fencing.intent i
            WHERE i.resource = p_resource AND (i.epoch, i.value) < (shown.epoch, shown.value)) THEN 'writes-pending'
        END;
END
$function$;

-- Put on record what a guard objects to that only observes: once for each transaction, resource, reason and table.
-- Notes of this transaction are still in the intake: nothing is sealed before it is committed.
CREATE FUNCTION fencing.guard_note_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text, p_operation text
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    shown record := fencing.read_token_v1(p_token);
    noted_in text := 'transaction/' || pg_current_xact_id();
BEGIN
    INSERT INTO fencing.intake (
        kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method, target, client, request_id,
        fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details)
    SELECT 'rejection', 'tables', p_target, left(p_resource, 512), p_reason, false, shown.epoch, shown.value,
        left(p_holder, 200), fencing.session_role_v1(), p_operation, p_target, host(inet_client_addr()), noted_in,
        p_fence.epoch, p_fence.value, p_fence.holder, p_fence.caller, p_fence.raised_at,
        jsonb_strip_nulls(jsonb_build_object(
            'by', 'guard',
            'program', nullif(current_setting('application_name'), ''),
            -- Only the first note of a transaction has it: current_query() copies a statement that may name many rows.
            'statement', CASE WHEN NOT EXISTS (
                SELECT FROM fencing.intake i WHERE i.request_id LIKE 'transaction/%' AND i.request_id = noted_in
            ) THEN fencing.first_words_v1(current_query()) END))
    WHERE NOT EXISTS (
        SELECT FROM fencing.intake i
        WHERE i.request_id LIKE 'transaction/%' AND i.request_id = noted_in
          AND (i.resource, i.reason, i.target) = (left(p_resource, 512), p_reason, p_target));
END
$function$;

-- Check a write of one resource.
-- Returns nothing where it passes or the guard only observes; else raises a refusal. A database that was put back may
-- show a token that was overtaken, so nothing passes until it is open.
CREATE FUNCTION fencing.guard_v1(
    p_resource text, p_target text, p_operation text, p_observe boolean, p_strict boolean
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    judged record := fencing.guard_judge_v1(p_resource, p_strict);
BEGIN
    IF NOT p_observe THEN
        PERFORM fencing.check_open_v1();
    END IF;
    IF judged.reason IS NULL THEN
        RETURN;
    ELSIF p_observe THEN
        PERFORM fencing.guard_note_v1(
            judged.reason, coalesce(p_resource, p_target), judged.token, judged.holder, judged.fence, p_target,
            p_operation);
    ELSE
        PERFORM fencing.refuse_v1(judged.reason, p_resource, judged.token, judged.holder, judged.fence, p_target);
    END IF;
END
$function$;

-- Lock a fence against the next raise, if its newest version still carries the token.
-- Returns whether it does. VOLATILE, unlike its callers.
CREATE FUNCTION fencing.guard_locked_v1(p_resource text, p_epoch integer, p_value bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
    PERFORM FROM fencing.fence f
    WHERE f.resource = p_resource AND f.epoch = p_epoch AND f.value = p_value FOR SHARE;
    RETURN FOUND;
END
$function$;

-- Do what guard_v1 does, with less work for a write that passes, which is nearly every one.
-- One query with the statement's snapshot answers all of the judgement's questions. If it confirms nothing, or the
-- resource is strict, guard_v1 judges from the beginning.
-- It has no settings of its own: each of them would cost more than a comparison. It runs within trigger functions that
-- have them, and no other session may call it.
CREATE FUNCTION fencing.guard_v2(
    p_resource text, p_target text, p_operation text, p_observe boolean, p_strict boolean
) RETURNS void LANGUAGE plpgsql STABLE AS $function$
DECLARE
    held text := current_setting('fencing.held', true);
    token text;
    named text;
    fence record;
BEGIN
    IF held <> '' THEN
        token := held::jsonb -> p_resource ->> 'token';
        named := held::jsonb -> p_resource ->> 'holder';
    ELSIF current_setting('fencing.resource', true) = p_resource THEN
        token := current_setting('fencing.token', true);
        named := nullif(current_setting('fencing.holder', true), '');
    END IF;
    IF token IS NOT NULL AND NOT p_strict THEN
        SELECT f.epoch, f.value INTO fence FROM fencing.fence f
        WHERE f.resource = p_resource
          AND CASE WHEN f.epoch = 0 THEN f.value::text ELSE f.epoch || '.' || f.value END = token
          AND (f.holder = named) IS NOT FALSE
          AND NOT EXISTS (
              SELECT FROM fencing.intent i
              WHERE i.resource = f.resource AND (i.epoch, i.value) < (f.epoch, f.value));
        IF FOUND AND fencing.guard_locked_v1(p_resource, fence.epoch, fence.value) THEN
            IF NOT p_observe AND current_setting('fencing.open', true) IS DISTINCT FROM 'yes' THEN
                IF NOT fencing.is_open_v2() THEN
                    PERFORM fencing.check_open_v1();
                END IF;
                PERFORM set_config('fencing.open', 'yes', true);
            END IF;
            RETURN;
        END IF;
    END IF;
    PERFORM fencing.guard_v1(p_resource, p_target, p_operation, p_observe, p_strict);
END
$function$;
REVOKE ALL ON FUNCTION fencing.guard_locked_v1, fencing.guard_v2 FROM PUBLIC;

-- The triggers that do not depend on the table. Their arguments are: enforce or observe; accept or strict; the role
-- that is let through; the template; the table as the record names it. `gateway guard install` makes the trigger for
-- rows.

-- Check, before the first row, what the session says it holds. Without this a statement that finds no row would pass
-- under a stale token. It also makes a direct writer lock as the gateway does, fences before rows.
CREATE FUNCTION fencing.guard_statement_v1() RETURNS trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    name text;
BEGIN
    IF coalesce(current_setting('fencing.held', true), '') = '' THEN
        -- One resource at most, which is common, and needs no set to be sorted.
        name := current_setting('fencing.resource', true);
        IF name <> '' AND current_setting('fencing.token', true) <> '' THEN
            PERFORM fencing.guard_v2(name, TG_ARGV[4], TG_OP, TG_ARGV[0] = 'observe', false);
        END IF;
        RETURN NULL;
    END IF;
    FOR name IN SELECT k.name FROM jsonb_object_keys(fencing.declared_v1()) AS k (name) ORDER BY k.name COLLATE "C" LOOP
        PERFORM fencing.guard_v2(name, TG_ARGV[4], TG_OP, TG_ARGV[0] = 'observe', false);
    END LOOP;
    RETURN NULL;
END
$function$;

-- Check a TRUNCATE, which fires nothing for its rows: only one name for the whole table can be checked.
CREATE FUNCTION fencing.guard_truncate_v1() RETURNS trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF TG_ARGV[3] NOT LIKE '%{%' THEN
        PERFORM fencing.guard_v1(TG_ARGV[3], TG_ARGV[4], TG_OP, TG_ARGV[0] = 'observe', TG_ARGV[1] = 'strict');
    ELSIF TG_ARGV[0] = 'observe' THEN
        PERFORM fencing.guard_note_v1('resource-underivable', TG_ARGV[4], NULL, NULL, NULL, TG_ARGV[4], TG_OP);
    ELSE
        PERFORM fencing.refuse_v1('resource-underivable', TG_ARGV[4], NULL, NULL, NULL, TG_ARGV[4]);
    END IF;
    RETURN NULL;
END
$function$;
REVOKE ALL ON FUNCTION fencing.guard_statement_v1, fencing.guard_truncate_v1 FROM PUBLIC;
