-- Locks that are simply free, and leases of locks without waiters: a whole batch of them in a few statements.
--
-- Each function locks the rows of its locks first. The next statement has a fresh snapshot, so it sees what every
-- session did before that worked on one of them. All other locks are left to acquire_v1 and release_v1. So these
-- functions wait for the row of a lock only while another session makes it.

-- Grant the locks that are free: without a lease, a waiter and a delay.
-- Takes arrays of locks, holders, callers, modes, names of requests, and seconds of TTL and lock-delay. Of several
-- questions about one lock, only the first may have it.
-- Returns the new leases, in no order. For all others acquire_v1 has to be asked.
CREATE FUNCTION fencing.acquire_free_v1(
    p_resources text[], p_holders text[], p_callers text[], p_modes text[], p_requests text[],
    p_ttls double precision[], p_delays double precision[]
) RETURNS SETOF fencing.lease LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $function$
DECLARE
    locked text[];
BEGIN
    -- A row that another session is making is waited for. So rows are made in the order of their names, before any
    -- other is locked.
    INSERT INTO fencing.lock (resource)
    SELECT DISTINCT u.resource COLLATE "C" FROM unnest(p_resources) AS u (resource)
    WHERE NOT EXISTS (SELECT FROM fencing.lock k WHERE k.resource = u.resource) ORDER BY 1
    ON CONFLICT DO NOTHING;
    -- The row of a lock that is held stays alone: a client that only tries costs no commit.
    locked := ARRAY(
        SELECT k.resource FROM fencing.lock k
        WHERE k.resource = ANY (p_resources) AND (k.delayed_until > clock_timestamp()) IS NOT TRUE
          AND NOT EXISTS (SELECT FROM fencing.lease l WHERE l.resource = k.resource)
        FOR UPDATE SKIP LOCKED);
    IF locked = '{}' THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH free AS MATERIALIZED (
        SELECT u.*, clock_timestamp() AS moment, fencing.issue_v1(u.resource) AS token
        FROM unnest(p_resources, p_holders, p_callers, p_modes, p_requests, p_ttls, p_delays) WITH ORDINALITY
            AS u (resource, holder, caller, mode, request, ttl, delay, number)
        WHERE u.resource = ANY (locked) AND u.number = array_position(p_resources, u.resource)
          AND NOT EXISTS (SELECT FROM fencing.lock k WHERE k.resource = u.resource AND k.delayed_until > clock_timestamp())
          AND NOT EXISTS (SELECT FROM fencing.lease l WHERE l.resource = u.resource)
          AND NOT EXISTS (SELECT FROM fencing.waiter w WHERE w.resource = u.resource)
    ), granted AS (
        INSERT INTO fencing.lease AS l (
            resource, holder, caller, mode, epoch, value, request, ttl, delay, acquired_at, expires_at)
        SELECT f.resource, f.holder, f.caller, f.mode, (f.token).epoch, (f.token).value, f.request, f.ttl, f.delay,
            f.moment, f.moment + make_interval(secs => f.ttl)
        FROM free f WHERE (f.token).value IS NOT NULL
        RETURNING l.*
    ), recorded AS (
        INSERT INTO fencing.intake (kind, resource, epoch, value, holder, caller, details)
        SELECT 'lease-granted', g.resource, g.epoch, g.value, g.holder, g.caller,
            jsonb_build_object('mode', g.mode, 'acquired_at', g.acquired_at, 'ttl', g.ttl)
        FROM granted g
    )
    SELECT * FROM granted;
END
$function$;

-- End leases of locks without a waiter, and without a lease that has lapsed.
-- Takes arrays of locks, ids of leases and callers.
-- Returns the leases that have ended, in no order. For all others release_v1 has to be asked.
CREATE FUNCTION fencing.release_free_v1(p_resources text[], p_ids uuid[], p_callers text[])
RETURNS SETOF fencing.lease LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $function$
DECLARE
    locked text[];
BEGIN
    -- A client that begins to wait has this row locked, so it is seen here, or sees that the lock is free.
    locked := ARRAY(
        SELECT k.resource FROM fencing.lock k WHERE k.resource = ANY (p_resources) FOR UPDATE SKIP LOCKED);
    RETURN QUERY
    WITH ended AS (
        DELETE FROM fencing.lease l USING unnest(p_resources, p_ids, p_callers) AS u (resource, id, caller)
        WHERE l.resource = u.resource AND l.id = u.id AND l.caller = u.caller
          AND l.resource = ANY (locked) AND l.confirmed
          AND NOT EXISTS (
              SELECT FROM fencing.lease o WHERE o.resource = u.resource AND o.expires_at <= clock_timestamp())
          AND NOT EXISTS (SELECT FROM fencing.waiter w WHERE w.resource = u.resource)
        RETURNING l.*
    ), recorded AS (
        INSERT INTO fencing.intake (kind, resource, epoch, value, holder, caller, details)
        SELECT 'lease-released', e.resource, e.epoch, e.value, e.holder, e.caller,
            jsonb_build_object('mode', e.mode, 'acquired_at', e.acquired_at)
        FROM ended e
    )
    SELECT * FROM ended;
END
$function$;
