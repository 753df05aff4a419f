-- The queues of locks: expired leases end, the lock goes to the next waiter, and waiters come and go.
-- See leases.sql for the rules that all these functions follow.

-- End the leases of a lock whose time is over. This happens here and nowhere else: what is in the table afterwards is
-- held.
CREATE FUNCTION fencing.lapse_v1(p_resource text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    lapsed fencing.lease;
BEGIN
    FOR lapsed IN
        DELETE FROM fencing.lease l WHERE l.resource = p_resource AND l.expires_at <= clock_timestamp() RETURNING l.*
    LOOP
        -- No client was told of an unconfirmed lease: there is no delay to keep, and nothing to record.
        CONTINUE WHEN NOT lapsed.confirmed;
        IF lapsed.delay > 0 THEN
            UPDATE fencing.lock l
            SET delayed_until = greatest(l.delayed_until, lapsed.expires_at + make_interval(secs => lapsed.delay))
            WHERE l.resource = p_resource;
        END IF;
        PERFORM fencing.record_lease_v1('lease-expired', lapsed, lapsed.caller, NULL);
    END LOOP;
END
$function$;

-- Give the lock to the next in its queue: the first living waiter, or all sharing waiters until the first exclusive one.
-- The new holder has to collect the lease by acquiring it.
-- Returns `handed`, the ticket up to which all waiters have been served or are dead; `look_in`, the seconds until there
-- may be more to hand over; `exhausted`, whether this epoch has no higher token.
-- Announces on the channel fencing_lease, which listeners receive when the transaction commits.
CREATE FUNCTION fencing.hand_over_v1(
    p_resource text, OUT handed bigint, OUT look_in double precision, OUT exhausted boolean
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    head fencing.living_waiter;
    held boolean;
    shared boolean;
    free_at timestamptz;
    delayed_until timestamptz;
    token record;
    next_exclusive bigint;
BEGIN
    exhausted := false;
    SELECT * INTO head FROM fencing.living_waiter w WHERE w.resource = p_resource ORDER BY w.ticket LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT count(*) > 0, bool_and(l.mode = 'shared'), max(l.expires_at) INTO held, shared, free_at
    FROM fencing.lease l WHERE l.resource = p_resource;
    SELECT l.delayed_until INTO delayed_until FROM fencing.lock l
    WHERE l.resource = p_resource AND l.delayed_until > clock_timestamp();
    IF delayed_until IS NULL AND (NOT held OR shared AND head.mode = 'shared') THEN
        token := fencing.issue_v1(p_resource);
        exhausted := token.value IS NULL;
        IF NOT exhausted THEN
            IF head.mode = 'shared' THEN
                SELECT min(w.ticket) INTO next_exclusive FROM fencing.living_waiter w
                WHERE w.resource = p_resource AND w.mode = 'exclusive';
            ELSE
                next_exclusive := head.ticket + 1;
            END IF;
            WITH handed_over AS (
                INSERT INTO fencing.lease (
                    resource, holder, caller, mode, epoch, value, request, ttl, delay, confirmed, ticket, attendant,
                    expires_at)
                SELECT p_resource, w.holder, w.caller, w.mode, token.epoch, token.value, w.request, w.ttl, w.delay,
                    false, w.ticket, w.attendant, clock_timestamp() + make_interval(secs => least(w.ttl, w.collect))
                FROM fencing.living_waiter w
                WHERE w.resource = p_resource AND w.ticket >= head.ticket
                  AND (next_exclusive IS NULL OR w.ticket < next_exclusive)
                RETURNING lease.ticket, lease.expires_at
            )
            SELECT max(h.ticket), greatest(free_at, max(h.expires_at)) INTO handed, free_at FROM handed_over h;
            DELETE FROM fencing.waiter w WHERE w.resource = p_resource AND w.ticket <= handed;
        END IF;
    END IF;
    look_in := extract(epoch FROM greatest(free_at, delayed_until) - clock_timestamp());
    IF handed IS NOT NULL THEN
        PERFORM pg_notify('fencing_lease', concat_ws(' ', handed, look_in, p_resource));
    END IF;
END
$function$;

-- Return the place of a holder in the queue, from 1, or the place that it would get.
CREATE FUNCTION fencing.place_v1(p_resource text, p_holder text, p_caller text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
BEGIN
    RETURN 1 + (
        SELECT count(*) FROM fencing.living_waiter w
        WHERE w.resource = p_resource AND w.ticket < coalesce((
            SELECT own.ticket FROM fencing.waiter own
            WHERE own.resource = p_resource AND own.holder = p_holder AND own.caller = p_caller
        ), 9223372036854775807)
    );
END
$function$;

-- End what has lapsed and hand the lock over.
-- Returns what hand_over_v1 does.
CREATE FUNCTION fencing.advance_v1(p_resource text, OUT handed bigint, OUT look_in double precision)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
BEGIN
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$;

-- End a request for a lock, whether it waits or was granted.
-- Returns what hand_over_v1 does.
CREATE FUNCTION fencing.withdraw_v1(
    p_resource text, p_holder text, p_caller text, p_request text, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    ended fencing.lease;
BEGIN
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    DELETE FROM fencing.waiter w
    WHERE w.resource = p_resource AND w.holder = p_holder AND w.caller = p_caller AND w.request = p_request;
    DELETE FROM fencing.lease l
    WHERE l.resource = p_resource AND l.holder = p_holder AND l.caller = p_caller AND l.request = p_request
    RETURNING l.* INTO ended;
    IF ended.confirmed THEN
        PERFORM fencing.record_lease_v1('lease-released', ended, p_caller, NULL);
    END IF;
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$;

-- Take waiters out of their queues that wait no longer. A waiter that has named a request keeps its place, or what
-- was handed over to it, for p_linger seconds. One that waits at another gateway by now stays.
-- Takes the attendant, and arrays of names and tickets.
-- Returns for each lock what hand_over_v1 does.
CREATE FUNCTION fencing.leave_v1(
    p_attendant uuid, p_resources text[], p_tickets bigint[], p_linger double precision
) RETURNS TABLE (resource text, handed bigint, look_in double precision)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
BEGIN
    FOR resource IN SELECT DISTINCT u.r COLLATE "C" FROM unnest(p_resources) AS u (r) ORDER BY 1 LOOP
        PERFORM FROM fencing.lock l WHERE l.resource = leave_v1.resource FOR UPDATE;
        UPDATE fencing.waiter w SET attendant = NULL, until = clock_timestamp() + make_interval(secs => p_linger)
        FROM unnest(p_resources, p_tickets) AS u (r, t)
        WHERE u.r = leave_v1.resource AND w.resource = u.r AND w.ticket = u.t AND w.attendant = p_attendant
          AND w.request IS NOT NULL;
        DELETE FROM fencing.waiter w USING unnest(p_resources, p_tickets) AS u (r, t)
        WHERE u.r = leave_v1.resource AND w.resource = u.r AND w.ticket = u.t AND w.attendant = p_attendant
          AND w.request IS NULL;
        DELETE FROM fencing.lease l USING unnest(p_resources, p_tickets) AS u (r, t)
        WHERE u.r = leave_v1.resource AND l.resource = u.r AND l.ticket = u.t AND l.attendant = p_attendant
          AND l.request IS NULL AND NOT l.confirmed;
        PERFORM fencing.lapse_v1(resource);
        SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(resource) h;
        RETURN NEXT;
    END LOOP;
END
$function$;

-- Take in the heartbeat of a gateway process.
-- Returns the tickets of its waiters that are still in queues, and the locks that a session has to look at because
-- they are free.
CREATE FUNCTION fencing.attend_v1(
    p_attendant uuid, p_attended double precision,
    OUT waiting bigint[], OUT due text[]
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
BEGIN
    INSERT INTO fencing.attendant AS a (id, until)
    VALUES (p_attendant, clock_timestamp() + make_interval(secs => p_attended))
    ON CONFLICT (id) DO UPDATE SET until = excluded.until;
    waiting := ARRAY(SELECT w.ticket FROM fencing.waiter w WHERE w.attendant = p_attendant);
    due := ARRAY(
        SELECT m.resource FROM (
            SELECT DISTINCT w.resource FROM fencing.waiter w WHERE w.attendant = p_attendant
        ) AS m
        WHERE NOT EXISTS (
            SELECT FROM fencing.lock k WHERE k.resource = m.resource AND k.delayed_until > clock_timestamp()
        ) AND (
            NOT EXISTS (
                SELECT FROM fencing.lease l WHERE l.resource = m.resource AND l.expires_at > clock_timestamp()
            ) OR (SELECT min(w.ticket) FROM fencing.waiter w WHERE w.resource = m.resource)
               < (SELECT w.ticket FROM fencing.living_waiter w WHERE w.resource = m.resource ORDER BY w.ticket LIMIT 1)
        )
        ORDER BY m.resource
    );
END
$function$;
