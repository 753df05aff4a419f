-- A guard refuses while the database is closed, also a session that only sets its token. fencing.hold did already.

-- Raise an error unless the database was opened for its present run. A session is of one run, so each transaction
-- compares once. Any session may set the setting that says so, as it may claim any token.
CREATE FUNCTION fencing.check_open_v1() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF current_setting('fencing.open', true) = 'yes' THEN
        RETURN;
    ELSIF NOT fencing.is_open_v1() THEN
        RAISE EXCEPTION USING
            ERRCODE = CASE WHEN current_setting('fencing.dialect', true) = 'postgrest' THEN 'PT503' ELSE 'FN503' END,
            MESSAGE = 'The database was not opened for its present run: it may have lost fences.',
            DETAIL = jsonb_build_object('code', 'database-closed')::text,
            HINT = 'Retry: a running gateway opens it at once. If none does, gateway doctor says why.';
    END IF;
    PERFORM set_config('fencing.open', 'yes', true);
END
$function$;

-- Claim a token, and note for the triggers what is held. It claims as claim_v1 does, in a statement of its own before
-- the write. It runs with the rights of its owner: a writer needs none on the tables of this schema.
-- A gateway checks once for each session that its database is open. A writer's session may be a pooler's, so each
-- transaction checks it.
-- Takes the resource, the token as text, a name of the holder, and whether the resource is strict.
-- Returns the decision: raised or held. Raises a refusal, which undoes the claim, the raise included.
CREATE OR REPLACE FUNCTION fencing.hold(resource text, token text, holder text DEFAULT NULL, strict boolean DEFAULT false)
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
    END IF;
    PERFORM set_config('fencing.held', (
        coalesce(nullif(current_setting('fencing.held', true), '')::jsonb, '{}')
        || jsonb_build_object(hold.resource, jsonb_build_object('token', hold.token, 'holder', hold.holder))
    )::text, true);
    RETURN claimed.decision;
END
$function$;

-- Check a write of one resource.
-- Returns nothing where it passes or the guard only observes; else raises a refusal. A database that was put back may
-- show a token that was overtaken, so nothing passes until it is open.
CREATE OR REPLACE FUNCTION fencing.guard_v1(
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
