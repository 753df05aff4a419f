-- Writes of one role that share a statement.

-- Check that the code of a table is that which the statement was planned with: its triggers, indexes, constraints and
-- defaults have the same versions. Returns true, or raises 42P01.
-- VOLATILE: it takes a fresh snapshot, with the lock of the table in hand.
CREATE FUNCTION fencing.check_version_v1(p_table oid, p_version text) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
    IF p_version = pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.concat_ws(';',
        (SELECT pg_catalog.string_agg(t.xmin::text, ',' ORDER BY t.oid) FROM pg_catalog.pg_trigger AS t WHERE t.tgrelid = p_table),
        (SELECT pg_catalog.string_agg(i.xmin::text, ',' ORDER BY i.indexrelid) FROM pg_catalog.pg_index AS i WHERE i.indrelid = p_table),
        (SELECT pg_catalog.string_agg(k.xmin::text, ',' ORDER BY k.oid) FROM pg_catalog.pg_constraint AS k WHERE k.conrelid = p_table),
        (SELECT pg_catalog.string_agg(d.xmin::text, ',' ORDER BY d.oid) FROM pg_catalog.pg_attrdef AS d WHERE d.adrelid = p_table)), 'UTF8')), 'hex')
    THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;

-- Write under a role of the callers by one statement: requests of one form, each under another resource. No code of their
-- table reads the settings of a request, so none are set.
--
-- Takes the name of the prepared statement, the role, and names and values of the session's settings. Takes the place of
-- the argument that tells the statement which fences carry their tokens. Takes claims as write_as_v1 does, and for each
-- request its resource, epoch, value and holder. Takes the arguments of the statement, which are arrays.
-- Returns what write_as_v1 does. A request whose fence does not carry its token writes nothing. An error undoes all.
--
-- The order of the steps is that of write_as_v1. A first statement locks the fences and looks at them with the gateway's
-- rights. So the one that writes sees all that the raises of these fences have waited for.
CREATE FUNCTION fencing.write_together_as_v1(
    p_statement text, p_role text, p_pins text[], p_pinned text[], p_held integer, p_claims json, p_resources text[],
    p_epochs integer[], p_values bigint[], p_holders text[], p_arguments text[]
) RETURNS TABLE (
    held boolean, overtaken boolean, touched bigint, inserted bigint, body text, location text, etag text, risen bigint
) LANGUAGE plpgsql VOLATILE AS $function$
DECLARE
    carried boolean[];
    call text;
    as_planned boolean;
    all_touched bigint[];
    all_inserted bigint[];
    strays bigint;
    stray text;
BEGIN
    risen := fencing.claim_each_v1(p_claims);
    -- The arrays are in subqueries of their own. A planner that knew how short one is would plan each batch anew.
    WITH locked AS MATERIALIZED (
        SELECT u.number
        FROM unnest((SELECT p_resources), (SELECT p_epochs), (SELECT p_values), (SELECT p_holders)) WITH ORDINALITY
            AS u (resource, epoch, value, holder, number)
        JOIN fencing.fence AS f ON f.resource = u.resource COLLATE "C" AND f.epoch = u.epoch AND f.value = u.value
        WHERE (u.holder IS NULL OR f.holder IS NULL OR f.holder = u.holder)
          AND NOT EXISTS (
              SELECT FROM fencing.intent AS i WHERE i.resource = f.resource AND (i.epoch, i.value) < (f.epoch, f.value))
        FOR SHARE OF f SKIP LOCKED
    )
    SELECT pg_catalog.array_agg(l.number IS NOT NULL ORDER BY u.number) INTO carried
    FROM pg_catalog.generate_series(1, pg_catalog.cardinality(p_resources)) AS u (number)
    LEFT JOIN locked AS l ON l.number = u.number;
    IF true = ANY (carried) THEN
        p_arguments[p_held] := carried::text;
        SELECT pg_catalog.format(
            'EXECUTE %I(%s)', p_statement, pg_catalog.string_agg(pg_catalog.quote_nullable(u.argument), ', '))
        INTO call FROM pg_catalog.unnest(p_arguments) AS u (argument);
        PERFORM pg_catalog.set_config('role', p_role, true);
        EXECUTE call INTO as_planned, all_touched, all_inserted, strays, stray;
        SET CONSTRAINTS ALL IMMEDIATE;
        RESET ROLE;
        RESET ALL;
        PERFORM fencing.pin_v1(p_pins, p_pinned);
        IF strays > 0 THEN
            PERFORM fencing.refuse_mismatch_v1(stray);
        END IF;
    END IF;
    FOR number IN 1..pg_catalog.cardinality(carried) LOOP
        held := carried[number];
        overtaken := NOT held AND fencing.is_overtaken_v1(p_resources[number], p_epochs[number], p_values[number]);
        touched := all_touched[number];
        inserted := all_inserted[number];
        RETURN NEXT;
    END LOOP;
END
$function$;
