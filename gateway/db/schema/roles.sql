-- Roles: statements of requests under roles of the database, those of several requests in one transaction
-- (docs/decisions/016). The gateway prepares such a statement on its session, for each role anew. These functions run it
-- once for each request, its member.
--
-- Results are taken by their position (gateway/tables/sql/statements.py): one that is null has no type of its own.
--
-- Both are plpgsql, so that each step has a snapshot of its own. They have no search_path of their own, because the
-- statement has to see that of the session. So all names in them are qualified. No step between taking a role and
-- giving it back looks up a name, but the statement itself: its code may have changed the search_path.

-- Pin the session to its settings again, after RESET ALL. Acknowledged commits survive a crash of the server, whatever
-- the database's default is.
-- Takes the names of settings and their values.
CREATE FUNCTION fencing.pin_v1(p_names text[], p_values text[]) RETURNS void LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
    PERFORM pg_catalog.set_config(u.name, u.value, false) FROM unnest(p_names, p_values) AS u (name, value);
    IF pg_catalog.current_setting('synchronous_commit') IN ('off', 'local') THEN
        PERFORM pg_catalog.set_config('synchronous_commit', 'on', false);
    END IF;
END
$function$;

-- Write under a role of the callers: the requests of one form, whose tokens their fences carry.
--
-- Takes the name of the prepared statement, and the role. Takes the names of the settings that each member has, and names
-- and values of those of the session. Takes the place of the argument that asks for the check of the table. Takes the
-- claims of members whose fences may have to rise, as claim_each_v1 does. Takes a row for each member: its resource,
-- epoch, value and holder, the values of its settings, and the arguments of the statement.
-- Returns a row for each member, in their order. A member whose fence does not carry its token writes nothing and takes
-- no role. An error undoes all.
--
-- The fence is locked by the first step of a member, and looked at with the gateway's rights. The statement is a later
-- one, and its snapshot is newer. So it sees all that the raise of the fence has waited for. That order also is why this
-- cannot be one statement (docs/decisions/004).
--
-- Each member ends with the gateway's rights and the session's settings. Code that runs for one member leaves no setting
-- to the next, nor to the session. Deferred constraints are checked under the role before that. The first statement
-- that runs checks the table. Only a variable in here remembers that, which no such code can reach.
CREATE FUNCTION fencing.write_as_v1(
    p_statement text, p_role text, p_settings text[], p_pins text[], p_pinned text[], p_checks integer, p_claims json,
    p_members text[]
) RETURNS TABLE (
    held boolean, overtaken boolean, touched bigint, inserted bigint, body text, location text, etag text, risen bigint
) LANGUAGE plpgsql VOLATILE AS $function$
DECLARE
    first integer := 5 + pg_catalog.cardinality(p_settings);
    checks boolean := true;
    member text[];
    call text;
    as_planned boolean;
    strays bigint;
    stray text;
BEGIN
    risen := fencing.claim_each_v1(p_claims);
    FOREACH member SLICE 1 IN ARRAY p_members LOOP
        PERFORM FROM fencing.fence AS f
        WHERE f.resource = member[1] AND f.epoch = member[2]::integer AND f.value = member[3]::bigint
          AND (member[4] IS NULL OR f.holder IS NULL OR f.holder = member[4])
          AND NOT EXISTS (
              SELECT FROM fencing.intent AS i WHERE i.resource = f.resource AND (i.epoch, i.value) < (f.epoch, f.value))
        FOR SHARE OF f SKIP LOCKED;
        held := FOUND;
        overtaken := NOT held AND fencing.is_overtaken_v1(member[1], member[2]::integer, member[3]::bigint);
        touched := NULL; inserted := NULL; body := NULL; location := NULL; etag := NULL;
        IF held THEN
            member[p_checks] := checks::text;
            SELECT pg_catalog.format(
                'EXECUTE %I(%s)', p_statement, pg_catalog.string_agg(pg_catalog.quote_nullable(u.argument), ', '))
            INTO call FROM pg_catalog.unnest(member[first:]) AS u (argument);
            PERFORM pg_catalog.set_config(u.name, u.value, true)
            FROM unnest(p_settings, member[5:first - 1]) AS u (name, value);
            PERFORM pg_catalog.set_config('role', p_role, true);
            EXECUTE call INTO as_planned, touched, body, inserted, location, etag, strays, stray;
            SET CONSTRAINTS ALL IMMEDIATE;
            RESET ROLE;
            RESET ALL;
            PERFORM fencing.pin_v1(p_pins, p_pinned);
            checks := false;
            IF strays > 0 THEN
                PERFORM fencing.refuse_mismatch_v1(stray);
            END IF;
        END IF;
        RETURN NEXT;
    END LOOP;
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

-- Read under a role of the callers, in a transaction that cannot write. A policy that writes is an error.
-- Takes what write_as_v1 takes, without claims, and members without a fence.
-- Returns a row for each member, in their order.
CREATE FUNCTION fencing.read_as_v1(
    p_statement text, p_role text, p_settings text[], p_pins text[], p_pinned text[], p_checks integer, p_members text[]
) RETURNS TABLE (touched bigint, body text, total bigint, etag text) LANGUAGE plpgsql VOLATILE AS $function$
DECLARE
    first integer := 1 + pg_catalog.cardinality(p_settings);
    checks boolean := true;
    member text[];
    call text;
    as_planned boolean;
BEGIN
    SET TRANSACTION READ ONLY;
    FOREACH member SLICE 1 IN ARRAY p_members LOOP
        member[p_checks] := checks::text;
        SELECT pg_catalog.format(
            'EXECUTE %I(%s)', p_statement, pg_catalog.string_agg(pg_catalog.quote_nullable(u.argument), ', '))
        INTO call FROM pg_catalog.unnest(member[first:]) AS u (argument);
        PERFORM pg_catalog.set_config(u.name, u.value, true)
        FROM unnest(p_settings, member[1:first - 1]) AS u (name, value);
        PERFORM pg_catalog.set_config('role', p_role, true);
        EXECUTE call INTO as_planned, touched, body, total, etag;
        RESET ROLE;
        RESET ALL;
        PERFORM fencing.pin_v1(p_pins, p_pinned);
        checks := false;
        RETURN NEXT;
    END LOOP;
END
$function$;
