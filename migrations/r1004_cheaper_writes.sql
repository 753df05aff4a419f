-- Guards that check a statement in fewer queries. Writes of one role that share a statement.

-- Return whether the database was opened for its present run, for a direct writer's statements. Unlike is_open_v2 it
-- reads neither the control file nor the list of databases. No two servers start in one microsecond. The path of a file
-- has the database.
CREATE FUNCTION fencing.is_open_v3() RETURNS boolean LANGUAGE plpgsql STABLE AS $function$
BEGIN
    PERFORM FROM fencing.opening AS o
    WHERE o.started = pg_postmaster_start_time()
      AND o.timeline = CASE
          WHEN NOT pg_is_in_recovery() THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
      END
      AND o.identity = split_part(pg_relation_filepath('fencing.opening'::regclass), '/', -2)
          || '/' || 'fencing.opening'::regclass::oid;
    RETURN FOUND;
END
$function$;
REVOKE ALL ON FUNCTION fencing.is_open_v3 FROM PUBLIC;

-- Tell whether the session holds a resource, so that guard_v1 would let a write of it pass. Nearly every write passes.
-- One query with the statement's snapshot answers all of the judgement's questions. The list of its results is evaluated
-- only where the fence carries the token. If it confirms nothing, or the resource is strict, guard_v1 has to judge.
-- It is one query for a reason: a transaction prepares each expression and each query of plpgsql anew.
CREATE FUNCTION fencing.guard_holds_v1(p_resource text) RETURNS boolean LANGUAGE plpgsql STABLE AS $function$
DECLARE
    locked boolean;
BEGIN
    SELECT
        CASE
            WHEN current_setting('fencing.open', true) = 'yes' THEN true
            WHEN fencing.is_open_v3() THEN set_config('fencing.open', 'yes', true) = 'yes'
        END AND fencing.guard_locked_v1(f.resource, f.epoch, f.value)
    INTO locked
    FROM fencing.fence AS f
    WHERE f.resource = p_resource
      AND concat_ws('.', nullif(f.epoch, 0), f.value) = CASE
          WHEN current_setting('fencing.held', true) <> ''
          THEN current_setting('fencing.held', true)::jsonb -> p_resource ->> 'token'
          WHEN current_setting('fencing.resource', true) = p_resource THEN current_setting('fencing.token', true) END
      AND (f.holder = CASE
          WHEN current_setting('fencing.held', true) <> ''
          THEN current_setting('fencing.held', true)::jsonb -> p_resource ->> 'holder'
          ELSE nullif(current_setting('fencing.holder', true), '') END) IS NOT FALSE
      AND NOT EXISTS (
          SELECT FROM fencing.intent AS i WHERE i.resource = f.resource AND (i.epoch, i.value) < (f.epoch, f.value));
    RETURN locked IS TRUE;
END
$function$;
REVOKE ALL ON FUNCTION fencing.guard_holds_v1 FROM PUBLIC;

-- Check, before the first row, what the session says it holds. Without this a statement that finds no row would pass
-- under a stale token. It also makes a direct writer lock as the gateway does, fences before rows.
-- It lets the gateway through itself: PostgreSQL reads the condition of a trigger anew for each statement, which costs
-- more than this call.
CREATE FUNCTION fencing.guard_statement_v2() RETURNS trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    name text;
BEGIN
    IF SESSION_USER = TG_ARGV[2] THEN
        RETURN NULL;
    ELSIF coalesce(current_setting('fencing.held', true), '') = ''
        AND fencing.guard_holds_v1(current_setting('fencing.resource', true))
    THEN
        RETURN NULL;
    END IF;
    FOR name IN SELECT k.name FROM jsonb_object_keys(fencing.declared_v1()) AS k (name) ORDER BY k.name COLLATE "C" LOOP
        IF NOT fencing.guard_holds_v1(name) THEN
            PERFORM fencing.guard_v1(name, TG_ARGV[4], TG_OP, TG_ARGV[0] = 'observe', false);
        END IF;
    END LOOP;
    RETURN NULL;
END
$function$;

REVOKE ALL ON FUNCTION fencing.guard_statement_v2 FROM PUBLIC;

-- Check that a table has the version that the statement was planned with: each command that adds a check makes another.
-- Returns true, or raises 42P01. VOLATILE: it takes a fresh snapshot, with the lock of the table in hand.
CREATE FUNCTION fencing.check_version_v1(p_table oid, p_version xid) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.oid = p_table AND c.xmin = p_version) THEN
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
