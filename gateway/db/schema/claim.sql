-- Claims: a token is compared with the fence of its resource, and raises it. Every write of a row begins here.

-- Compare a token with the fence of one resource, and raise the fence if the token is higher. The one rule of
-- fencing, as in gateway.fencing.decision.
--
-- Takes the resource, the token, its holder and caller, whether the resource is strict, and the id of the write. A
-- null id is a barrier: it raises, and writes nothing.
-- Returns `decision` (raised, held, token-stale, token-duplicate, token-used), the fence as it is now, and whether an
-- object write with a lower token is pending. The fence row stays locked FOR SHARE until the transaction ends.
--
-- The order of the steps is what makes this safe:
--   1. Read without a lock. Only a higher token may ask for the exclusive lock: two writers that both hold FOR SHARE
--      and then both raise would deadlock.
--   2. Lock the row if it is still lower, and raise it. The row that is overtaken is read under that lock; read before,
--      it could be the row that another session overtakes meanwhile.
--   3. Lock FOR SHARE, and judge. Writers of one holder run side by side, and the next raise waits for all of them.
--
-- A raise that overtakes a holder goes on record, and so does a barrier. The first write of a resource does not: the
-- fence itself says it all.
CREATE FUNCTION fencing.claim_v1(
    p_resource text, p_epoch integer, p_value bigint, p_holder text, p_caller text, p_strict boolean, p_write_id uuid,
    OUT decision text, OUT fence fencing.fence, OUT pending boolean
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    raised boolean := false;
    overtaken fencing.fence;
BEGIN
    SELECT * INTO fence FROM fencing.fence f WHERE f.resource = p_resource;
    IF NOT FOUND THEN
        INSERT INTO fencing.fence (resource, epoch, value, holder, caller, write_id)
        VALUES (p_resource, p_epoch, p_value, p_holder, p_caller, p_write_id)
        ON CONFLICT (resource) DO NOTHING;
        raised := FOUND;
    END IF;
    IF NOT raised AND (fence.epoch IS NULL OR (fence.epoch, fence.value) < (p_epoch, p_value)) THEN
        SELECT * INTO overtaken FROM fencing.fence f
        WHERE f.resource = p_resource AND (f.epoch, f.value) < (p_epoch, p_value) FOR NO KEY UPDATE;
        IF FOUND THEN
            UPDATE fencing.fence f
            SET epoch = p_epoch, value = p_value, holder = p_holder, caller = p_caller, write_id = p_write_id,
                raised_at = clock_timestamp()
            WHERE f.resource = p_resource;
            raised := true;
        END IF;
    END IF;
    IF p_strict AND NOT raised THEN
        UPDATE fencing.fence f SET write_id = p_write_id
        WHERE f.resource = p_resource AND (f.epoch, f.value) = (p_epoch, p_value) AND f.write_id IS NULL
          AND (f.holder IS NULL OR p_holder IS NULL OR f.holder = p_holder);
    END IF;
    SELECT * INTO STRICT fence FROM fencing.fence f WHERE f.resource = p_resource FOR SHARE;
    IF raised AND (overtaken.resource IS NOT NULL OR p_write_id IS NULL) THEN
        INSERT INTO fencing.intake (
            at, kind, resource, epoch, value, holder, caller,
            fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
        VALUES (fence.raised_at, CASE WHEN p_write_id IS NULL THEN 'barrier' ELSE 'raised' END, p_resource,
            p_epoch, p_value, p_holder, p_caller,
            overtaken.epoch, overtaken.value, overtaken.holder, overtaken.caller, overtaken.raised_at);
    END IF;
    decision := CASE
        WHEN raised THEN 'raised'
        WHEN (p_epoch, p_value) < (fence.epoch, fence.value) THEN 'token-stale'
        WHEN p_holder <> fence.holder THEN 'token-duplicate'
        WHEN p_strict AND fence.write_id IS DISTINCT FROM p_write_id THEN 'token-used'
        ELSE 'held' END;
    pending := EXISTS (
        SELECT FROM fencing.intent i WHERE i.resource = p_resource AND (i.epoch, i.value) < (p_epoch, p_value)
    );
END
$function$;

-- Do what claim_v1 does, for a set of different names, each with a token of its own or all with one token.
--
-- Takes arrays of names, epochs and values. The last two have one element, or as many as there are names. The rest is
-- as for claim_v1.
-- Returns only the claims that need attention: refused, or with an object write pending. All others carry the token
-- now.
--
-- Locks are taken in the order of names, also where names are treated differently. A session that holds some of them
-- only waits for a later one. So the names are cut into runs, taken one after the other, and one statement locks row
-- by row in a run:
--   - A run that rises inserts what is new and locks what is there, in the order of names. ON CONFLICT locks
--     exclusively even where its condition does not hold, and takes the newest version whatever the snapshot says. The
--     next statement sees what was locked, puts on record which holders are overtaken, and raises. Names that carry the
--     token already join the run if they stand between two that rise, which nearly always makes it one run. Other
--     writers of such names wait for this one, as they would for the names beside them.
--   - A run that rests locks FOR SHARE. A stale name always rests: nothing should have to wait for a zombie.
-- Mostly there is one run, either all new or lower, or all held, and the cutting is skipped. Names that are all new
-- are simply inserted, which is quicker still. If one of them turns out not to be new, the subtransaction gives up
-- what it has locked, and they are taken as a run.
--
-- A fence never goes down, so a name that rests cannot come to rise while its lock is waited for.
CREATE FUNCTION fencing.claim_many_v1(
    p_resources text[], p_epochs integer[], p_values bigint[],
    p_holder text, p_caller text, p_strict boolean, p_write_id uuid
) RETURNS TABLE (decision text, fence fencing.fence, pending boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    rising bigint;
    known bigint;
    uniform boolean;
    run record;
    raised text[] := '{}';
    more text[];
    overtaking text[];
    moment timestamptz;
BEGIN
    IF cardinality(p_values) = 1 THEN
        p_epochs := array_fill(p_epochs[1], ARRAY[cardinality(p_resources)]);
        p_values := array_fill(p_values[1], ARRAY[cardinality(p_resources)]);
    END IF;
    SELECT count(*) FILTER (WHERE f.epoch IS NULL OR (f.epoch, f.value) < (u.epoch, u.value)), count(f.epoch)
    INTO rising, known
    FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
    LEFT JOIN LATERAL (
        SELECT t.epoch, t.value FROM fencing.fence t WHERE t.resource = u.resource COLLATE "C" OFFSET 0
    ) AS f ON true;
    -- With the journal's mode sync: all raises at once, so that the gateway appends them together.
    IF rising > 0 AND (SELECT o.mode FROM fencing.opening AS o) = 'sync' THEN
        PERFORM fencing.check_secured_v1(ARRAY(
            SELECT u.resource || ' ' || u.epoch || '.' || u.value
            FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
            LEFT JOIN fencing.fence f ON f.resource = u.resource COLLATE "C"
            WHERE f.resource IS NULL OR (f.epoch, f.value) < (u.epoch, u.value)));
    END IF;
    IF known = 0 THEN
        BEGIN
            INSERT INTO fencing.fence (resource, epoch, value, holder, caller, write_id)
            SELECT u.resource, u.epoch, u.value, p_holder, p_caller, p_write_id
            FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
            ORDER BY u.resource COLLATE "C";
            raised := p_resources;
        EXCEPTION WHEN unique_violation THEN
            NULL;
        END;
    END IF;
    uniform := rising = cardinality(p_resources) OR (rising = 0 AND NOT p_strict);
    FOR run IN
        WITH presented AS (
            SELECT u.resource COLLATE "C" AS resource, u.epoch, u.value,
                f.resource IS NULL OR (f.epoch, f.value) < (u.epoch, u.value) AS rises,
                coalesce((u.epoch, u.value) < (f.epoch, f.value), false) AS stale
            FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
            LEFT JOIN LATERAL (SELECT * FROM fencing.fence t WHERE t.resource = u.resource COLLATE "C" OFFSET 0) AS f
                ON true
        ), sorted AS (
            SELECT p.resource, p.epoch, p.value,
                NOT p.stale AND (p.rises OR p_strict OR coalesce(
                    p.resource > min(p.resource) FILTER (WHERE p.rises) OVER ()
                    AND p.resource < max(p.resource) FILTER (WHERE p.rises) OVER (), false)) AS rises
            FROM presented p
        ), cut AS (
            SELECT s.*, row_number() OVER (ORDER BY s.resource)
                - row_number() OVER (PARTITION BY s.rises ORDER BY s.resource) AS nth
            FROM sorted s
        )
        SELECT rising > 0 AS rises, NULL COLLATE "C" AS first,
            p_resources AS resources, p_epochs AS epochs, p_values AS tokens
        WHERE uniform AND raised = '{}'
        UNION ALL
        SELECT c.rises, min(c.resource), array_agg(c.resource), array_agg(c.epoch), array_agg(c.value)
        FROM cut c WHERE NOT uniform GROUP BY c.rises, c.nth
        ORDER BY first
    LOOP
        IF run.rises THEN
            WITH added AS (
                INSERT INTO fencing.fence AS f (resource, epoch, value, holder, caller, write_id)
                SELECT u.resource, u.epoch, u.value, p_holder, p_caller, p_write_id
                FROM unnest(run.resources, run.epochs, run.tokens) AS u (resource, epoch, value)
                ORDER BY u.resource COLLATE "C"
                ON CONFLICT ON CONSTRAINT fence_pkey DO UPDATE SET epoch = excluded.epoch WHERE false
                RETURNING f.resource
            )
            SELECT coalesce(array_agg(a.resource), '{}') INTO more FROM added a;
            IF cardinality(more) < cardinality(run.resources) THEN
                moment := clock_timestamp();
                WITH overtaken AS MATERIALIZED (
                    SELECT u.epoch AS new_epoch, u.value AS new_value, f.*
                    FROM unnest(run.resources, run.epochs, run.tokens) AS u (resource, epoch, value)
                    CROSS JOIN LATERAL (
                        SELECT * FROM fencing.fence t WHERE t.resource = u.resource COLLATE "C" OFFSET 0
                    ) AS f
                    WHERE (f.epoch, f.value) < (u.epoch, u.value)
                ), recorded AS (
                    INSERT INTO fencing.intake (
                        at, kind, resource, epoch, value, holder, caller,
                        fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
                    SELECT moment, 'raised', o.resource, o.new_epoch, o.new_value, p_holder, p_caller,
                        o.epoch, o.value, o.holder, o.caller, o.raised_at
                    FROM overtaken o ORDER BY o.resource
                ), risen AS (
                    UPDATE fencing.fence f
                    SET epoch = o.new_epoch, value = o.new_value, holder = p_holder, caller = p_caller,
                        write_id = p_write_id, raised_at = moment
                    FROM overtaken o WHERE f.resource = o.resource
                    RETURNING f.resource
                )
                SELECT coalesce(array_agg(r.resource), '{}') INTO overtaking FROM risen r;
                more := more || overtaking;
            END IF;
            raised := raised || more;
            IF p_strict AND cardinality(more) < cardinality(run.resources) THEN
                UPDATE fencing.fence f SET write_id = p_write_id
                FROM unnest(run.resources, run.epochs, run.tokens) AS u (resource, epoch, value)
                WHERE f.resource = u.resource COLLATE "C" AND f.resource <> ALL (more)
                  AND (f.epoch, f.value) = (u.epoch, u.value) AND f.write_id IS NULL
                  AND (f.holder IS NULL OR p_holder IS NULL OR f.holder = p_holder);
            END IF;
        ELSE
            PERFORM FROM fencing.fence f WHERE f.resource = ANY (run.resources) ORDER BY f.resource FOR SHARE;
        END IF;
    END LOOP;
    IF cardinality(raised) = cardinality(p_resources)
        AND NOT EXISTS (SELECT FROM fencing.intent i WHERE i.resource = ANY (p_resources))
    THEN
        RETURN;
    END IF;
    RETURN QUERY
        SELECT judged.decision, judged.fence, judged.pending
        FROM (
            SELECT u.resource, f.fence, CASE
                -- A subquery is hashed, however long the list is.
                WHEN u.resource COLLATE "C" IN (SELECT m.r COLLATE "C" FROM unnest(raised) AS m (r)) THEN 'raised'
                WHEN (u.epoch, u.value) < ((f.fence).epoch, (f.fence).value) THEN 'token-stale'
                WHEN p_holder <> (f.fence).holder THEN 'token-duplicate'
                WHEN p_strict AND (f.fence).write_id IS DISTINCT FROM p_write_id THEN 'token-used'
                ELSE 'held' END AS decision,
                EXISTS (
                    SELECT FROM fencing.intent i
                    WHERE i.resource = u.resource COLLATE "C" AND (i.epoch, i.value) < (u.epoch, u.value)
                ) AS pending
            FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
            CROSS JOIN LATERAL (
                SELECT r AS fence FROM fencing.fence AS r WHERE r.resource = u.resource COLLATE "C" OFFSET 0
            ) AS f
        ) AS judged
        WHERE judged.pending OR judged.decision NOT IN ('raised', 'held')
        ORDER BY judged.resource COLLATE "C";
END
$function$;

-- Tell whether the fence of a resource carries a higher token than this one. A write asks that does not find its own
-- token there.
CREATE FUNCTION fencing.is_overtaken_v1(p_resource text, p_epoch integer, p_value bigint)
RETURNS boolean LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RETURN EXISTS (
        SELECT FROM fencing.fence f WHERE f.resource = p_resource AND (f.epoch, f.value) > (p_epoch, p_value)
    );
END
$function$;

-- Do what claim_v1 does for writes of several senders: raise the fences that are lower, and leave all others alone.
-- Each write looks at its own fence afterwards, in a later statement.
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
