-- Raises of several senders share a transaction (docs/decisions/074).

-- Do what claim_v1 does for writes of several senders: raise the fences that are lower, and leave all others alone.
-- Each write looks at its own fence afterwards, in a statement of its own.
--
-- Takes an array of objects with resource, epoch, value, holder and caller. The resources are different.
-- Returns how many fences it has raised. Null for null.
--
-- It waits for no write: a fence that another session has locked is left alone, too. It may wait for another session that
-- inserts the same fence, and inserts in the order of names.
-- The row that is overtaken is read under its lock.
CREATE FUNCTION fencing.claim_each_v1(p_claims json) RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    rising fencing.fence[];
    known bigint;
    added bigint;
    raised bigint;
BEGIN
    SELECT array_agg(
        ROW(u.resource, u.epoch, u.value, u.holder, u.caller, clock_timestamp(), gen_random_uuid())::fencing.fence
        ORDER BY u.resource COLLATE "C"), count(f.epoch)
    INTO rising, known
    FROM json_to_recordset(p_claims) AS u (resource text, epoch integer, value bigint, holder text, caller text)
    LEFT JOIN LATERAL (
        SELECT t.epoch, t.value FROM fencing.fence t WHERE t.resource = u.resource COLLATE "C" OFFSET 0
    ) AS f ON true
    WHERE f.epoch IS NULL OR (f.epoch, f.value) < (u.epoch, u.value);
    IF rising IS NULL THEN
        RETURN 0;
    END IF;
    -- With the journal's mode sync: all raises at once, so that the gateway appends them together.
    IF (SELECT o.mode FROM fencing.opening AS o) = 'sync' THEN
        PERFORM fencing.check_secured_v1(
            ARRAY(SELECT u.resource || ' ' || u.epoch || '.' || u.value FROM unnest(rising) AS u));
    END IF;
    INSERT INTO fencing.fence SELECT u.* FROM unnest(rising) AS u
    WHERE known = 0 OR NOT EXISTS (SELECT FROM fencing.fence f WHERE f.resource = u.resource COLLATE "C")
    ORDER BY u.resource COLLATE "C"
    ON CONFLICT ON CONSTRAINT fence_pkey DO NOTHING;
    GET DIAGNOSTICS added = ROW_COUNT;
    IF added = cardinality(rising) THEN
        RETURN added;
    END IF;
    WITH overtaken AS MATERIALIZED (
        SELECT u AS new, f AS old FROM unnest(rising) AS u
        JOIN fencing.fence AS f ON f.resource = u.resource COLLATE "C" AND (f.epoch, f.value) < (u.epoch, u.value)
        FOR NO KEY UPDATE OF f SKIP LOCKED
    ), dated AS MATERIALIZED (
        SELECT o.new, o.old, clock_timestamp() AS moment FROM overtaken AS o
    ), recorded AS (
        INSERT INTO fencing.intake (
            at, kind, resource, epoch, value, holder, caller,
            fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
        SELECT d.moment, 'raised', (d.new).resource, (d.new).epoch, (d.new).value, (d.new).holder, (d.new).caller,
            (d.old).epoch, (d.old).value, (d.old).holder, (d.old).caller, (d.old).raised_at
        FROM dated AS d
    )
    UPDATE fencing.fence f
    SET epoch = (d.new).epoch, value = (d.new).value, holder = (d.new).holder, caller = (d.new).caller,
        raised_at = d.moment, write_id = (d.new).write_id
    FROM dated AS d WHERE f.resource = (d.new).resource COLLATE "C";
    GET DIAGNOSTICS raised = ROW_COUNT;
    RETURN added + raised;
END
$function$;
