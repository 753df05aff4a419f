-- The numbers of locks: the epoch that tokens are issued in, and the next token of a lock.

-- Which life of the database has issued the tokens: one row.
CREATE TABLE fencing.issuer (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch integer NOT NULL,
    system_identifier text NOT NULL,
    timeline text NOT NULL
);

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
