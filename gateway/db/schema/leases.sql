-- Leases: locks, who holds them, queues, and the epoch that tokens are issued in.
--
-- All work on one lock happens with its row of fencing.lock locked, so that the functions see one another's work as a
-- whole. Renewing is the one exception: it is a condition on the lease's own row. A session that works on several
-- locks takes them in the order of their names. Time is clock_timestamp() here, and nowhere else.
--
-- Functions that look into tables and queues switch some plans off. A session makes their plans while the tables are
-- empty, and keeps them while the tables grow to thousands of rows. A lock must always be found by its name, and the
-- first in its queue by the index that has them in order. Functions that they call run with the same settings.

-- The highest token issued for each lock; (0, 0) where none ever was. Never deleted: so tokens always grow.
CREATE TABLE fencing.lock (
    resource text COLLATE "C" PRIMARY KEY,
    epoch integer NOT NULL DEFAULT 0,
    value bigint NOT NULL DEFAULT 0,
    delayed_until timestamptz
) WITH (fillfactor = 70);

-- Leases that are held. There is no index on expires_at: each renewal would make an entry in it.
CREATE TABLE fencing.lease (
    resource text COLLATE "C" NOT NULL,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    holder text COLLATE "C" NOT NULL,
    caller text COLLATE "C" NOT NULL,
    mode text COLLATE "C" NOT NULL CHECK (mode IN ('exclusive', 'shared')),
    epoch integer NOT NULL,
    value bigint NOT NULL,
    request text COLLATE "C",
    ttl double precision NOT NULL,
    delay double precision NOT NULL,
    -- False while a lease that was handed over waits to be collected: until then no client has been told of it.
    confirmed boolean NOT NULL DEFAULT true,
    -- The place in the queue that it was handed over to.
    ticket bigint,
    attendant uuid,
    acquired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (resource, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- A gateway process that has waiters. They stay in the queue as long as its heartbeats arrive.
CREATE TABLE fencing.attendant (
    id uuid PRIMARY KEY,
    until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- A queue is served in the order of tickets. Each holder has one place. A place has an attendant, or lasts until a
-- moment.
CREATE TABLE fencing.waiter (
    resource text COLLATE "C" NOT NULL,
    ticket bigint GENERATED ALWAYS AS IDENTITY,
    holder text COLLATE "C" NOT NULL,
    caller text COLLATE "C" NOT NULL,
    mode text COLLATE "C" NOT NULL CHECK (mode IN ('exclusive', 'shared')),
    request text COLLATE "C",
    ttl double precision NOT NULL,
    delay double precision NOT NULL,
    -- Seconds to collect the lease in.
    collect double precision NOT NULL,
    attendant uuid,
    until timestamptz CHECK ((attendant IS NULL) = (until IS NOT NULL)),
    since timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (resource, ticket),
    UNIQUE (resource, holder, caller)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX waiter_attendant ON fencing.waiter (attendant) WHERE attendant IS NOT NULL;

-- Waiters that would still receive an answer.
CREATE VIEW fencing.living_waiter AS
SELECT w.* FROM fencing.waiter AS w LEFT JOIN fencing.attendant AS a ON a.id = w.attendant
WHERE coalesce(a.until, w.until) > clock_timestamp();

-- Which life of the database has issued the tokens: one row.
CREATE TABLE fencing.issuer (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch integer NOT NULL,
    system_identifier text NOT NULL,
    timeline text NOT NULL
);

-- Put on record what happened to a lease. Its id is left out, because a client that knows the id can end the lease.
-- Takes the kind of entry, the lease, the caller that acted and its reason. An entry about a broken lease names the
-- caller that had it.
CREATE FUNCTION fencing.record_lease_v1(p_kind text, p_lease fencing.lease, p_caller text, p_reason text)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    INSERT INTO fencing.intake (kind, resource, epoch, value, holder, caller, details)
    VALUES (p_kind, p_lease.resource, p_lease.epoch, p_lease.value, p_lease.holder, p_caller,
        jsonb_build_object('mode', p_lease.mode, 'acquired_at', p_lease.acquired_at)
        || CASE p_kind
            WHEN 'lease-granted' THEN jsonb_build_object('ttl', p_lease.ttl)
            WHEN 'lease-expired' THEN jsonb_build_object('expires_at', p_lease.expires_at)
            WHEN 'lease-broken' THEN jsonb_build_object('reason', p_reason, 'of', p_lease.caller)
            ELSE '{}' END);
END
$function$;

-- Return the epoch that tokens are issued in. A restored backup or a promoted replica may have lost tokens that were
-- issued. It is another system, or another timeline, and starts a new epoch, once. Tokens of the new epoch are above
-- whatever was lost.
CREATE FUNCTION fencing.issuer_epoch_v1() RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    here text := (SELECT s.system_identifier::text FROM pg_control_system() AS s);
    line text := left(pg_walfile_name(pg_current_wal_insert_lsn()), 8);
    known fencing.issuer;
BEGIN
    SELECT * INTO known FROM fencing.issuer;
    IF NOT FOUND THEN
        INSERT INTO fencing.issuer (epoch, system_identifier, timeline) VALUES (0, here, line) ON CONFLICT DO NOTHING;
        SELECT * INTO STRICT known FROM fencing.issuer;
    END IF;
    IF (known.system_identifier, known.timeline) = (here, line) THEN
        RETURN known.epoch;
    END IF;
    SELECT * INTO STRICT known FROM fencing.issuer FOR UPDATE;
    IF (known.system_identifier, known.timeline) <> (here, line) THEN
        UPDATE fencing.issuer SET epoch = known.epoch + 1, system_identifier = here, timeline = line;
        INSERT INTO fencing.intake (kind, epoch, value, details) VALUES ('epoch', known.epoch + 1, 0, jsonb_build_object(
            'before', jsonb_build_object('system_identifier', known.system_identifier, 'timeline', known.timeline),
            'now', jsonb_build_object('system_identifier', here, 'timeline', line)));
        known.epoch := known.epoch + 1;
    END IF;
    RETURN known.epoch;
END
$function$;

-- Issue the token of the next lease, and store it as issued. It is never one that the fence would refuse, whichever
-- client has raised the fence. Holders that share the lock share the token: a higher token for each one that joins
-- would have the writes of the others refused.
-- Returns a null value where this epoch has no higher token.
CREATE FUNCTION fencing.issue_v1(p_resource text, OUT epoch integer, OUT value bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    least_epoch integer := fencing.issuer_epoch_v1();
    least_value bigint := 0;
BEGIN
    SELECT f.epoch, f.value INTO epoch, value FROM fencing.fence f WHERE f.resource = p_resource;
    IF (epoch, value) > (least_epoch, least_value) THEN
        least_epoch := epoch;
        least_value := value;
    END IF;
    -- The caller has made sure that the lock is free or shared.
    SELECT l.epoch, l.value INTO epoch, value FROM fencing.lease l
    WHERE l.resource = p_resource ORDER BY l.epoch DESC, l.value DESC LIMIT 1;
    IF (epoch, value) >= (least_epoch, least_value) THEN
        RETURN;
    END IF;
    UPDATE fencing.lock l SET
        epoch = greatest(l.epoch, least_epoch),
        value = 1 + CASE WHEN (l.epoch, l.value) > (least_epoch, least_value) THEN l.value ELSE least_value END
    WHERE l.resource = p_resource
      AND CASE WHEN (l.epoch, l.value) > (least_epoch, least_value) THEN l.value ELSE least_value END < 9223372036854775807
    RETURNING l.epoch, l.value INTO epoch, value;
END
$function$;

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

-- Ask for a lock. Idempotent: a holder has one lease, one place in the queue, and one token.
-- Takes the lock, holder and caller, the mode, a name of the request, and seconds of TTL and lock-delay. A caller
-- that waits gives its attendant, the seconds that the attendant lasts, and the seconds to collect the lease in.
-- Returns `outcome`:
--   granted    `lease`; `fresh` unless the same holder had it already, or an answer had been lost
--   upgrade    the holder shares the lock: it would wait for itself
--   exhausted  there is no higher token in this epoch
--   waiting    with an attendant: in the queue under `ticket`; worth a look in `look_in` seconds
--   held       without one: `lease` is in the way, null where the lock has no holder yet; `place` in the queue
CREATE FUNCTION fencing.acquire_v1(
    p_resource text, p_holder text, p_caller text, p_mode text, p_request text, p_ttl double precision,
    p_delay double precision, p_attendant uuid, p_attended double precision, p_collect double precision,
    OUT outcome text, OUT lease fencing.lease, OUT expires_in double precision, OUT fresh boolean, OUT ticket bigint,
    OUT handed bigint, OUT look_in double precision, OUT place bigint, OUT delayed_for double precision
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    in_queue boolean;
    queued boolean;
    exhausted boolean := false;
    held boolean;
    shared boolean;
    token record;
    moment timestamptz;
BEGIN
    -- A caller that only tries costs no commit, and does not wait for the row of the lock.
    IF p_attendant IS NULL THEN
        SELECT * INTO lease FROM fencing.lease l
        WHERE l.resource = p_resource AND l.mode = 'exclusive' AND (l.holder, l.caller) <> (p_holder, p_caller)
          AND l.expires_at > clock_timestamp();
        IF FOUND THEN
            outcome := 'held';
            expires_in := extract(epoch FROM lease.expires_at - clock_timestamp());
            place := fencing.place_v1(p_resource, p_holder, p_caller);
            RETURN;
        END IF;
    END IF;
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO fencing.lock (resource) VALUES (p_resource) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
        END IF;
    END IF;
    PERFORM fencing.lapse_v1(p_resource);
    in_queue := EXISTS (SELECT FROM fencing.waiter w WHERE w.resource = p_resource);
    IF in_queue THEN
        -- A holder that waits in another mode by now gives up its earlier place.
        DELETE FROM fencing.waiter w
        WHERE w.resource = p_resource AND w.holder = p_holder AND w.caller = p_caller AND w.mode <> p_mode
          AND p_attendant IS NOT NULL;
        SELECT h.handed, h.look_in, h.exhausted INTO handed, look_in, exhausted FROM fencing.hand_over_v1(p_resource) h;
    END IF;
    SELECT * INTO lease FROM fencing.lease l
    WHERE l.resource = p_resource AND l.holder = p_holder AND l.caller = p_caller;
    IF FOUND THEN
        IF lease.mode = 'shared' AND p_mode = 'exclusive' THEN
            outcome := 'upgrade';
            expires_in := extract(epoch FROM lease.expires_at - clock_timestamp());
            RETURN;
        END IF;
        fresh := NOT lease.confirmed;
        moment := clock_timestamp();
        UPDATE fencing.lease l SET
            confirmed = true, request = p_request, ttl = p_ttl, delay = p_delay,
            acquired_at = CASE WHEN fresh THEN moment ELSE l.acquired_at END,
            expires_at = CASE WHEN fresh THEN moment + make_interval(secs => p_ttl)
                              ELSE greatest(l.expires_at, moment + make_interval(secs => p_ttl)) END
        WHERE l.resource = p_resource AND l.id = lease.id RETURNING l.* INTO lease;
        expires_in := extract(epoch FROM lease.expires_at - moment);
        outcome := 'granted';
        IF fresh THEN
            PERFORM fencing.record_lease_v1('lease-granted', lease, p_caller, NULL);
        END IF;
        RETURN;
    END IF;
    lease := NULL;
    queued := in_queue AND EXISTS (SELECT FROM fencing.living_waiter w WHERE w.resource = p_resource);
    SELECT count(*) > 0, bool_and(l.mode = 'shared') INTO held, shared FROM fencing.lease l WHERE l.resource = p_resource;
    SELECT extract(epoch FROM l.delayed_until - clock_timestamp()) INTO delayed_for FROM fencing.lock l
    WHERE l.resource = p_resource AND l.delayed_until > clock_timestamp();
    IF NOT queued AND delayed_for IS NULL AND (NOT held OR shared AND p_mode = 'shared') THEN
        token := fencing.issue_v1(p_resource);
        exhausted := token.value IS NULL;
        IF NOT exhausted THEN
            moment := clock_timestamp();
            INSERT INTO fencing.lease AS l (
                resource, holder, caller, mode, epoch, value, request, ttl, delay, acquired_at, expires_at)
            VALUES (p_resource, p_holder, p_caller, p_mode, token.epoch, token.value, p_request, p_ttl, p_delay, moment,
                moment + make_interval(secs => p_ttl))
            RETURNING l.* INTO lease;
            PERFORM fencing.record_lease_v1('lease-granted', lease, p_caller, NULL);
            IF in_queue THEN
                -- A place of this holder that had lapsed must not come back to life beside the lease.
                DELETE FROM fencing.waiter w
                WHERE w.resource = p_resource AND w.holder = p_holder AND w.caller = p_caller;
            END IF;
            expires_in := p_ttl;
            fresh := true;
            outcome := 'granted';
            RETURN;
        END IF;
    END IF;
    IF exhausted THEN
        outcome := 'exhausted';
    ELSIF p_attendant IS NULL THEN
        outcome := 'held';
        SELECT * INTO lease FROM fencing.lease l WHERE l.resource = p_resource ORDER BY l.expires_at DESC LIMIT 1;
        expires_in := extract(epoch FROM lease.expires_at - clock_timestamp());
        place := fencing.place_v1(p_resource, p_holder, p_caller);
    ELSE
        outcome := 'waiting';
        IF NOT EXISTS (SELECT FROM fencing.attendant a WHERE a.id = p_attendant AND a.until > clock_timestamp()) THEN
            INSERT INTO fencing.attendant AS a (id, until)
            VALUES (p_attendant, clock_timestamp() + make_interval(secs => p_attended))
            ON CONFLICT (id) DO UPDATE SET until = excluded.until;
        END IF;
        INSERT INTO fencing.waiter AS w (resource, holder, caller, mode, request, ttl, delay, collect, attendant)
        VALUES (p_resource, p_holder, p_caller, p_mode, p_request, p_ttl, p_delay, p_collect, p_attendant)
        ON CONFLICT (resource, holder, caller) DO UPDATE SET
            request = excluded.request, ttl = excluded.ttl, delay = excluded.delay, collect = excluded.collect,
            attendant = excluded.attendant, until = NULL
        RETURNING w.ticket INTO ticket;
        SELECT greatest(extract(epoch FROM max(l.expires_at) - clock_timestamp()), delayed_for) INTO look_in
        FROM fencing.lease l WHERE l.resource = p_resource;
    END IF;
END
$function$;

-- Renew leases in the order given, which has to be that of their names and ids. A lease that has lapsed is lost, even
-- if its row is there and the lock is free. The next session that looks takes it away.
-- Takes arrays of names, ids, callers and TTLs in seconds; a null TTL keeps the old one.
-- Returns a row for each: the lease and the seconds it lasts, or nulls, and whether it belongs to another caller.
CREATE FUNCTION fencing.renew_v1(p_resources text[], p_ids uuid[], p_callers text[], p_ttls double precision[])
RETURNS TABLE (lease fencing.lease, expires_in double precision, forbidden boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    moment timestamptz;
BEGIN
    FOR i IN 1..cardinality(p_ids) LOOP
        moment := clock_timestamp();
        UPDATE fencing.lease l
        SET ttl = coalesce(p_ttls[i], l.ttl), expires_at = moment + make_interval(secs => coalesce(p_ttls[i], l.ttl))
        WHERE l.resource = p_resources[i] AND l.id = p_ids[i] AND l.caller = p_callers[i]
          AND l.expires_at > clock_timestamp()
        RETURNING l.* INTO lease;
        IF FOUND THEN
            expires_in := extract(epoch FROM lease.expires_at - moment);
            forbidden := false;
        ELSE
            lease := NULL;
            expires_in := NULL;
            forbidden := EXISTS (
                SELECT FROM fencing.lease l WHERE l.resource = p_resources[i] AND l.id = p_ids[i]
                  AND l.caller <> p_callers[i] AND l.expires_at > clock_timestamp()
            );
        END IF;
        RETURN NEXT;
    END LOOP;
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

-- Give a lease back.
-- Returns `outcome` (released, forbidden, lost), and what hand_over_v1 does.
CREATE FUNCTION fencing.release_v1(
    p_resource text, p_id uuid, p_caller text, OUT outcome text, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    ended fencing.lease;
BEGIN
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    DELETE FROM fencing.lease l WHERE l.resource = p_resource AND l.id = p_id AND l.caller = p_caller RETURNING l.* INTO ended;
    outcome := CASE
        WHEN FOUND THEN 'released'
        WHEN EXISTS (SELECT FROM fencing.lease l WHERE l.resource = p_resource AND l.id = p_id) THEN 'forbidden'
        ELSE 'lost' END;
    IF ended.confirmed THEN
        PERFORM fencing.record_lease_v1('lease-released', ended, p_caller, NULL);
    END IF;
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

-- End each lease with exactly this token.
-- Returns how many there were, and what hand_over_v1 does.
CREATE FUNCTION fencing.break_v1(
    p_resource text, p_epoch integer, p_value bigint, p_caller text, p_reason text,
    OUT broken integer, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    ended fencing.lease;
BEGIN
    broken := 0;
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    FOR ended IN
        DELETE FROM fencing.lease l WHERE l.resource = p_resource AND (l.epoch, l.value) = (p_epoch, p_value) RETURNING l.*
    LOOP
        broken := broken + 1;
        UPDATE fencing.lock l
        SET delayed_until = greatest(l.delayed_until, clock_timestamp() + make_interval(secs => ended.delay))
        WHERE l.resource = p_resource AND ended.delay > 0 AND ended.confirmed;
        PERFORM fencing.record_lease_v1('lease-broken', ended, p_caller, p_reason);
    END LOOP;
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
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

-- Raise a fence to the beginning of its next epoch, if it carries exactly the expected token.
-- Returns `outcome`: done; mismatch, where nothing has happened and `fence` is the one there is; exhausted, where
-- there is no next epoch. `ended` counts the leases that ended.
--
-- The row of the lock comes first, as with every session that works on a lock. So no lease of the epoch before is
-- granted meanwhile, and tokens granted afterwards are above. Leases with lower tokens end as if they were broken.
-- The fence refuses what their holders still write, and writers that cannot be fenced get the lock-delay. The fence
-- is raised here, with its row locked already, and not by claim_v1: this is no barrier.
CREATE FUNCTION fencing.bump_epoch_v1(
    p_resource text, p_epoch integer, p_value bigint, p_caller text, p_reason text,
    OUT outcome text, OUT fence fencing.fence, OUT ended integer
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    overtaken fencing.fence;
    lease fencing.lease;
BEGIN
    ended := 0;
    outcome := 'mismatch';
    SELECT * INTO fence FROM fencing.fence f WHERE f.resource = p_resource;
    IF NOT FOUND OR (fence.epoch, fence.value) <> (p_epoch, p_value) THEN
        RETURN;
    END IF;
    INSERT INTO fencing.lock (resource) VALUES (p_resource) ON CONFLICT DO NOTHING;
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    SELECT * INTO STRICT fence FROM fencing.fence f WHERE f.resource = p_resource FOR UPDATE;
    IF (fence.epoch, fence.value) <> (p_epoch, p_value) THEN
        RETURN;
    ELSIF fence.epoch = 2147483647 THEN
        outcome := 'exhausted';
        RETURN;
    END IF;
    outcome := 'done';
    overtaken := fence;
    UPDATE fencing.fence f
    SET epoch = overtaken.epoch + 1, value = 0, holder = NULL, caller = p_caller, write_id = NULL,
        raised_at = clock_timestamp()
    WHERE f.resource = p_resource RETURNING f.* INTO fence;
    PERFORM fencing.lapse_v1(p_resource);
    FOR lease IN
        DELETE FROM fencing.lease l WHERE l.resource = p_resource AND (l.epoch, l.value) < (fence.epoch, fence.value)
        RETURNING l.*
    LOOP
        ended := ended + 1;
        UPDATE fencing.lock l
        SET delayed_until = greatest(l.delayed_until, clock_timestamp() + make_interval(secs => lease.delay))
        WHERE l.resource = p_resource AND lease.delay > 0 AND lease.confirmed;
        PERFORM fencing.record_lease_v1('lease-broken', lease, p_caller, p_reason);
    END LOOP;
    INSERT INTO fencing.intake (
        at, kind, resource, epoch, value, caller,
        fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details)
    VALUES (fence.raised_at, 'epoch', p_resource, fence.epoch, fence.value, p_caller,
        overtaken.epoch, overtaken.value, overtaken.holder, overtaken.caller, overtaken.raised_at,
        jsonb_build_object('reason', p_reason, 'before', jsonb_build_object('epoch', p_epoch, 'value', p_value),
            'leases_ended', ended));
    PERFORM fencing.hand_over_v1(p_resource);
END
$function$;
