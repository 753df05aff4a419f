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

-- Return whether the database was opened for its present run.
CREATE FUNCTION fencing.is_open_v1() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
SELECT EXISTS (
    SELECT FROM fencing.opening AS o, fencing.run_v1() AS r
    WHERE (o.system, o.timeline, o.started, o.identity) = (r.system, r.timeline, r.started, r.identity)
)
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
CREATE OR REPLACE FUNCTION fencing.claim_many_v1(
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

-- Claim a token, and note for the triggers what is held. It claims as claim_v1 does, in a statement of its own before
-- the write. It runs with the rights of its owner: a writer needs none on the tables of this schema.
-- A gateway checks once for each session that its database is open. A writer's session may be a pooler's, so each claim
-- checks it.
-- Takes the resource, the token as text, a name of the holder, and whether the resource is strict.
-- Returns the decision: raised or held. Raises a refusal, which undoes the claim, the raise included.
CREATE OR REPLACE FUNCTION fencing.hold(resource text, token text, holder text DEFAULT NULL, strict boolean DEFAULT false)
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    shown record := fencing.read_token_v1(hold.token);
    claimed record;
    reason text;
BEGIN
    -- No writer says of itself that its raises are in the journal.
    PERFORM set_config('fencing.secured', '', true);
    IF NOT fencing.is_open_v1() THEN
        RAISE EXCEPTION USING
            ERRCODE = CASE WHEN current_setting('fencing.dialect', true) = 'postgrest' THEN 'PT503' ELSE 'FN503' END,
            MESSAGE = 'The database was not opened for its present run: it may have lost fences.',
            DETAIL = jsonb_build_object('code', 'database-closed')::text,
            HINT = 'Retry: a running gateway opens it at once. If none does, gateway doctor says why.';
    END IF;
    reason := CASE
        WHEN fencing.canonical_v1(hold.resource) IS NOT TRUE THEN 'resource-malformed'
        WHEN shown.value IS NULL THEN 'token-malformed'
        WHEN hold.holder COLLATE "C" !~ '^[!-~]([ -~]{0,198}[!-~])?$' THEN 'holder-malformed'
        -- At these levels the snapshot does not move while the claim waits. A token that it already shows may be held.
        WHEN current_setting('transaction_isolation') IN ('repeatable read', 'serializable') AND NOT EXISTS (
            SELECT FROM fencing.fence f
            WHERE f.resource = hold.resource AND (f.epoch, f.value) >= (shown.epoch, shown.value)) THEN 'isolation'
        END;
    IF reason IS NOT NULL THEN
        PERFORM fencing.refuse_v1(reason, hold.resource, hold.token, hold.holder, NULL, NULL);
    END IF;
    claimed := fencing.claim_v1(hold.resource, shown.epoch, shown.value, hold.holder, fencing.session_role_v1(),
        coalesce(hold.strict, false), fencing.transaction_v1());
    IF claimed.decision NOT IN ('raised', 'held') THEN
        PERFORM fencing.refuse_v1(claimed.decision, hold.resource, hold.token, hold.holder, claimed.fence, NULL);
    ELSIF claimed.pending THEN
        PERFORM fencing.refuse_v1('writes-pending', hold.resource, hold.token, hold.holder, claimed.fence, NULL);
    END IF;
    PERFORM set_config('fencing.held', (
        coalesce(nullif(current_setting('fencing.held', true), '')::jsonb, '{}')
        || jsonb_build_object(hold.resource, jsonb_build_object('token', hold.token, 'holder', hold.holder))
    )::text, true);
    RETURN claimed.decision;
END
$function$;
