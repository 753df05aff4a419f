-- Leases: locks, and who holds them. lock_queue.sql has the queues, lock_tokens.sql the numbers.
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
