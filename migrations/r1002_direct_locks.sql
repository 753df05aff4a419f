-- Locks of sessions that have no gateway: those of the lease service, by the same functions.

-- Begin a step. The rows that it locks stay locked until its transaction ends, and gateways wait for them. So the server
-- ends a session that idles in the transaction for longer than a gateway waits.
-- Returns the caller. Raises FN503 if the database was not opened: what was lost may include tokens.
CREATE FUNCTION fencing.direct_caller_v1() RETURNS text
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    PERFORM fencing.check_open_v1();
    PERFORM set_config('idle_in_transaction_session_timeout', '10s', true)
    WHERE current_setting('idle_in_transaction_session_timeout')::interval NOT BETWEEN '1 ms' AND '10 s';
    RETURN fencing.session_role_v1();
END
$function$;
REVOKE ALL ON FUNCTION fencing.direct_caller_v1 FROM PUBLIC;

-- Ask for a lock. Idempotent: a holder has one lease, one place in the queue, and one token.
-- Takes the lock, a name of the holder, seconds of TTL, a name of the request, the mode, and whether to wait in the queue.
-- A session that waits asks again; after five seconds without a question it loses its place.
-- Returns `outcome` as acquire_v1 does: granted, with the id of the lease, its token and the seconds it lasts. Otherwise
-- it is upgrade, exhausted, waiting or held, with the holder that is in the way and the seconds of its lease.
-- Raises FN400 for a name, TTL or mode that no lease has. Raises FN409 in a transaction whose snapshot does not move, and
-- FN503 if the database was not opened. A token counts once the transaction has committed.
CREATE FUNCTION fencing.acquire(
    resource text, holder text, ttl double precision, request text, mode text DEFAULT 'exclusive',
    wait boolean DEFAULT false,
    OUT outcome text, OUT lease uuid, OUT token text, OUT expires_in double precision, OUT held_by text
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    -- A waiter has no gateway with heartbeats. Its place lasts for some seconds, as between two requests to a gateway.
    no_gateway CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
    lasts CONSTANT double precision := 5;
    caller text := fencing.direct_caller_v1();
    asked record;
BEGIN
    IF fencing.canonical_v1(acquire.resource) IS NOT TRUE THEN
        PERFORM fencing.word_refusal_v1('resource-malformed', acquire.resource, NULL, NULL, NULL, NULL);
    ELSIF acquire.holder IS NULL OR acquire.holder COLLATE "C" !~ '^[!-~]([ -~]{0,198}[!-~])?$' THEN
        PERFORM fencing.word_refusal_v1('holder-malformed', acquire.resource, NULL, NULL, NULL, NULL);
    ELSIF acquire.mode NOT IN ('exclusive', 'shared') OR acquire.ttl NOT BETWEEN 0.1 AND 86400
        OR acquire.request !~ '^[!-~]{1,64}$' OR num_nulls(acquire.mode, acquire.ttl, acquire.request) > 0
    THEN
        RAISE EXCEPTION USING ERRCODE = 'FN400', MESSAGE = 'No lease has this mode, TTL or name of a request.',
            DETAIL = jsonb_build_object('code', 'request-malformed')::text,
            HINT = 'Ask for exclusive or shared, for 0.1 to 86400 seconds, with a name of 1 to 64 ASCII characters.';
    ELSIF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION USING ERRCODE = 'FN409', MESSAGE = 'A lock cannot be acquired in a transaction of this isolation.',
            DETAIL = jsonb_build_object('code', 'isolation', 'resource', acquire.resource)::text,
            HINT = 'Acquire it in a READ COMMITTED transaction of its own: another snapshot may be older than a lease.';
    END IF;
    PERFORM set_config('synchronous_commit', 'on', true)
    WHERE current_setting('synchronous_commit') IN ('off', 'local');
    IF acquire.wait THEN
        -- It never ends, so acquire_v1 leaves its row alone: waiters of one lock would wait for those of another.
        INSERT INTO fencing.attendant (id, until) VALUES (no_gateway, 'infinity') ON CONFLICT DO NOTHING;
    END IF;
    SELECT * INTO asked FROM fencing.acquire_v1(
        acquire.resource, acquire.holder, caller, acquire.mode, acquire.request, acquire.ttl, 0,
        CASE WHEN acquire.wait THEN no_gateway END, lasts, lasts);
    IF asked.outcome = 'waiting' THEN
        PERFORM fencing.leave_v1(no_gateway, ARRAY[acquire.resource], ARRAY[asked.ticket], lasts);
    END IF;
    outcome := asked.outcome;
    IF outcome = 'granted' THEN
        lease := (asked.lease).id;
        token := fencing.token_v1((asked.lease).epoch, (asked.lease).value);
        expires_in := asked.expires_in;
        RETURN;
    END IF;
    SELECT l.holder, extract(epoch FROM l.expires_at - clock_timestamp()) INTO held_by, expires_in
    FROM fencing.lease l WHERE l.resource = acquire.resource AND l.expires_at > clock_timestamp()
    ORDER BY l.expires_at DESC LIMIT 1;
END
$function$;
REVOKE ALL ON FUNCTION fencing.acquire FROM PUBLIC;

-- Renew a lease of this role.
-- Takes the lock, the id of the lease, and seconds of TTL; null keeps the old one.
-- Returns the seconds it lasts. Null if it has lapsed, was released or was broken, or is another role's.
CREATE FUNCTION fencing.renew(resource text, lease uuid, ttl double precision DEFAULT NULL) RETURNS double precision
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    caller text := fencing.direct_caller_v1();
BEGIN
    IF renew.ttl NOT BETWEEN 0.1 AND 86400 THEN
        RAISE EXCEPTION USING ERRCODE = 'FN400', MESSAGE = 'No lease has this TTL.',
            DETAIL = jsonb_build_object('code', 'request-malformed')::text, HINT = 'Ask for 0.1 to 86400 seconds.';
    END IF;
    RETURN (
        SELECT r.expires_in FROM fencing.renew_v1(
            ARRAY[renew.resource], ARRAY[renew.lease], ARRAY[caller], ARRAY[renew.ttl]) AS r);
END
$function$;
REVOKE ALL ON FUNCTION fencing.renew FROM PUBLIC;

-- End what a request of this role has got: its lease, or its place in the queue. Does nothing if neither is there.
-- Takes the lock, the holder, and the name of the request.
CREATE FUNCTION fencing.release(resource text, holder text, request text) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    PERFORM fencing.withdraw_v1(release.resource, release.holder, fencing.direct_caller_v1(), release.request);
END
$function$;
REVOKE ALL ON FUNCTION fencing.release FROM PUBLIC;

-- A raise that fencing.hold has acknowledged survives a crash of the server.
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

-- Raise an error unless the database was opened for its present run. A session is of one run, so each transaction
-- compares once. Any session may set the setting that says so, as it may claim any token.
CREATE OR REPLACE FUNCTION fencing.check_open_v1() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF current_setting('fencing.open', true) = 'yes' THEN
        RETURN;
    ELSIF NOT fencing.is_open_v1() THEN
        RAISE EXCEPTION USING
            ERRCODE = CASE WHEN current_setting('fencing.dialect', true) = 'postgrest' THEN 'PT503' ELSE 'FN503' END,
            MESSAGE = 'The database was not opened for its present run: it may have lost fences.',
            DETAIL = jsonb_build_object('code', 'database-closed')::text,
            HINT = 'Retry: a running gateway opens it at once, and if not, gateway doctor says why. '
                'Without a gateway, the operator runs: gateway open --dsn OWNER';
    END IF;
    PERFORM set_config('fencing.open', 'yes', true);
END
$function$;
