-- Opening: a database that was put back in time forgets fences. Each way back is another run of a server. So gateways
-- serve on a database only if it was opened for its present run, and an opening looks for what was lost.
-- With the journal's mode sync, a fence rises only to a token that is in the journal (docs/journal.md).

-- The last opening. It is put back together with everything else, and names an older run then.
CREATE TABLE fencing.opening (
    -- There is one row.
    present boolean PRIMARY KEY DEFAULT true CHECK (present),
    -- The run: one start of one server, and the identities of this database and this table. A loaded dump has others.
    system text NOT NULL,
    timeline integer NOT NULL,
    started timestamptz NOT NULL,
    identity text NOT NULL,
    -- It grows with each opening.
    term bigint NOT NULL DEFAULT 0,
    -- Null until the first opening after the installation.
    opened_at timestamptz,
    -- The mode of the journal: off, async or sync.
    mode text NOT NULL DEFAULT 'off',
    -- The installation that the journal belongs to. Null until there is a journal.
    installation uuid,
    -- It grows each second while a gateway with a journal runs.
    position bigint NOT NULL DEFAULT 0,
    -- The database has all raises of the journal's snapshots up to this one.
    snapshot bigint NOT NULL DEFAULT 0,
    -- The term in which the journal began anew: by a stronger mode, or by a loss that an operator accepted.
    began bigint NOT NULL DEFAULT 0
);

-- The run of this server. The timeline is null on a standby.
CREATE FUNCTION fencing.run_v1(OUT system text, OUT timeline integer, OUT started timestamptz, OUT identity text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $function$
SELECT (SELECT c.system_identifier::text FROM pg_control_system() AS c),
    -- The name of a segment begins with its timeline. A standby writes none.
    CASE
        WHEN NOT pg_is_in_recovery()
        THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
    END,
    pg_postmaster_start_time(),
    (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()) || '/' || 'fencing.opening'::regclass::oid
$function$;

-- Nothing has been lost at the installation.
INSERT INTO fencing.opening (system, timeline, started, identity)
SELECT r.system, r.timeline, r.started, r.identity FROM fencing.run_v1() AS r;

-- Return whether the database was opened for its present run: whether run_v1 is what the last opening names. Each
-- transaction of a direct writer asks. So it compares what is cheap first, keeps its plan, and has no settings of its
-- own. It runs within functions that have them.
CREATE FUNCTION fencing.is_open_v2() RETURNS boolean LANGUAGE plpgsql STABLE AS $function$
BEGIN
    RETURN EXISTS (
        SELECT FROM fencing.opening AS o
        WHERE o.started = pg_postmaster_start_time()
          AND o.timeline = CASE
              WHEN NOT pg_is_in_recovery()
              THEN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
          END
          AND o.identity = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
              || '/' || 'fencing.opening'::regclass::oid
          AND o.system = (SELECT c.system_identifier::text FROM pg_control_system() AS c));
END
$function$;
REVOKE ALL ON FUNCTION fencing.is_open_v2 FROM PUBLIC;

-- Do what is_open_v2 does, for any session.
CREATE FUNCTION fencing.is_open_v1() RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RETURN fencing.is_open_v2();
END
$function$;

-- Raise an error unless the database was opened for its present run. A session is of one run, so each transaction
-- compares once. Any session may set the setting that says so, as it may claim any token.
CREATE FUNCTION fencing.check_open_v1() RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF current_setting('fencing.open', true) = 'yes' THEN
        RETURN;
    ELSIF NOT fencing.is_open_v1() THEN
        RAISE EXCEPTION USING
            ERRCODE = CASE WHEN current_setting('fencing.dialect', true) = 'postgrest' THEN 'PT503' ELSE 'FN503' END,
            MESSAGE = 'The database was not opened for its present run: it may have lost fences.',
            DETAIL = jsonb_build_object('code', 'database-closed')::text,
            HINT = 'Retry: a running gateway opens it at once, and if not, gateway doctor says why. '
                'Without a gateway, the operator runs: gateway open --dsn OWNER';
    END IF;
    PERFORM set_config('fencing.open', 'yes', true);
END
$function$;

-- With mode sync, raise an error if one of these raises is not in the journal.
-- Takes raises as `resource epoch.value`. The setting fencing.secured has the raises of this transaction that are in
-- the journal, with commas. The setting fencing.looked has the term that the journal's marker had afterwards.
-- Raises FN504 with the raises that are not in the journal, for the gateway to append them and to begin again. Raises
-- FN505 if the database was opened in an older term than the marker's, or for another run.
-- It locks nothing: an opening waits for all transactions that have raised a fence, and they for it.
CREATE FUNCTION fencing.check_secured_v1(p_raises text[]) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    opened_in bigint := (SELECT o.term FROM fencing.opening AS o);
    unsecured text;
BEGIN
    IF opened_in < coalesce(nullif(current_setting('fencing.looked', true), '')::bigint, 0)
        OR NOT fencing.is_open_v1()
    THEN
        RAISE EXCEPTION USING ERRCODE = 'FN505', MESSAGE = 'The database was opened in an older term than the journal says.',
            HINT = 'Retry: a gateway opens it.';
    END IF;
    SELECT string_agg(r.entry, ',') INTO unsecured FROM unnest(p_raises) AS r (entry)
    WHERE r.entry COLLATE "C" NOT IN (
        SELECT s.entry COLLATE "C"
        FROM unnest(string_to_array(coalesce(current_setting('fencing.secured', true), ''), ',')) AS s (entry));
    IF unsecured IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'FN504', MESSAGE = 'The raise of a fence is not in the journal.',
            DETAIL = unsecured, HINT = 'Raise the fence through a gateway first, by a barrier.';
    END IF;
END
$function$;

-- Check each raise of a fence, by whatever statement. claim_many_v1 asks for all of its raises at once, before.
-- A gateway's session says in the setting fencing.journal which mode it keeps to. Another one may be in force since.
CREATE FUNCTION fencing.check_raises_v1() RETURNS trigger
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    mode text := (SELECT o.mode FROM fencing.opening AS o);
    raises text[];
BEGIN
    IF coalesce(current_setting('fencing.journal', true), '') NOT IN ('', mode) THEN
        RAISE EXCEPTION USING ERRCODE = 'FN505', MESSAGE = 'The database was opened with another mode of the journal.',
            HINT = 'Retry: the gateway opens the database, or says what keeps it closed.';
    ELSIF mode <> 'sync' THEN
        RETURN NULL;
    ELSIF TG_OP = 'INSERT' THEN
        raises := ARRAY(SELECT r.resource || ' ' || r.epoch || '.' || r.value FROM raised AS r);
    ELSE
        raises := ARRAY(
            SELECT r.resource || ' ' || r.epoch || '.' || r.value
            FROM raised AS r JOIN former AS f ON f.resource = r.resource
            WHERE (f.epoch, f.value) < (r.epoch, r.value));
    END IF;
    IF cardinality(raises) > 0 THEN
        PERFORM fencing.check_secured_v1(raises);
    END IF;
    RETURN NULL;
END
$function$;

-- By the statement: with mode off it costs 3 microseconds, of which the tables of rows are one.
CREATE TRIGGER inserted AFTER INSERT ON fencing.fence REFERENCING NEW TABLE AS raised
FOR EACH STATEMENT EXECUTE FUNCTION fencing.check_raises_v1();
CREATE TRIGGER updated AFTER UPDATE ON fencing.fence REFERENCING OLD TABLE AS former NEW TABLE AS raised
FOR EACH STATEMENT EXECUTE FUNCTION fencing.check_raises_v1();
