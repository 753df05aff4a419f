"""The lease service: locks, leases, queues, and what is on record of them; the functions that are contended.

Whatever concerns one lock happens with its row of ``fencing.lock`` locked, so the functions see one another's work as a
whole: they are VOLATILE, so that each statement inside takes a fresh snapshot, after the lock was waited for. Time is
``clock_timestamp()`` here and nowhere else. The one thing done without the row of the lock is renewing, which is a
condition on the lease's own row.

Whoever works on several locks takes them in the order of their names.
"""

from alembic import op

revision = "0007"
down_revision = "0006"

TABLES = """
-- The highest token issued, (0, 0) where none ever was. Never deleted: that is what makes tokens grow for ever.
CREATE TABLE fencing.lock (
    resource text COLLATE "C" PRIMARY KEY,
    epoch integer NOT NULL DEFAULT 0,
    value bigint NOT NULL DEFAULT 0,
    delayed_until timestamptz
) WITH (fillfactor = 70)
;
-- No index on expires_at: it would make an index entry of each renewal.
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
    -- False while it waits to be collected by whom it was handed over to: until then nobody has been told of it.
    confirmed boolean NOT NULL DEFAULT true,
    -- The place in the queue that it was handed over to.
    ticket bigint,
    attendant uuid,
    acquired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (resource, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)
;
-- A gateway process that has waiters. They are in the queue as long as it is heard of.
CREATE TABLE fencing.attendant (
    id uuid PRIMARY KEY,
    until timestamptz NOT NULL
) WITH (fillfactor = 50)
;
-- A queue is served in the order of tickets. One place for each holder. Either attended, or good until a moment.
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
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000)
;
CREATE INDEX waiter_attendant ON fencing.waiter (attendant) WHERE attendant IS NOT NULL
;
-- Waiters that somebody would still answer to.
CREATE VIEW fencing.living_waiter AS
SELECT w.* FROM fencing.waiter AS w LEFT JOIN fencing.attendant AS a ON a.id = w.attendant
WHERE coalesce(a.until, w.until) > clock_timestamp()
;
-- Which life of the database has issued the tokens: one row.
CREATE TABLE fencing.issuer (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch integer NOT NULL,
    system_identifier text NOT NULL,
    timeline text NOT NULL
)
;
-- What happened beside the ordinary: only ever appended to. The caller is who did it, or whose lease it was.
CREATE TABLE fencing.event (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text NOT NULL,
    resource text COLLATE "C",
    caller text,
    holder text,
    epoch integer,
    value bigint,
    details jsonb NOT NULL DEFAULT '{}'
)
"""

# For functions that look into tables and queues. Their plans are made while these are empty and kept for as long as a
# session lives, through which they may grow to thousands: a lock must always be found by its name, and the first in its
# queue by the index that has them in order. What they call has the same settings by them.
SETTINGS = """
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
"""

# The epoch tokens are issued in. A restored backup or a promoted replica may have lost tokens that were issued: it is
# another system, or another timeline, and starts a new epoch, once. Tokens of it are above whatever was lost.
ISSUER_EPOCH = """
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
        INSERT INTO fencing.event (kind, epoch, value, details) VALUES ('epoch', known.epoch + 1, 0, jsonb_build_object(
            'before', jsonb_build_object('system_identifier', known.system_identifier, 'timeline', known.timeline),
            'now', jsonb_build_object('system_identifier', here, 'timeline', line)));
        known.epoch := known.epoch + 1;
    END IF;
    RETURN known.epoch;
END
$function$
"""

# The token of the next lease, put down as issued; a null value where this epoch has no higher one. Never one the fence
# would refuse, whoever has raised it. Those who share the lock share the token: a higher one for each who joins would
# have the writes of those before it refused.
ISSUE = """
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
    -- Whoever asks has made sure that nobody has the lock, or that it is shared.
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
$function$
"""

# Leases whose time is over end here, and nowhere else: what is in the table afterwards is held.
LAPSE = """
CREATE FUNCTION fencing.lapse_v1(p_resource text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    lapsed fencing.lease;
BEGIN
    FOR lapsed IN
        DELETE FROM fencing.lease l WHERE l.resource = p_resource AND l.expires_at <= clock_timestamp() RETURNING l.*
    LOOP
        -- One that nobody was told of was never relied upon: nothing to wait for, nothing to tell.
        CONTINUE WHEN NOT lapsed.confirmed;
        IF lapsed.delay > 0 THEN
            UPDATE fencing.lock l
            SET delayed_until = greatest(l.delayed_until, lapsed.expires_at + make_interval(secs => lapsed.delay))
            WHERE l.resource = p_resource;
        END IF;
        INSERT INTO fencing.event (kind, resource, caller, holder, epoch, value, details)
        VALUES ('expired', p_resource, lapsed.caller, lapsed.holder, lapsed.epoch, lapsed.value, jsonb_build_object(
            'mode', lapsed.mode, 'acquired_at', lapsed.acquired_at, 'expires_at', lapsed.expires_at));
    END LOOP;
END
$function$
"""

# Give the lock to those whose turn it is: the first living waiter, or all that share until the next who does not.
# Everybody up to `handed` has been served, or is not living; `look_in`: seconds until there may be more to hand over.
# What is handed over has to be collected by acquiring it. The announcement is heard when the transaction commits.
HAND_OVER = """
CREATE FUNCTION fencing.hand_over_v1(
    p_resource text, OUT handed bigint, OUT look_in double precision, OUT exhausted boolean
) LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
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
$function$
"""

# The place of a holder in the queue, from 1; or the one it would get.
PLACE = """
CREATE FUNCTION fencing.place_v1(p_resource text, p_holder text, p_caller text) RETURNS bigint
LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
BEGIN
    RETURN 1 + (
        SELECT count(*) FROM fencing.living_waiter w
        WHERE w.resource = p_resource AND w.ticket < coalesce((
            SELECT own.ticket FROM fencing.waiter own
            WHERE own.resource = p_resource AND own.holder = p_holder AND own.caller = p_caller
        ), 9223372036854775807)
    );
END
$function$
"""

# Ask for a lock. `outcome`:
#   granted    `lease`; `fresh` unless the same holder had it already, or an answer had been lost
#   upgrade    the holder shares the lock: to wait for it alone would be to wait for itself
#   exhausted  there is no higher token in this epoch
#   waiting    with an attendant: in the queue under `ticket`; worth a look in `look_in` seconds
#   held       without: `lease` is one that is in the way, null where it is not (yet) anybody's; `place` in the queue
# To ask twice is to ask once: a holder has one lease, one place in the queue, and one token.
ACQUIRE = """
CREATE FUNCTION fencing.acquire_v1(
    p_resource text, p_holder text, p_caller text, p_mode text, p_request text, p_ttl double precision,
    p_delay double precision, p_attendant uuid, p_attended double precision, p_collect double precision,
    OUT outcome text, OUT lease fencing.lease, OUT expires_in double precision, OUT fresh boolean, OUT ticket bigint,
    OUT handed bigint, OUT look_in double precision, OUT place bigint, OUT delayed_for double precision
) LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
DECLARE
    in_queue boolean;
    queued boolean;
    exhausted boolean := false;
    held boolean;
    shared boolean;
    token record;
    moment timestamptz;
BEGIN
    -- Who only tries, over and over, costs no commit, and nobody waits for it.
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
        -- Whoever waits in another mode by now gives up the place it had.
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
            IF in_queue THEN
                -- A place of its own that had lapsed: it must not come to life beside the lease.
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
$function$
"""

# Renew leases in the order given, which has to be that of their names and ids. One that has lapsed is lost, though its
# row be there and nobody else have the lock: whoever looks next takes it away.
RENEW = """
CREATE FUNCTION fencing.renew_v1(p_resources text[], p_ids uuid[], p_callers text[], p_ttls double precision[])
RETURNS TABLE (lease fencing.lease, expires_in double precision, forbidden boolean)
LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
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
$function$
"""

# Lapse, then hand over: what everybody does who has changed something about a lock, with its row locked.
ADVANCE = """
CREATE FUNCTION fencing.advance_v1(p_resource text, OUT handed bigint, OUT look_in double precision)
LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
BEGIN
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$
"""

RELEASE = """
CREATE FUNCTION fencing.release_v1(
    p_resource text, p_id uuid, p_caller text, OUT outcome text, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
BEGIN
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    DELETE FROM fencing.lease l WHERE l.resource = p_resource AND l.id = p_id AND l.caller = p_caller;
    outcome := CASE
        WHEN FOUND THEN 'released'
        WHEN EXISTS (SELECT FROM fencing.lease l WHERE l.resource = p_resource AND l.id = p_id) THEN 'forbidden'
        ELSE 'lost' END;
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$
"""

# End a wish, wherever it has got to.
WITHDRAW = """
CREATE FUNCTION fencing.withdraw_v1(
    p_resource text, p_holder text, p_caller text, p_request text, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
BEGIN
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    DELETE FROM fencing.waiter w
    WHERE w.resource = p_resource AND w.holder = p_holder AND w.caller = p_caller AND w.request = p_request;
    DELETE FROM fencing.lease l
    WHERE l.resource = p_resource AND l.holder = p_holder AND l.caller = p_caller AND l.request = p_request;
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$
"""

# Waiters of an attendant that wait no longer; those that have named a request keep their place for `p_linger` seconds, or
# what has been handed over to it. Whoever waits at another gateway by now stays.
LEAVE = """
CREATE FUNCTION fencing.leave_v1(
    p_attendant uuid, p_resources text[], p_tickets bigint[], p_linger double precision
) RETURNS TABLE (resource text, handed bigint, look_in double precision)
LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
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
$function$
"""

# End every lease with exactly this token. `broken`: how many there were; none, and nothing has happened.
BREAK = """
CREATE FUNCTION fencing.break_v1(
    p_resource text, p_epoch integer, p_value bigint, p_caller text, p_reason text,
    OUT broken integer, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
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
        INSERT INTO fencing.event (kind, resource, caller, holder, epoch, value, details)
        VALUES ('broken', p_resource, p_caller, ended.holder, ended.epoch, ended.value, jsonb_build_object(
            'reason', p_reason, 'of', ended.caller, 'mode', ended.mode, 'acquired_at', ended.acquired_at));
    END LOOP;
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$
"""

# A gateway is heard of, and told how its waiters stand: the tickets of those that are in queues still, and at which locks
# somebody has to look, since nobody has them.
ATTEND = """
CREATE FUNCTION fencing.attend_v1(
    p_attendant uuid, p_attended double precision,
    OUT waiting bigint[], OUT due text[]
) LANGUAGE plpgsql VOLATILE @SETTINGS@ AS $function$
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
$function$
"""


def upgrade() -> None:
    functions = (
        ISSUER_EPOCH,
        ISSUE,
        LAPSE,
        HAND_OVER,
        PLACE,
        ACQUIRE,
        RENEW,
        ADVANCE,
        RELEASE,
        WITHDRAW,
        LEAVE,
        BREAK,
        ATTEND,
    )
    for statement in (*TABLES.split("\n;\n"), *functions):
        op.get_bind().exec_driver_sql(statement.replace("@SETTINGS@", SETTINGS.strip()))
