-- Frozen: what the first migration installs. gateway/db/schema says what each object is for, as it is today.
-- Fences: the highest token that each resource has seen, and the canonical spelling of names. claim.sql raises them.

-- One row for each resource. Never deleted: a fence that is gone lets overtaken holders write again.
CREATE TABLE fencing.fence (
    resource text COLLATE "C" PRIMARY KEY,
    epoch integer NOT NULL CHECK (epoch >= 0),
    value bigint NOT NULL CHECK (value >= 0),
    holder text,
    caller text,
    raised_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- The write that used up this token on a strict resource. Null while only a barrier has shown the token.
    write_id uuid
) WITH (fillfactor = 70);

-- Spell a value so that it can be one segment of a resource name.
-- Takes any text.
-- Returns it percent-encoded; `.` and `..`, with any number of `~` behind, get one `~` more. Agrees to the letter
-- with gateway.fencing.resource.escape.
CREATE FUNCTION fencing.escape_v1(value text) RETURNS text LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE
    WHEN starts_with(value, '.') AND value COLLATE "C" ~ '^[.][.]?~*$' THEN value || '~'
    WHEN value COLLATE "C" ~ '^[A-Za-z0-9._~!$&''()*+;:@-]*$' THEN value
    ELSE (
        SELECT string_agg(
            CASE WHEN letter COLLATE "C" ~ '^[A-Za-z0-9._~!$&''()*+;:@-]$' THEN letter
                 ELSE regexp_replace(upper(encode(convert_to(letter, 'UTF8'), 'hex')), '(..)', '%\1', 'g') END,
            '' ORDER BY position)
        FROM unnest(string_to_array(value, NULL)) WITH ORDINALITY AS letters (letter, position)
    )
END;

-- Tell whether a text is a resource name in canonical form.
-- Returns null for null. Agrees to the letter with gateway.fencing.resource.canonical.
CREATE FUNCTION fencing.canonical_v1(name text) RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN octet_length(name) <= 512
    AND name COLLATE "C" ~ '^([A-Za-z0-9._~!$&''()*+;:@/-]|%[0-9A-F]{2})+$'
    AND name COLLATE "C" !~ '%(2[146-9ABDE]|3[0-9AB]|4[0-9A-F]|5[0-9AF]|6[1-9A-F]|7[0-9AE])'
    AND name COLLATE "C" !~ '(^|/)[.][.]?(/|$)';
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
            HINT = 'Retry: a running gateway opens it at once. If none does, gateway doctor says why.';
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
-- Ownership: the names that this database has fences for, if its gateways serve several databases. No two of them may
-- serve one name. So what each owns is a fact in it, and not of a gateway's configuration.

-- The share of this database, and the rules that say so: see gateway.fencing.shares.
CREATE TABLE fencing.ownership (
    -- There is one row.
    present boolean PRIMARY KEY DEFAULT true CHECK (present),
    -- Its name among its databases. Null while it is the only one of its gateways, and owns all names.
    name text COLLATE "C",
    -- All that it owns. A gateway whose rules give it anything else gets no session.
    share text COLLATE "C",
    -- The rules of all databases at that time, and the number of the change that brought them.
    rules jsonb,
    number bigint NOT NULL DEFAULT 0,
    -- All databases that belong together have the same one.
    fleet uuid,
    -- The name, share and rules that are being applied. No gateway gets a session meanwhile.
    following jsonb,
    -- How often it was closed. The fence of #ownership has the same number, and the journal has that fence. So the row of
    -- a database that was put back to before a change has a lower one. No resource can have that name: see canonical_v1.
    closings bigint NOT NULL DEFAULT 0,
    -- Null until the first change.
    changed_at timestamptz
);
INSERT INTO fencing.ownership DEFAULT VALUES;

-- Let a session of a gateway in, which compares what is returned with its own rules, and leaves if they differ.
-- The session shares a lock until its end. A change first commits what follows, and then ends each session that has the
-- lock. So a session is either among these, or has seen what follows. VOLATILE: the row is read after the lock is taken.
-- Returns the name and share in force, whether they are being changed, and whether the lock was free. `put_back`: the row
-- is from before a change. The opening has restored the fence by then.
CREATE FUNCTION fencing.enter_v1(
    OUT entered boolean, OUT name text, OUT share text, OUT changing boolean, OUT put_back boolean
)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    entered := pg_try_advisory_lock_shared(5461936);
    SELECT o.name, o.share, o.following IS NOT NULL,
        EXISTS (SELECT FROM fencing.fence AS f WHERE f.resource = '#ownership' AND f.value > o.closings)
    INTO STRICT name, share, changing, put_back FROM fencing.ownership AS o;
END
$function$;
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
-- Naming: what the rows of a table and the keys of a bucket are called. A fence protects a row only under the name that
-- all writers give it. So the naming in force is a fact of the database, and not of a gateway's configuration.

-- The naming of each fenced table. Never deleted: a table without one gets that of the first gateway that serves it.
-- A table that was renamed has a row for each of its names, and a name has a row for each table that bore it. All rows
-- of a name or of a relation have one naming.
CREATE TABLE fencing.table_naming (
    -- schema.table, as in the configuration.
    name text COLLATE "C" NOT NULL,
    -- It follows the table when that is renamed, and a dump restores it by its name.
    relation regclass NOT NULL,
    -- The literals of the template, and the columns between them: see gateway.fencing.naming.
    naming jsonb NOT NULL,
    -- Each change gives it another one. A write proves the one that it was planned with.
    generation uuid NOT NULL DEFAULT gen_random_uuid(),
    -- The next naming, while it is being applied. No write proves the generation of that time.
    change jsonb,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (relation, name)
);

-- The naming of each fenced bucket: the rules of its keys, in their order.
CREATE TABLE fencing.bucket_naming (
    name text COLLATE "C" PRIMARY KEY,
    naming jsonb NOT NULL,
    generation uuid NOT NULL DEFAULT gen_random_uuid(),
    change jsonb,
    changed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Check that the rows of a table are called as the statement was planned with. The statement has its lock of the table
-- by then. A change of the naming waits for that lock, and commits before the snapshot here or after the write.
-- Takes the table and the generation of its naming.
-- Returns true, or raises 42P01, which undoes the write.
-- VOLATILE: it takes a fresh snapshot, with the lock of the table in hand.
-- SECURITY DEFINER: the statement of a write may run under a role of its caller, which has no right on the naming.
CREATE FUNCTION fencing.check_table_naming_v1(p_relation oid, p_generation uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF EXISTS (
        SELECT FROM fencing.table_naming AS n WHERE n.relation = p_relation AND n.generation = p_generation
    ) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;

-- Check, for the announcement of an object write, that the keys of its bucket are called as the gateway believes. The
-- lock of the naming is held until the transaction ends. A change takes that lock alone, so each announcement is there
-- before it or is refused.
-- Takes the bucket and the generation of its naming. A null generation checks nothing: the write is only observed.
-- Returns true, or raises FN503, which undoes the announcement.
CREATE FUNCTION fencing.check_bucket_naming_v1(p_bucket text, p_generation uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF p_generation IS NULL OR EXISTS (
        SELECT FROM fencing.bucket_naming AS n WHERE n.name = p_bucket AND n.generation = p_generation
    ) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = 'FN503', MESSAGE = 'fencing.a_naming_that_has_changed';
END
$function$;
-- Intents: what is written down about an object write before its request is sent to the store, and what is left of
-- it.

-- An object write that may be under way. A key has one of them, or several that wait for the same ETag or complete the
-- same upload. Each but the first settles the ones before it, if it takes effect.
CREATE TABLE fencing.intent (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    write_id uuid NOT NULL,
    -- Intents that were lost have the lowest token there is, in epoch -1: all raises and writes settle them.
    -- Housekeeping has the highest token there is: no holder is newer, so that only writes of its key have to settle it.
    epoch integer NOT NULL,
    value bigint NOT NULL,
    -- The ETag that the request is conditioned on; null is absence.
    expected text,
    -- By the store's clock. The request carries this time.
    signed_at timestamptz NOT NULL DEFAULT now(),
    -- A write that starts again is another intent: a session that settled the first must not remove the second.
    attempt integer NOT NULL,
    -- A settlement has begun: what the write leaves may be replaced at any moment.
    settling boolean NOT NULL DEFAULT false,
    -- How the request is made unable to take effect: see gateway.fencing.intent.Kind.
    kind text NOT NULL DEFAULT 'conditional' CHECK (kind IN ('conditional', 'upload', 'amendment', 'lost')),
    -- The multipart upload that a request of kind 'upload' completes.
    upload_id text,
    -- So long after signed_at, by the store's clock, the request has had its effect or never has it.
    dead_after interval NOT NULL DEFAULT interval '105 seconds',
    -- 0 for the newest one of the key, so that two writes cannot both find the key free.
    rank integer NOT NULL DEFAULT 0,
    -- By the database's clock.
    announced_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (resource, bucket, key, rank),
    CHECK ((upload_id IS NOT NULL) = (kind = 'upload'))
    -- Each write inserts and deletes a row: vacuumed after a number of rows, not after a share of a nearly empty table.
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- ETags that must not come back on a key, because a delayed request is conditioned on them; '' is absence. They may come
-- back after dead_at, by the store's clock. From then on no such request can take effect.
CREATE TABLE fencing.forbidden (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    etag text COLLATE "C" NOT NULL,
    dead_at timestamptz NOT NULL,
    PRIMARY KEY (resource, bucket, key, etag)
);

-- Conditions of requests that were sent and are over; '' is absence. Such a request may be delivered a second time.
-- So its ETag should not come back to the key before dead_at, by the store's clock. From then on the store refuses
-- the signatures of such requests.
CREATE TABLE fencing.spent (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    etag text COLLATE "C" NOT NULL,
    -- The lowest token that such a request had.
    epoch integer NOT NULL,
    value bigint NOT NULL,
    dead_at timestamptz NOT NULL,
    PRIMARY KEY (resource, bucket, key, etag)
    -- Each write inserts a row, and the sweeper deletes it some minutes later.
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);
CREATE INDEX spent_dead ON fencing.spent (dead_at);

-- Announce an object write: claim the resource, and write the intent down unless something must be settled first.
--
-- Takes what claim_v1 takes, and:
--   p_observe       refusals are returned and not obeyed. Such a write counts as the fence's own token, so that the next
--                   holder settles it like any other. Only here may the token be null.
--   p_looked        the sender has looked at the key and saw p_etag and p_tombstone. Otherwise the condition is what is
--                   remembered of the key, else absence.
--   p_dead_after    as of the intent.
--   p_entombs       the write leaves a tombstone, which is listed before it is there.
--   p_removes       the write makes its key absent, and leaves a tombstone where absence is spent or forbidden.
--   p_outcomes      the ETags that the write can leave; null asks for all spent conditions of the key.
--   p_housekeeping  the write belongs to no holder: it waits for intents of its key only, and only writes of its key
--                   wait for it.
--   p_calm          write nothing down if an ETag of the key is forbidden that is not its present one.
--   p_over, p_over_attempts  intents that the write itself settles. They wait for the ETag that was seen, or
--                   complete the same upload. Others are pending.
--   p_signed_at     the store's clock as of the call, with which the request is signed; null: the database's.
--   p_store_time    the store's clock as of its last answer, null if it is not known.
-- Returns the decision and the fence as claim_v1 does, and:
--   pending       intents that must be settled first: the write is not announced.
--   signed_at     the time in the request's signature; null: the write is not announced. It is p_signed_at, and the time
--                 that the call has waited for locks.
--   forbidden     the ETags that must not come back on the key.
--   etag, tombstone  what the write is conditioned on.
--   spent         which of p_outcomes are spent.
CREATE FUNCTION fencing.begin_v2(
    p_resource text, p_epoch integer, p_value bigint, p_holder text, p_caller text, p_strict boolean,
    p_observe boolean, p_bucket text, p_key text, p_write_id uuid, p_attempt integer,
    p_looked boolean, p_etag text, p_tombstone boolean,
    p_kind text, p_upload_id text, p_dead_after interval, p_entombs boolean, p_removes boolean, p_outcomes text[],
    p_housekeeping boolean, p_calm boolean, p_over uuid[], p_over_attempts integer[],
    p_signed_at timestamptz, p_store_time timestamptz,
    OUT decision text, OUT fence fencing.fence, OUT pending fencing.intent[], OUT signed_at timestamptz,
    OUT forbidden fencing.forbidden[], OUT etag text, OUT tombstone boolean, OUT spent fencing.spent[]
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    claimed record;
    own_epoch integer := p_epoch;
    own_value bigint := p_value;
    over_ids uuid[] := '{}';
    highest integer;
    waited text;
BEGIN
    IF p_value IS NULL THEN
        SELECT * INTO fence FROM fencing.fence f WHERE f.resource = p_resource FOR SHARE;
    ELSE
        claimed := fencing.claim_v1(p_resource, p_epoch, p_value, p_holder, p_caller, p_strict, p_write_id);
        decision := claimed.decision;
        fence := claimed.fence;
    END IF;
    IF decision IS NULL OR decision NOT IN ('raised', 'held') THEN
        IF NOT p_observe THEN
            RETURN;
        END IF;
        own_epoch := coalesce(fence.epoch, 0);
        own_value := coalesce(fence.value, 0);
    END IF;
    -- Locked, so that none of them goes before this intent is there: else a third writer could find the key free.
    IF cardinality(p_over) > 0 THEN
        over_ids := ARRAY(
            SELECT i.write_id FROM fencing.intent i
            JOIN unnest(p_over, p_over_attempts) AS o (write_id, attempt) USING (write_id, attempt)
            WHERE i.resource = p_resource AND i.bucket = p_bucket AND i.key = p_key
              AND CASE i.kind WHEN 'conditional' THEN p_looked AND i.expected IS NOT DISTINCT FROM p_etag
                  WHEN 'upload' THEN i.upload_id = p_upload_id ELSE false END
            FOR UPDATE OF i
        );
    END IF;
    -- Nearly always there is nothing to forget.
    IF EXISTS (
        SELECT FROM fencing.forbidden o WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key
    ) THEN
        DELETE FROM fencing.forbidden o
        WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key AND o.dead_at < p_store_time;
    END IF;
    FOR attempt IN 1..2 LOOP
        pending := ARRAY(
            SELECT i FROM fencing.intent i
            WHERE i.resource = p_resource
              AND ((i.bucket = p_bucket AND i.key = p_key)
                  OR ((i.epoch, i.value) < (own_epoch, own_value) AND NOT p_housekeeping) OR i.kind = 'lost')
              AND NOT (i.bucket = p_bucket AND i.key = p_key AND i.write_id = ANY (over_ids))
            ORDER BY i.bucket, i.key, i.rank
        );
        EXIT WHEN cardinality(pending) > 0;
        etag := p_etag;
        tombstone := p_tombstone;
        IF NOT p_looked THEN
            SELECT o.etag, o.tombstone INTO etag, tombstone FROM fencing.object o
            WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key;
        END IF;
        tombstone := coalesce(tombstone, false);
        EXIT WHEN p_calm AND etag IS NOT NULL AND NOT tombstone AND EXISTS (
            SELECT FROM fencing.forbidden o
            WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key AND o.etag NOT IN ('', begin_v2.etag)
        );
        IF cardinality(over_ids) > 0 THEN
            SELECT max(i.rank) INTO highest FROM fencing.intent i
            WHERE i.resource = p_resource AND i.bucket = p_bucket AND i.key = p_key;
            UPDATE fencing.intent i SET rank = highest + 1
            WHERE i.resource = p_resource AND i.bucket = p_bucket AND i.key = p_key AND i.rank = 0;
        END IF;
        INSERT INTO fencing.intent (
            resource, bucket, key, write_id, attempt, epoch, value, expected, kind, upload_id, dead_after, signed_at)
        VALUES (p_resource, p_bucket, p_key, p_write_id, p_attempt,
            CASE WHEN p_housekeeping THEN 2147483647 ELSE own_epoch END,
            CASE WHEN p_housekeeping THEN 9223372036854775807 ELSE own_value END,
            etag, p_kind, p_upload_id, p_dead_after,
            coalesce(p_signed_at + (clock_timestamp() - statement_timestamp()), now()))
        ON CONFLICT (resource, bucket, key, rank) DO NOTHING
        RETURNING intent.signed_at INTO signed_at;
        EXIT WHEN FOUND;
    END LOOP;
    IF signed_at IS NOT NULL AND cardinality(over_ids) > 0 THEN
        UPDATE fencing.intent i SET settling = true
        WHERE i.resource = p_resource AND i.bucket = p_bucket AND i.key = p_key AND i.write_id = ANY (over_ids);
        INSERT INTO fencing.forbidden AS f (resource, bucket, key, etag, dead_at)
        SELECT p_resource, p_bucket, p_key, coalesce(i.expected, ''), max(i.signed_at + i.dead_after)
        FROM fencing.intent i
        WHERE i.resource = p_resource AND i.bucket = p_bucket AND i.key = p_key AND i.write_id = ANY (over_ids)
          AND i.kind = 'conditional'
        GROUP BY i.expected
        ON CONFLICT ON CONSTRAINT forbidden_pkey DO UPDATE SET dead_at = greatest(f.dead_at, excluded.dead_at)
        RETURNING f.etag INTO waited;
    END IF;
    -- Two statements, so that the index finds a few outcomes among many conditions of a key that is written often.
    IF p_outcomes IS NULL THEN
        spent := ARRAY(
            SELECT s FROM fencing.spent s
            WHERE s.resource = p_resource AND s.bucket = p_bucket AND s.key = p_key
              AND (p_store_time IS NULL OR s.dead_at >= p_store_time)
            ORDER BY s.dead_at, s.etag
        );
    ELSE
        spent := ARRAY(
            SELECT s FROM fencing.spent s
            WHERE s.resource = p_resource AND s.bucket = p_bucket AND s.key = p_key AND s.etag = ANY (p_outcomes)
              AND (p_store_time IS NULL OR s.dead_at >= p_store_time)
            ORDER BY s.dead_at, s.etag
        );
    END IF;
    forbidden := ARRAY(
        SELECT o FROM fencing.forbidden o
        WHERE o.resource = p_resource AND o.bucket = p_bucket AND o.key = p_key ORDER BY o.etag
    );
    p_entombs := p_entombs OR waited = '' OR (p_removes AND (
        EXISTS (SELECT FROM unnest(spent) AS s WHERE s.etag = '')
        OR EXISTS (SELECT FROM unnest(forbidden) AS o WHERE o.etag = '')));
    IF p_entombs AND signed_at IS NOT NULL THEN
        INSERT INTO fencing.tombstone (resource, bucket, key) VALUES (p_resource, p_bucket, p_key)
        ON CONFLICT (resource, bucket, key) DO NOTHING;
    END IF;
END
$function$;

-- Raise a fence without writing, which is a barrier's transaction.
-- Takes what claim_v1 takes.
-- Returns its decision, the fence, and the object writes with lower tokens that are still pending; the barrier
-- settles them before it answers.
CREATE FUNCTION fencing.raise_v1(
    p_resource text, p_epoch integer, p_value bigint, p_holder text, p_caller text,
    OUT decision text, OUT fence fencing.fence, OUT pending fencing.intent[]
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    claimed record;
BEGIN
    claimed := fencing.claim_v1(p_resource, p_epoch, p_value, p_holder, p_caller, false, NULL);
    decision := claimed.decision;
    fence := claimed.fence;
    pending := CASE WHEN decision IN ('raised', 'held') THEN ARRAY(
        SELECT i FROM fencing.intent i
        WHERE i.resource = p_resource AND (i.epoch, i.value) < (p_epoch, p_value)
        ORDER BY i.bucket, i.key, i.rank
    ) ELSE '{}' END;
END
$function$;
-- Objects: what is remembered of keys, uploads and tombstones in buckets.

-- The ETag that a key had after the last write through the gateway. A cache: rows may vanish at any time.
CREATE TABLE fencing.object (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    etag text,
    tombstone boolean NOT NULL,
    -- Only a write through the gateway can have changed the key since, so that a bypass is measured by this row. False
    -- where an amendment looked at the key before it was announced, and where the write may have been settled.
    witnessed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (resource, bucket, key)
) WITH (fillfactor = 70);
CREATE INDEX object_place ON fencing.object (bucket, key);

-- A multipart upload that was opened through the gateway, and is neither completed nor given up as far as is known.
CREATE TABLE fencing.upload (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    upload_id text COLLATE "C" NOT NULL,
    -- Stands in the metadata of the object that the upload becomes.
    write_id uuid NOT NULL,
    -- The token that was presented when it was opened. It is valid for parts and completion that present none.
    epoch integer,
    value bigint,
    holder text,
    caller text NOT NULL,
    -- The gateway itself opened it, to take in one large body: only the gateway knows of it and cleans it up.
    staged boolean NOT NULL,
    touched_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at timestamptz,
    -- The proof that the token was issued, which is asked about again with each part.
    sequencer text,
    PRIMARY KEY (resource, bucket, key, upload_id)
);
CREATE INDEX upload_touched ON fencing.upload (touched_at);
CREATE INDEX upload_staged ON fencing.upload (bucket, key) WHERE staged;

-- Keys at which a tombstone may stand. A row comes before its tombstone and goes after it, so that none is missed.
CREATE TABLE fencing.tombstone (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- When the tombstone was listed, or last taken up by the sweeper.
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (resource, bucket, key)
);
CREATE INDEX tombstone_listed ON fencing.tombstone (bucket, key);
CREATE INDEX tombstone_at ON fencing.tombstone (at);

-- How far the comparison of a bucket's listing with what is remembered has got. taken_at: when a gateway last took it
-- up.
CREATE TABLE fencing.patrol (
    bucket text COLLATE "C" PRIMARY KEY,
    after text COLLATE "C" NOT NULL DEFAULT '',
    taken_at timestamptz NOT NULL DEFAULT '-infinity'
);
-- Writes to tables: what each statement asks about its table. These questions are functions. Inside the statement
-- they would be plans of their own, which PostgreSQL sets up for each execution even where they are not asked. That
-- was half of what a write cost in a batch (docs/decisions/029, 030).

-- Undo a statement whose touched rows do not belong to the claimed resource.
-- Takes the name that was touched. Raises FN422 with that name as the message.
CREATE FUNCTION fencing.refuse_mismatch_v1(touched text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'FN422', MESSAGE = coalesce(touched, '');
END
$function$;

-- Tell whether Citus manages a table. It may write rows of such a table on another node than the fence, and by another
-- transaction there. The two become visible one after the other (docs/decisions/100-citus-tables-are-refused.md).
-- The shards on a node count as well: Citus moves them, and copies of a reference table must stay alike.
-- Returns false where there is no Citus. VOLATILE callers pass their fresh snapshot on.
CREATE FUNCTION fencing.is_distributed_v1(p_table oid) RETURNS boolean LANGUAGE plpgsql STABLE AS $function$
DECLARE
    distributed boolean;
BEGIN
    IF pg_catalog.current_setting('citus.shard_count', true) IS NULL
        OR pg_catalog.to_regclass('pg_catalog.pg_dist_partition') IS NULL
    THEN
        RETURN false;
    END IF;
    EXECUTE 'SELECT EXISTS (SELECT FROM pg_catalog.pg_dist_partition AS d WHERE d.logicalrelid = $1)
        OR pg_catalog.relation_is_a_known_shard($1)'
    INTO distributed USING p_table;
    RETURN distributed;
END
$function$;

-- Check that a transaction has used no other node. Code in the database may have written to tables that Citus manages.
-- Raises 0A000. Reads of such tables count, because Citus does not say which of them were writes.
CREATE FUNCTION fencing.check_one_node_v1() RETURNS void LANGUAGE plpgsql VOLATILE AS $function$
DECLARE
    elsewhere boolean;
BEGIN
    IF pg_catalog.current_setting('citus.shard_count', true) IS NULL
        OR pg_catalog.to_regprocedure('pg_catalog.get_current_transaction_id()') IS NULL
    THEN
        RETURN;
    END IF;
    EXECUTE 'SELECT t.transaction_number > 0 FROM pg_catalog.get_current_transaction_id() AS t' INTO elsewhere;
    IF elsewhere THEN
        RAISE EXCEPTION USING ERRCODE = '0A000',
            MESSAGE = 'Code in the database has used a table that Citus manages, in the transaction of a fenced write.',
            DETAIL = 'Fence and rows would commit on several nodes, one after the other. Nothing was written.',
            HINT = 'Let triggers and functions use tables of this node only.';
    END IF;
END
$function$;

-- Check that a table is what the statement was planned with. A column's row in the catalog gets another xmin with
-- each change. A key lives and dies with its index, and any property of an index that is gone is null.
-- Takes the table, its name and kind, which features the plan has allowed for, the xmin of its columns and its key. The
-- last argument tells whether Citus manages it.
-- Returns true, or raises 42P01, which undoes what triggers have done by then.
-- VOLATILE: it takes a fresh snapshot, with the lock of the table in hand.
CREATE FUNCTION fencing.check_unchanged_v1(
    p_table oid, p_name text, p_kind "char", p_rules boolean, p_children boolean, p_row_security boolean,
    p_columns xid[], p_keyed boolean, p_key oid, p_statement_triggers boolean, p_row_triggers boolean,
    p_distributed boolean
) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_class AS c
        WHERE c.oid = p_table AND c.oid = pg_catalog.to_regclass(p_name) AND c.relkind = p_kind
          AND (p_row_security OR NOT c.relrowsecurity)
          AND (p_rules OR NOT c.relhasrules)
          AND (p_children OR NOT c.relhassubclass)
          -- Nothing else in the catalog changes when Citus takes a table over. Most servers have no such setting.
          AND (pg_catalog.current_setting('citus.shard_count', true) IS NULL
               OR fencing.is_distributed_v1(c.oid) = p_distributed)
          AND (NOT c.relhastriggers OR NOT EXISTS (
              SELECT FROM pg_catalog.pg_trigger AS g JOIN pg_catalog.pg_proc AS p ON p.oid = g.tgfoid
              WHERE g.tgrelid = p_table AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND g.tgtype & 28 <> 0
                AND ((NOT p_statement_triggers AND g.tgtype & 1 = 0)
                     OR (NOT p_row_triggers AND g.tgtype & 1 <> 0 AND g.tgtype & 66 <> 0))
                AND p.pronamespace <> 'fencing'::regnamespace
          ))
    ) AND ARRAY(
        SELECT a.xmin FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = p_table AND a.attnum > 0 ORDER BY a.attnum
    ) = p_columns
    AND (
        NOT p_keyed
        OR pg_catalog.pg_index_has_property(p_key, 'clusterable') IS NOT NULL
        OR p_key IS NULL
           AND NOT EXISTS (SELECT FROM pg_catalog.pg_index AS i WHERE i.indrelid = p_table AND i.indisprimary)
    ) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;

-- Check, for a read, that the name still means this table, and that the relation is still of this kind.
-- Returns true, or raises 42P01.
CREATE FUNCTION fencing.check_relation_v1(p_table oid, p_name text, p_kind "char", p_row_security boolean)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
    IF EXISTS (
        SELECT FROM pg_catalog.pg_class AS c
        WHERE c.oid = p_table AND c.oid = pg_catalog.to_regclass(p_name) AND c.relkind = p_kind
          AND (p_row_security OR NOT c.relrowsecurity)
    ) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;

-- Tell whether a write of a table may reach a foreign table, or one that Citus manages. Another transaction than the
-- fence's writes their rows. A foreign table can be a partition, a child, or what a view or a rule writes, at any depth. All that a view or a
-- rule refers to counts as reached, even where it is only read. Only the server can tell which of it is written.
CREATE FUNCTION fencing.reaches_foreign_v1(p_table oid) RETURNS boolean LANGUAGE sql STABLE AS $function$
    WITH RECURSIVE reached (oid) AS (
        SELECT p_table
        UNION
        SELECT next.oid
        FROM reached AS r CROSS JOIN LATERAL (
            SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = r.oid
            UNION ALL
            SELECT d.refobjid
            FROM pg_catalog.pg_rewrite AS w JOIN pg_catalog.pg_depend AS d ON d.objid = w.oid
            WHERE w.ev_class = r.oid AND d.classid = 'pg_catalog.pg_rewrite'::regclass
              AND d.refclassid = 'pg_catalog.pg_class'::regclass
        ) AS next (oid)
    )
    SELECT EXISTS (
        SELECT FROM reached AS r JOIN pg_catalog.pg_class AS c ON c.oid = r.oid
        WHERE c.relkind = 'f'
           OR (pg_catalog.current_setting('citus.shard_count', true) IS NOT NULL AND fencing.is_distributed_v1(c.oid))
    )
$function$;

-- Check that a table reaches foreign tables if and only if the plan says so. A partition can be attached at any time,
-- and writes of the parent go on meanwhile: so each such write asks again.
-- Returns true, or raises 42P01. VOLATILE: it sees each partition that the statement itself may see.
CREATE FUNCTION fencing.check_foreign_v1(p_table oid, p_reaches boolean) RETURNS boolean LANGUAGE plpgsql VOLATILE
AS $function$
BEGIN
    IF fencing.reaches_foreign_v1(p_table) = p_reaches THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION USING ERRCODE = '42P01', MESSAGE = 'fencing.a_table_that_has_changed';
END
$function$;
-- Idempotency: answers that are kept by their key, so that a write that is sent again is not carried out again.

-- The row goes in first and the answer last, in the transaction of the write itself: a session that sees the row sees
-- the answer.
CREATE TABLE fencing.idempotency (
    caller text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- The request without its token: a retry may come from the next holder.
    fingerprint bytea NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    status smallint,
    -- The headers of the answer, as a JSON array of pairs.
    headers text,
    body bytea,
    -- The resources that the write claimed, each with the number of the write of a list that claimed it; a JSON array
    -- of pairs. Giving the answer again raises those fences.
    claimed text NOT NULL DEFAULT '[]',
    PRIMARY KEY (caller, key)
);
CREATE INDEX idempotency_at ON fencing.idempotency (at);
-- The record: entries come in at the intake, and are sealed into a chain in one order. The manual, docs/record.md,
-- describes its content and the proofs of the chain.

-- Entries that are written and not sealed yet. Only the key is indexed, so that no writer waits for another one here.
CREATE TABLE fencing.intake (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text COLLATE "C" NOT NULL,
    plane text COLLATE "C",
    rule text COLLATE "C",
    resource text COLLATE "C",
    reason text COLLATE "C",
    enforced boolean,
    -- The writer: the one that was refused, or the new holder.
    epoch integer,
    value bigint,
    holder text COLLATE "C",
    caller text COLLATE "C",
    method text COLLATE "C",
    target text COLLATE "C",
    client text COLLATE "C",
    request_id text COLLATE "C",
    payload_size bigint,
    payload_sha256 text COLLATE "C",
    -- The fence that it met: the one that refused it, or the one it has overtaken.
    fence_epoch integer,
    fence_value bigint,
    fence_holder text COLLATE "C",
    fence_caller text COLLATE "C",
    fence_raised_at timestamptz,
    details jsonb,
    -- The record is indexed. A text that is too long for an index has to be refused here. Otherwise neither the entry
    -- nor the ones behind it could be sealed.
    CHECK (
        octet_length(kind) <= 2048 AND octet_length(plane) <= 2048 AND octet_length(rule) <= 2048
        AND octet_length(resource) <= 2048 AND octet_length(reason) <= 2048 AND octet_length(holder) <= 2048
        AND octet_length(caller) <= 2048 AND octet_length(request_id) <= 512)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_analyze_threshold = 1000000
);
-- Finds what a transaction under a guard has noted already.
CREATE INDEX intake_noted ON fencing.intake (request_id, resource) WHERE request_id LIKE 'transaction/%';

-- Entries that are sealed. The day is the one on which an entry was sealed. A partition is for a week: a search has a
-- seventh of the partitions to look at that days would make (docs/decisions/044).
CREATE TABLE fencing.entry (
    position bigint NOT NULL,
    day date NOT NULL,
    hash bytea NOT NULL,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kind text COLLATE "C" NOT NULL,
    plane text COLLATE "C",
    rule text COLLATE "C",
    resource text COLLATE "C",
    reason text COLLATE "C",
    enforced boolean,
    -- The writer: the one that was refused, or the new holder.
    epoch integer,
    value bigint,
    holder text COLLATE "C",
    caller text COLLATE "C",
    method text COLLATE "C",
    target text COLLATE "C",
    client text COLLATE "C",
    request_id text COLLATE "C",
    payload_size bigint,
    payload_sha256 text COLLATE "C",
    -- The fence that it met: the one that refused it, or the one it has overtaken.
    fence_epoch integer,
    fence_value bigint,
    fence_holder text COLLATE "C",
    fence_caller text COLLATE "C",
    fence_raised_at timestamptz,
    details jsonb,
    PRIMARY KEY (day, position)
) PARTITION BY RANGE (day);

-- Entries of days without a partition of their own.
CREATE TABLE fencing.entry_other PARTITION OF fencing.entry DEFAULT;

CREATE INDEX entry_id ON fencing.entry (id);
CREATE INDEX entry_at ON fencing.entry (at);
-- The columns that people search by (docs/decisions/044). For each partition, the newest matches are at the end of
-- one of these indexes, or there are so few that all can be sorted.
CREATE INDEX entry_resource ON fencing.entry (resource, position);
CREATE INDEX entry_caller ON fencing.entry (caller, position);
CREATE INDEX entry_holder ON fencing.entry (holder, position);
CREATE INDEX entry_kind ON fencing.entry (kind, position);
CREATE INDEX entry_rule ON fencing.entry (rule, position);
CREATE INDEX entry_plane ON fencing.entry (plane);
CREATE INDEX entry_value ON fencing.entry (value);
CREATE INDEX entry_reason ON fencing.entry (reason, position) WHERE reason <> 'token-stale';
CREATE INDEX entry_observed ON fencing.entry (position) WHERE NOT enforced;
CREATE INDEX entry_takeover ON fencing.entry (resource, position) WHERE kind IN ('raised', 'barrier', 'epoch');
-- Pages are in the order of the position, over the days of a week together; the primary key begins with the day.
CREATE INDEX entry_position ON fencing.entry (position);

-- The end of the chain. A session that seals has this one row locked.
CREATE TABLE fencing.head (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    position bigint NOT NULL,
    hash bytea NOT NULL,
    day date NOT NULL
) WITH (fillfactor = 10);
INSERT INTO fencing.head (position, hash, day)
VALUES (0, sha256('fencing-gateway record v1'), (clock_timestamp() AT TIME ZONE 'UTC')::date);

-- The payload of a refused write, or its beginning. The entry has only the length and the SHA-256 of the payload. So
-- this row can be erased when it must be, and the record stays whole.
CREATE TABLE fencing.payload (
    entry uuid PRIMARY KEY,
    day date NOT NULL DEFAULT (clock_timestamp() AT TIME ZONE 'UTC')::date,
    media_type text NOT NULL,
    body bytea NOT NULL,
    truncated boolean NOT NULL
);
CREATE INDEX payload_day ON fencing.payload (day);

-- How many writes were accepted, refused or observed, by the minute. Each gateway process has rows of its own.
CREATE TABLE fencing.traffic (
    minute timestamptz NOT NULL,
    gateway text NOT NULL,
    plane text NOT NULL,
    rule text NOT NULL,
    accepted bigint NOT NULL,
    refused bigint NOT NULL,
    observed bigint NOT NULL,
    PRIMARY KEY (minute, gateway, plane, rule)
);

-- Write a token as text: 'epoch.value', or the value alone in epoch 0. Null for a null value. PostgreSQL inlines a
-- function in SQL unless the function is immutable and its body is not. `integer || text` is not immutable, so the
-- casts here are explicit. A call for each token of an entry was most of the time of an export.
CREATE FUNCTION fencing.token_v1(epoch integer, value bigint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN epoch > 0 THEN epoch::text || '.' ELSE '' END || value::text;

-- Write a moment as text, in UTC with microseconds.
CREATE FUNCTION fencing.moment_v1(moment timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

-- Refuse each change of the record. The rights to change it are not enough: its owner has to disable this trigger
-- first, on purpose. Raises 42501.
CREATE FUNCTION fencing.refuse_change_v1() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RAISE EXCEPTION USING ERRCODE = '42501', MESSAGE = format('%s of the record is refused: it is only ever added to.', TG_OP),
        HINT = 'Old days are dropped by the gateway, after audit.retention days.';
END
$function$;
CREATE TRIGGER entry_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fencing.entry
FOR EACH STATEMENT EXECUTE FUNCTION fencing.refuse_change_v1();
CREATE TRIGGER entry_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fencing.entry_other
FOR EACH STATEMENT EXECUTE FUNCTION fencing.refuse_change_v1();

-- Tell which days have a partition: the name of each, its first day and its last, both included. The name says the
-- days. entry_other is not among them.
CREATE FUNCTION fencing.stretches_v1() RETURNS TABLE (name text, first date, last date)
LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT c.relname::text,
        to_date(substr(c.relname::text, 7, 8), 'YYYYMMDD'), to_date(right(c.relname::text, 8), 'YYYYMMDD')
    FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'fencing.entry'::regclass AND c.relname ~ '^entry_[0-9]{8}(_[0-9]{8})?$';
END;

-- Make partitions for today and the days to come. One ends with its Sunday, or before a day that is in another
-- partition. A day that has entries in entry_other already stays there.
-- Takes how many days ahead to look, and how many partitions to make at most.
-- Returns how many were made.
-- Raises 55006 where the record is in use: what it has to lock it locks at once or not at all, so that nothing waits.
-- Tables are made by CREATE TABLE and ATTACH, which unlike PARTITION OF let reading and sealing go on.
CREATE FUNCTION fencing.prepare_days_v1(p_ahead integer, p_most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $function$
DECLARE
    today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    made integer := 0;
    next date;
    following date;
    name text;
BEGIN
    FOR next IN SELECT today + n FROM generate_series(0, least(p_ahead, 366)) AS s (n) LOOP
        EXIT WHEN made >= p_most;
        CONTINUE WHEN EXISTS (SELECT FROM fencing.stretches_v1() s WHERE next BETWEEN s.first AND s.last);
        -- One session at a time. Sealing and reading go on.
        LOCK TABLE fencing.entry IN SHARE UPDATE EXCLUSIVE MODE;
        CONTINUE WHEN EXISTS (SELECT FROM fencing.stretches_v1() s WHERE next BETWEEN s.first AND s.last)
            OR EXISTS (SELECT FROM fencing.entry_other o WHERE o.day = next);
        following := next + 1;
        WHILE extract(isodow FROM following) > 1
            AND NOT EXISTS (SELECT FROM fencing.stretches_v1() s WHERE following BETWEEN s.first AND s.last)
            AND NOT EXISTS (SELECT FROM fencing.entry_other o WHERE o.day = following)
        LOOP
            following := following + 1;
        END LOOP;
        name := 'entry_' || to_char(next, 'YYYYMMDD')
            || CASE WHEN following > next + 1 THEN '_' || to_char(following - 1, 'YYYYMMDD') ELSE '' END;
        EXECUTE format('CREATE TABLE fencing.%I (LIKE fencing.entry INCLUDING ALL)', name);
        EXECUTE format(
            'CREATE TRIGGER entry_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fencing.%I '
            'FOR EACH STATEMENT EXECUTE FUNCTION fencing.refuse_change_v1()', name);
        EXECUTE format(
            'ALTER TABLE fencing.entry ATTACH PARTITION fencing.%I FOR VALUES FROM (%L) TO (%L)', name, next, following);
        made := made + 1;
    END LOOP;
    RETURN made;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = 'The record is in use. Nothing was changed; call this again later.';
END
$function$;
REVOKE ALL ON FUNCTION fencing.prepare_days_v1 FROM PUBLIC;

-- Drop the oldest partition whose last day is more than p_keep days ago, and put that on record. The entry says how
-- the days that are left are chained to what is gone.
-- Returns the last day that was dropped, or null if there is none. Raises 22023 below seven days, which are always
-- kept, and 55006 where the record is in use.
CREATE FUNCTION fencing.drop_day_v1(p_keep integer) RETURNS date
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $function$
DECLARE
    before date := (clock_timestamp() AT TIME ZONE 'UTC')::date - p_keep;
    name text;
    gone record;
BEGIN
    IF p_keep IS NULL OR p_keep < 7 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'The record is kept for seven days at least.';
    END IF;
    -- One session at a time. Sealing and reading go on.
    LOCK TABLE fencing.entry IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT s.name INTO name FROM fencing.stretches_v1() s WHERE s.last < before ORDER BY s.last LIMIT 1;
    IF name IS NULL AND (SELECT max(o.day) FROM fencing.entry_other o) < before THEN
        name := 'entry_other';
    END IF;
    IF name IS NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE format('SELECT count(*) AS entries, min(position) AS first, max(position) AS last, max(day) AS day,
        (SELECT encode(e.hash, ''hex'') FROM fencing.%1$I e ORDER BY e.day DESC, e.position DESC LIMIT 1) AS hash
        FROM fencing.%1$I', name) INTO gone;
    EXECUTE format('ALTER TABLE fencing.entry DETACH PARTITION fencing.%I', name);
    EXECUTE format('DROP TABLE fencing.%I', name);
    IF name = 'entry_other' THEN
        CREATE TABLE fencing.entry_other PARTITION OF fencing.entry DEFAULT;
        CREATE TRIGGER entry_is_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON fencing.entry_other
        FOR EACH STATEMENT EXECUTE FUNCTION fencing.refuse_change_v1();
    ELSE
        gone.day := to_date(right(name, 8), 'YYYYMMDD');
    END IF;
    IF gone.entries > 0 THEN
        INSERT INTO fencing.intake (kind, details) VALUES ('retention', jsonb_build_object(
            'day', gone.day, 'entries', gone.entries, 'first', gone.first, 'last', gone.last, 'hash', gone.hash));
    END IF;
    RETURN gone.day;
EXCEPTION WHEN lock_not_available THEN
    RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = 'The record is in use. Nothing was changed; call this again later.';
END
$function$;
REVOKE ALL ON FUNCTION fencing.drop_day_v1 FROM PUBLIC;

-- Delete payloads that are more than p_days days old, p_limit at most.
-- Returns how many. The gateway's role can only add and read payloads. No argument makes a payload go within a week.
CREATE FUNCTION fencing.drop_payloads_v1(p_days integer, p_limit integer) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
    WITH dropped AS (
        DELETE FROM fencing.payload WHERE entry IN (
            SELECT entry FROM fencing.payload
            WHERE day < (clock_timestamp() AT TIME ZONE 'UTC')::date - greatest(p_days, 7)
            LIMIT p_limit
        ) RETURNING 1
    )
    SELECT count(*) FROM dropped
$function$;
REVOKE ALL ON FUNCTION fencing.drop_payloads_v1 FROM PUBLIC;

-- The views are for people. An entry without a position is committed and not sealed yet.
CREATE VIEW fencing.record AS
SELECT
    position, day, hash, id, at, kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method,
    target, client, request_id, payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller,
    fence_raised_at, details
FROM fencing.entry
UNION ALL
SELECT
    NULL, NULL, NULL, id, at, kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method,
    target, client, request_id, payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller,
    fence_raised_at, details
FROM fencing.intake;

-- Refused writes.
CREATE VIEW fencing.rejection AS
SELECT resource, id, at, reason, enforced, epoch, value, holder, caller, method, target, client, request_id, payload_size,
    payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at
FROM fencing.record WHERE kind = 'rejection';

-- Events of locks, and new epochs. The caller is the one that acted, or the one that had the lease.
CREATE VIEW fencing.event AS
SELECT id, at, kind, resource, caller, holder, epoch, value, coalesce(details, '{}') AS details
FROM fencing.record WHERE kind LIKE 'lease-%' OR kind = 'epoch';

-- Changes of buckets and their settings.
CREATE VIEW fencing.administration AS
SELECT id, at, caller, details ->> 'operation' AS operation, details ->> 'bucket' AS bucket,
    concat_ws(' ', method, target) AS target, client, request_id
FROM fencing.record WHERE kind = 'administration';

-- The first partition: from today to Sunday. Gateways make the others.
SELECT fencing.prepare_days_v1(0, 1);
-- The chain of the record: the canonical text of an entry, its hash, and the function that seals entries.

-- The members of the canonical text of an entry, in its order. Agrees to the letter with
-- gateway.fencing.chain_verification.canonical.
CREATE TYPE fencing.line AS (
    position bigint, id uuid, at text, kind text, plane text, rule text, resource text, reason text, enforced boolean,
    token text, holder text, caller text, method text, target text, client text, request_id text, payload_size bigint,
    payload_sha256 text, fence text, fence_holder text, fence_caller text, fence_raised_at text, details jsonb
);

-- Write the canonical text of an entry, which is what is hashed.
CREATE FUNCTION fencing.line_v1(entry fencing.entry) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN row_to_json(ROW(
    entry.position, entry.id, fencing.moment_v1(entry.at), entry.kind, entry.plane, entry.rule, entry.resource,
    entry.reason, entry.enforced, fencing.token_v1(entry.epoch, entry.value), entry.holder, entry.caller, entry.method,
    entry.target, entry.client, entry.request_id, entry.payload_size, entry.payload_sha256,
    fencing.token_v1(entry.fence_epoch, entry.fence_value), entry.fence_holder, entry.fence_caller,
    fencing.moment_v1(entry.fence_raised_at), entry.details
)::fencing.line)::text;

-- The members of a line of the export: those of fencing.line, and the hash.
CREATE TYPE fencing.hashed_line AS (
    position bigint, id uuid, at text, kind text, plane text, rule text, resource text, reason text, enforced boolean,
    token text, holder text, caller text, method text, target text, client text, request_id text, payload_size bigint,
    payload_sha256 text, fence text, fence_holder text, fence_caller text, fence_raised_at text, details jsonb, hash text
);

-- Write an entry as a line of the export. All but the last member is what line_v1 gives; cutting that text open again
-- to append the hash took a quarter of the time.
CREATE FUNCTION fencing.ndjson_v1(entry fencing.entry) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
RETURN row_to_json(ROW(
    entry.position, entry.id, fencing.moment_v1(entry.at), entry.kind, entry.plane, entry.rule, entry.resource,
    entry.reason, entry.enforced, fencing.token_v1(entry.epoch, entry.value), entry.holder, entry.caller, entry.method,
    entry.target, entry.client, entry.request_id, entry.payload_size, entry.payload_sha256,
    fencing.token_v1(entry.fence_epoch, entry.fence_value), entry.fence_holder, entry.fence_caller,
    fencing.moment_v1(entry.fence_raised_at), entry.details, encode(entry.hash, 'hex')
)::fencing.hashed_line)::text;

-- Hash a line with the hash of the line before, or with the beginning where there is none.
CREATE FUNCTION fencing.next_hash_v1(state bytea, beginning bytea, line text) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RETURN sha256(coalesce(state, beginning) || convert_to(line, 'UTF8'));
END
$function$;

-- Chain a batch of lines. Over a window it hashes the whole batch at once, each line with the hash of the one before.
CREATE AGGREGATE fencing.chain_v1(beginning bytea, line text) (SFUNC = fencing.next_hash_v1, STYPE = bytea);

-- Move what has been committed from the intake to the record, the oldest first. Each entry gets the next position,
-- and a hash over itself and the hash before it. An entry that is committed late is sealed late: the order of the
-- record is the order of sealing, and there is no other.
--
-- Takes about how many entries to seal, and whether to wait for another session that is sealing.
-- Returns how many were sealed, and the position of the end of the record. The number is null where another session
-- is sealing and the caller does not wait. Announces that position on the channel fencing_record.
--
-- The limit is turned into a number first, and what was committed below that number meanwhile comes along. Both
-- statements look by the key. Everything passes through this table, so that it is mostly empty pages, and the
-- planner's figures about its size are never right.
CREATE FUNCTION fencing.seal_v1(p_limit integer, p_wait boolean DEFAULT true, OUT sealed integer, OUT "position" bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET enable_bitmapscan = off AS $function$
DECLARE
    head fencing.head;
    newest bigint;
BEGIN
    sealed := 0;
    SELECT h.position INTO STRICT position FROM fencing.head h;
    PERFORM FROM fencing.intake i ORDER BY i.number LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF p_wait THEN
        SELECT * INTO STRICT head FROM fencing.head h FOR UPDATE;
    ELSE
        SELECT * INTO head FROM fencing.head h FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            sealed := NULL;
            RETURN;
        END IF;
    END IF;
    head.day := greatest(head.day, (clock_timestamp() AT TIME ZONE 'UTC')::date);
    SELECT max(i.number) INTO newest FROM (SELECT number FROM fencing.intake ORDER BY number LIMIT p_limit) AS i;
    WITH taken AS (
        DELETE FROM fencing.intake i WHERE i.number <= newest RETURNING i.*
    ), placed AS (
        SELECT ROW(
            head.position + row_number() OVER (ORDER BY t.number), head.day, '\x'::bytea,
            t.id, t.at, t.kind, t.plane, t.rule, t.resource, t.reason, t.enforced, t.epoch, t.value, t.holder,
            t.caller, t.method, t.target, t.client, t.request_id, t.payload_size, t.payload_sha256, t.fence_epoch,
            t.fence_value, t.fence_holder, t.fence_caller, t.fence_raised_at, t.details
        )::fencing.entry AS entry
        FROM taken t
    ), chained AS (
        SELECT p.entry, fencing.chain_v1(head.hash, fencing.line_v1(p.entry))
            OVER (ORDER BY (p.entry).position ROWS UNBOUNDED PRECEDING) AS hash
        FROM placed p
    ), added AS (
        INSERT INTO fencing.entry (
            position, day, hash, id, at, kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller,
            method, target, client, request_id, payload_size, payload_sha256, fence_epoch, fence_value, fence_holder,
            fence_caller, fence_raised_at, details
        )
        SELECT
            (c.entry).position, (c.entry).day, c.hash, (c.entry).id, (c.entry).at, (c.entry).kind, (c.entry).plane,
            (c.entry).rule, (c.entry).resource, (c.entry).reason, (c.entry).enforced, (c.entry).epoch,
            (c.entry).value, (c.entry).holder, (c.entry).caller, (c.entry).method, (c.entry).target, (c.entry).client,
            (c.entry).request_id, (c.entry).payload_size, (c.entry).payload_sha256, (c.entry).fence_epoch,
            (c.entry).fence_value, (c.entry).fence_holder, (c.entry).fence_caller, (c.entry).fence_raised_at,
            (c.entry).details
        FROM chained c
        RETURNING entry.position, entry.hash
    ), counted AS (
        SELECT count(*) AS entries, max(a.position) AS last FROM added a
    )
    SELECT c.entries, c.last, a.hash INTO sealed, head.position, head.hash
    FROM counted c JOIN added a ON a.position = c.last;
    IF sealed > 0 THEN
        UPDATE fencing.head h SET position = head.position, hash = head.hash, day = head.day;
        PERFORM pg_notify('fencing_record', head.position::text);
        position := head.position;
    ELSE
        -- Another session has sealed everything while this one waited.
        sealed := 0;
        SELECT h.position INTO STRICT position FROM fencing.head h;
    END IF;
END
$function$;
REVOKE ALL ON FUNCTION fencing.seal_v1 FROM PUBLIC;
-- Leases: locks, and who holds them. lock_queue.sql has the queues, lock_tokens.sql the numbers.
--
-- All work on one lock happens with its row of fencing.lock locked, so that the functions see one another's work as a
-- whole. Renewing is the one exception: it is a condition on the lease's own row. A session that works on several
-- locks takes them in the order of their names. Time is clock_timestamp() here, and nowhere else.
--
-- Functions that look into tables and queues switch some plans off. A session makes their plans while the tables are
-- empty, and keeps them while the tables grow to thousands of rows. A lock must always be found by its name, and the
-- first in its queue by the index that has them in order. Functions that they call run with the same settings.

-- The highest token issued for each lock; (0, 0) where none ever was. Never deleted: so tokens always grow.
CREATE TABLE fencing.lock (
    resource text COLLATE "C" PRIMARY KEY,
    epoch integer NOT NULL DEFAULT 0,
    value bigint NOT NULL DEFAULT 0,
    delayed_until timestamptz
) WITH (fillfactor = 70);

-- Leases that are held. There is no index on expires_at: each renewal would make an entry in it.
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
    -- False while a lease that was handed over waits to be collected: until then no client has been told of it.
    confirmed boolean NOT NULL DEFAULT true,
    -- The place in the queue that it was handed over to.
    ticket bigint,
    attendant uuid,
    acquired_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (resource, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- A gateway process that has waiters. They stay in the queue as long as its heartbeats arrive.
CREATE TABLE fencing.attendant (
    id uuid PRIMARY KEY,
    until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- A queue is served in the order of tickets. Each holder has one place. A place has an attendant, or lasts until a
-- moment.
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
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX waiter_attendant ON fencing.waiter (attendant) WHERE attendant IS NOT NULL;

-- Waiters that would still receive an answer.
CREATE VIEW fencing.living_waiter AS
SELECT w.* FROM fencing.waiter AS w LEFT JOIN fencing.attendant AS a ON a.id = w.attendant
WHERE coalesce(a.until, w.until) > clock_timestamp();

-- Put on record what happened to a lease. Its id is left out, because a client that knows the id can end the lease.
-- Takes the kind of entry, the lease, the caller that acted and its reason. An entry about a broken lease names the
-- caller that had it.
CREATE FUNCTION fencing.record_lease_v1(p_kind text, p_lease fencing.lease, p_caller text, p_reason text)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    INSERT INTO fencing.intake (kind, resource, epoch, value, holder, caller, details)
    VALUES (p_kind, p_lease.resource, p_lease.epoch, p_lease.value, p_lease.holder, p_caller,
        jsonb_build_object('mode', p_lease.mode, 'acquired_at', p_lease.acquired_at)
        || CASE p_kind
            WHEN 'lease-granted' THEN jsonb_build_object('ttl', p_lease.ttl)
            WHEN 'lease-expired' THEN jsonb_build_object('expires_at', p_lease.expires_at)
            WHEN 'lease-broken' THEN jsonb_build_object('reason', p_reason, 'of', p_lease.caller)
            ELSE '{}' END);
END
$function$;

-- Ask for a lock. Idempotent: a holder has one lease, one place in the queue, and one token.
-- Takes the lock, holder and caller, the mode, a name of the request, and seconds of TTL and lock-delay. A caller
-- that waits gives its attendant, the seconds that the attendant lasts, and the seconds to collect the lease in.
-- Returns `outcome`:
--   granted    `lease`; `fresh` unless the same holder had it already, or an answer had been lost
--   upgrade    the holder shares the lock: it would wait for itself
--   exhausted  there is no higher token in this epoch
--   waiting    with an attendant: in the queue under `ticket`; worth a look in `look_in` seconds
--   held       without one: `lease` is in the way, null where the lock has no holder yet; `place` in the queue
CREATE FUNCTION fencing.acquire_v1(
    p_resource text, p_holder text, p_caller text, p_mode text, p_request text, p_ttl double precision,
    p_delay double precision, p_attendant uuid, p_attended double precision, p_collect double precision,
    OUT outcome text, OUT lease fencing.lease, OUT expires_in double precision, OUT fresh boolean, OUT ticket bigint,
    OUT handed bigint, OUT look_in double precision, OUT place bigint, OUT delayed_for double precision
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    in_queue boolean;
    queued boolean;
    exhausted boolean := false;
    held boolean;
    shared boolean;
    token record;
    moment timestamptz;
BEGIN
    -- A caller that only tries costs no commit, and does not wait for the row of the lock.
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
        -- A holder that waits in another mode by now gives up its earlier place.
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
        IF fresh THEN
            PERFORM fencing.record_lease_v1('lease-granted', lease, p_caller, NULL);
        END IF;
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
            PERFORM fencing.record_lease_v1('lease-granted', lease, p_caller, NULL);
            IF in_queue THEN
                -- A place of this holder that had lapsed must not come back to life beside the lease.
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
$function$;

-- Renew leases in the order given, which has to be that of their names and ids. A lease that has lapsed is lost, even
-- if its row is there and the lock is free. The next session that looks takes it away.
-- Takes arrays of names, ids, callers and TTLs in seconds; a null TTL keeps the old one.
-- Returns a row for each: the lease and the seconds it lasts, or nulls, and whether it belongs to another caller.
CREATE FUNCTION fencing.renew_v1(p_resources text[], p_ids uuid[], p_callers text[], p_ttls double precision[])
RETURNS TABLE (lease fencing.lease, expires_in double precision, forbidden boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
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
$function$;

-- Give a lease back.
-- Returns `outcome` (released, forbidden, lost), and what hand_over_v1 does.
CREATE FUNCTION fencing.release_v1(
    p_resource text, p_id uuid, p_caller text, OUT outcome text, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    ended fencing.lease;
BEGIN
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    DELETE FROM fencing.lease l WHERE l.resource = p_resource AND l.id = p_id AND l.caller = p_caller RETURNING l.* INTO ended;
    outcome := CASE
        WHEN FOUND THEN 'released'
        WHEN EXISTS (SELECT FROM fencing.lease l WHERE l.resource = p_resource AND l.id = p_id) THEN 'forbidden'
        ELSE 'lost' END;
    IF ended.confirmed THEN
        PERFORM fencing.record_lease_v1('lease-released', ended, p_caller, NULL);
    END IF;
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$;

-- End each lease with exactly this token.
-- Returns how many there were, and what hand_over_v1 does.
CREATE FUNCTION fencing.break_v1(
    p_resource text, p_epoch integer, p_value bigint, p_caller text, p_reason text,
    OUT broken integer, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
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
        PERFORM fencing.record_lease_v1('lease-broken', ended, p_caller, p_reason);
    END LOOP;
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$;
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
-- The queues of locks: expired leases end, the lock goes to the next waiter, and waiters come and go.
-- See leases.sql for the rules that all these functions follow.

-- End the leases of a lock whose time is over. This happens here and nowhere else: what is in the table afterwards is
-- held.
CREATE FUNCTION fencing.lapse_v1(p_resource text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    lapsed fencing.lease;
BEGIN
    FOR lapsed IN
        DELETE FROM fencing.lease l WHERE l.resource = p_resource AND l.expires_at <= clock_timestamp() RETURNING l.*
    LOOP
        -- No client was told of an unconfirmed lease: there is no delay to keep, and nothing to record.
        CONTINUE WHEN NOT lapsed.confirmed;
        IF lapsed.delay > 0 THEN
            UPDATE fencing.lock l
            SET delayed_until = greatest(l.delayed_until, lapsed.expires_at + make_interval(secs => lapsed.delay))
            WHERE l.resource = p_resource;
        END IF;
        PERFORM fencing.record_lease_v1('lease-expired', lapsed, lapsed.caller, NULL);
    END LOOP;
END
$function$;

-- Give the lock to the next in its queue: the first living waiter, or all sharing waiters until the first exclusive one.
-- The new holder has to collect the lease by acquiring it.
-- Returns `handed`, the ticket up to which all waiters have been served or are dead; `look_in`, the seconds until there
-- may be more to hand over; `exhausted`, whether this epoch has no higher token.
-- Announces on the channel fencing_lease, which listeners receive when the transaction commits.
CREATE FUNCTION fencing.hand_over_v1(
    p_resource text, OUT handed bigint, OUT look_in double precision, OUT exhausted boolean
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
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
$function$;

-- Return the place of a holder in the queue, from 1, or the place that it would get.
CREATE FUNCTION fencing.place_v1(p_resource text, p_holder text, p_caller text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
BEGIN
    RETURN 1 + (
        SELECT count(*) FROM fencing.living_waiter w
        WHERE w.resource = p_resource AND w.ticket < coalesce((
            SELECT own.ticket FROM fencing.waiter own
            WHERE own.resource = p_resource AND own.holder = p_holder AND own.caller = p_caller
        ), 9223372036854775807)
    );
END
$function$;

-- End what has lapsed and hand the lock over.
-- Returns what hand_over_v1 does.
CREATE FUNCTION fencing.advance_v1(p_resource text, OUT handed bigint, OUT look_in double precision)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
BEGIN
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$;

-- End a request for a lock, whether it waits or was granted.
-- Returns what hand_over_v1 does.
CREATE FUNCTION fencing.withdraw_v1(
    p_resource text, p_holder text, p_caller text, p_request text, OUT handed bigint, OUT look_in double precision
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
DECLARE
    ended fencing.lease;
BEGIN
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    PERFORM fencing.lapse_v1(p_resource);
    DELETE FROM fencing.waiter w
    WHERE w.resource = p_resource AND w.holder = p_holder AND w.caller = p_caller AND w.request = p_request;
    DELETE FROM fencing.lease l
    WHERE l.resource = p_resource AND l.holder = p_holder AND l.caller = p_caller AND l.request = p_request
    RETURNING l.* INTO ended;
    IF ended.confirmed THEN
        PERFORM fencing.record_lease_v1('lease-released', ended, p_caller, NULL);
    END IF;
    SELECT h.handed, h.look_in INTO handed, look_in FROM fencing.hand_over_v1(p_resource) h;
END
$function$;

-- Take waiters out of their queues that wait no longer. A waiter that has named a request keeps its place, or what
-- was handed over to it, for p_linger seconds. One that waits at another gateway by now stays.
-- Takes the attendant, and arrays of names and tickets.
-- Returns for each lock what hand_over_v1 does.
CREATE FUNCTION fencing.leave_v1(
    p_attendant uuid, p_resources text[], p_tickets bigint[], p_linger double precision
) RETURNS TABLE (resource text, handed bigint, look_in double precision)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
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
$function$;

-- Take in the heartbeat of a gateway process.
-- Returns the tickets of its waiters that are still in queues, and the locks that a session has to look at because
-- they are free.
CREATE FUNCTION fencing.attend_v1(
    p_attendant uuid, p_attended double precision,
    OUT waiting bigint[], OUT due text[]
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off AS $function$
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
$function$;
-- Webhooks and alarms: which part of the record each receiver has been sent. The record is a log, so that an outbox
-- is a position in it. Nothing is copied, and an entry costs the same for any number of webhooks. There is one row
-- for each name of the configuration, and rows are never cleared away.

-- How far a webhook has got.
CREATE TABLE fencing.webhook (
    name text COLLATE "C" PRIMARY KEY,
    -- Everything up to here was received, or was not for this webhook. Never goes back.
    position bigint NOT NULL,
    -- The day of that entry, by which the partitions before are left out.
    day date NOT NULL,
    -- The last entry of the message that is being sent, or was when it failed: sent again, it is the same message.
    sending bigint,
    failures integer NOT NULL DEFAULT 0,
    failing_since timestamptz,
    last_error text,
    not_before timestamptz,
    -- The receiver has said that it is gone: nothing is sent until it accepts a test message.
    paused_at timestamptz,
    delivered_at timestamptz,
    -- The gateway that delivers, and until when no other one does. By the database's clock, and never a lock: HTTP can
    -- be slow.
    owner uuid,
    owned_until timestamptz
) WITH (fillfactor = 70);

-- The window of an alarm, and its count.
CREATE TABLE fencing.alarm (
    name text COLLATE "C" PRIMARY KEY,
    position bigint NOT NULL,
    day date NOT NULL,
    -- The rule that the window was counted by: with another one it begins anew.
    prefix text NOT NULL,
    minutes integer NOT NULL,
    -- The window as of its end: how many in which of its steps.
    moment timestamptz NOT NULL,
    counts jsonb NOT NULL,
    -- Since when the alarm is on, what it has counted, and the entry that says so.
    since timestamptz,
    total bigint NOT NULL DEFAULT 0,
    raised uuid
) WITH (fillfactor = 70);
-- The guard: sessions that write a fenced table without the gateway claim tokens by fencing.hold, and triggers check.
--
-- `gateway guard install` puts the triggers on a table; docs/guard.md and docs/decisions/028 say what they see. There
-- is one rule behind all of it: the snapshot of the writing statement must be younger than the raise of the fence. A
-- trigger fires inside that statement, so it never raises. It looks at the fence with the statement's own snapshot.
-- Only where that shows exactly the token does it lock the row and look again.

-- Read a token from its text.
-- Returns nulls where the text is no token. Agrees to the letter with gateway.fencing.token.Token.parse.
CREATE FUNCTION fencing.read_token_v1(token text, OUT epoch integer, OUT value bigint)
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    parts text[] := regexp_match(token COLLATE "C", '^(?:(0|[1-9][0-9]{0,9})\.)?(0|[1-9][0-9]{0,18})$');
BEGIN
    IF coalesce(parts[1], '0')::bigint <= 2147483647 AND parts[2]::numeric <= 9223372036854775807 THEN
        epoch := coalesce(parts[1], '0')::integer;
        value := parts[2]::bigint;
    END IF;
END
$function$;

-- Name the writer as the record does: by the role it has taken on, else by the one it has logged in as.
CREATE FUNCTION fencing.session_role_v1() RETURNS text LANGUAGE sql STABLE
RETURN 'role:' || coalesce(nullif(current_setting('role'), 'none'), session_user);

-- Return what tells this transaction from every other one. A strict resource remembers it as the write that used its
-- token up.
CREATE FUNCTION fencing.transaction_v1() RETURNS uuid LANGUAGE sql STABLE
RETURN md5(pg_current_xact_id()::text || ' ' || extract(epoch FROM now()))::uuid;

-- Return what the session says it holds: resource -> token and holder. Any session may set these settings, so they
-- only say which fences to look at.
CREATE FUNCTION fencing.declared_v1() RETURNS jsonb LANGUAGE sql STABLE
RETURN CASE
    WHEN current_setting('fencing.resource', true) <> '' AND current_setting('fencing.token', true) <> ''
    THEN jsonb_build_object(current_setting('fencing.resource', true), jsonb_build_object(
        'token', current_setting('fencing.token', true), 'holder', nullif(current_setting('fencing.holder', true), '')))
    ELSE '{}' END || coalesce(nullif(current_setting('fencing.held', true), '')::jsonb, '{}');

-- The reasons of refusals. A refusal is counted by its place in this list (refusals.sql).
CREATE FUNCTION fencing.reasons_v1() RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN ARRAY[
    'token-stale', 'token-duplicate', 'token-used', 'token-required', 'token-unclaimed', 'token-malformed',
    'resource-malformed', 'holder-malformed', 'resource-mismatch', 'resource-underivable', 'isolation', 'writes-pending'];

-- Word a refusal, and raise it. All wording is here.
-- Takes the reason, the resource, the token and its holder, the fence that refuses, and the table.
-- Raises class FN and the HTTP status, or PT behind PostgREST (gateway/guard/pack.py), which answers with that
-- status. The server's log gets the facts even where the session catches the error: rows in a table would be undone
-- with it.
CREATE FUNCTION fencing.word_refusal_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    raised text := CASE WHEN p_fence.epoch > 0 THEN p_fence.epoch || '.' ELSE '' END || p_fence.value;
    raised_by text := coalesce(p_fence.holder, p_fence.caller, 'an unnamed holder');
    -- Cut to the longest name and token: settings and columns can have any length.
    resource text := coalesce(left(p_resource, 512), 'a row whose columns do not make up a resource name');
    facts jsonb := jsonb_strip_nulls(jsonb_build_object(
        'code', p_reason, 'resource', left(p_resource, 512), 'token', left(p_token, 64), 'holder', left(p_holder, 200),
        'fence', raised,
        'raised_by', CASE WHEN raised IS NOT NULL THEN raised_by END,
        'raised_at', to_char(p_fence.raised_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'caller', fencing.session_role_v1(), 'target', p_target));
    family text := CASE WHEN current_setting('fencing.dialect', true) = 'postgrest' THEN 'PT' ELSE 'FN' END;
    overtaken text := 'Stop writing: a newer holder has taken over and retrying cannot succeed. '
        'Acquire the lock again to get a newer token.';
    hold_first text := format(E'In the transaction of the write, before it:\nSELECT fencing.hold(%L, ''TOKEN'');\n'
        'Or run the program while it holds the lock:\ngateway run --lock %s -- PROGRAM',
        coalesce(left(p_resource, 512), 'RESOURCE'), coalesce(left(p_resource, 512), 'RESOURCE'));
    status text;
    said text;
    advice text;
BEGIN
    CASE p_reason
        WHEN 'token-stale' THEN
            status := '412';
            said := format('The fencing token %s of %s has been overtaken by %s, raised by %s.',
                p_token, resource, raised, raised_by);
            advice := overtaken;
        WHEN 'token-duplicate' THEN
            status := '412';
            said := format('Another holder, %s, uses the fencing token %s of %s.', raised_by, p_token, resource);
            advice := 'Stop writing: two holders were given one token, so the lock service is broken. '
                'Retrying cannot succeed; repair the issuer.';
        WHEN 'token-used' THEN
            status := '412';
            said := format('The fencing token %s of %s has already written.', p_token, resource);
            advice := 'This resource is strict: each token writes once. Acquire the lock again to get a newer token.';
        WHEN 'token-required' THEN
            status := '428';
            said := format('A write of %s touches %s and holds no fencing token.', p_target, resource);
            advice := hold_first;
        WHEN 'token-unclaimed' THEN
            status := '428';
            said := format('The fencing token %s of %s had not been claimed when this statement began.',
                p_token, resource);
            advice := 'A statement must not claim the token it writes with: it would miss what the holder before has '
                'just committed. ' || hold_first;
        WHEN 'token-malformed' THEN
            status := '400';
            said := format('%s is not a fencing token.', coalesce(quote_literal(left(p_token, 64)), 'null'));
            advice := 'Give digits without sign, space or leading zero, optionally ''epoch.value'', as text.';
        WHEN 'resource-malformed' THEN
            status := '400';
            said := 'The resource name is not in canonical form.';
            advice := 'Use at most 512 bytes of RFC 3986 path characters and percent-encode everything else.';
        WHEN 'holder-malformed' THEN
            status := '400';
            said := 'The name of the holder must be 1 to 200 printable ASCII characters.';
            advice := 'Correct the name, or leave it out.';
        WHEN 'resource-mismatch' THEN
            status := '422';
            said := format('A write of %s touches %s, which this transaction does not hold.', p_target, resource);
            -- At most three names, each cut: a session may declare anything.
            advice := 'Narrow the write to the resources whose locks you hold, or hold this one too. You hold '
                || coalesce((
                    SELECT string_agg(left(name, 128), ', ' ORDER BY name) FILTER (WHERE number <= 3)
                           || CASE WHEN count(*) > 3 THEN format(' and %s more', count(*) - 3) ELSE '' END
                    FROM (SELECT name, row_number() OVER (ORDER BY name) AS number
                          FROM jsonb_object_keys(fencing.declared_v1()) AS name) AS held), 'none') || '.';
        WHEN 'resource-underivable' THEN
            status := '422';
            said := format('TRUNCATE %s touches every row, whatever its resource.', p_target);
            advice := 'Use DELETE with conditions that pick the rows of the resources you hold.';
        WHEN 'isolation' THEN
            status := '409';
            said := format('The fencing token %s of %s cannot be claimed in a %s transaction.',
                p_token, resource, upper(current_setting('transaction_isolation')));
            advice := 'Its snapshot may be older than what the holder before has committed. Claim it in a READ '
                'COMMITTED transaction of its own first; then it can be held here.';
        WHEN 'writes-pending' THEN
            status := '503';
            said := format('An object write of an older holder is pending on %s.', resource);
            advice := format('Only the gateway can settle it. Call its barrier, POST /v1/fences/%s/barrier, then '
                'start this transaction again.', resource);
    END CASE;
    RAISE LOG 'fencing: refused %', facts;
    RAISE EXCEPTION USING ERRCODE = family || status, MESSAGE = said, DETAIL = facts::text, HINT = advice;
END
$function$;

-- Count a refusal, then raise it.
-- Takes and raises what word_refusal_v1 does.
CREATE FUNCTION fencing.refuse_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    PERFORM fencing.count_refusal_v1(p_reason, p_target);
    PERFORM fencing.word_refusal_v1(p_reason, p_resource, p_token, p_holder, p_fence, p_target);
END
$function$;

-- Claim a token, and note for the triggers what is held. It claims as claim_v1 does, in a statement of its own before
-- the write. It runs with the rights of its owner: a writer needs none on the tables of this schema.
-- A gateway checks once for each session that its database is open. A writer's session may be a pooler's, so each
-- transaction checks it.
-- Takes the resource, the token as text, a name of the holder, and whether the resource is strict.
-- Returns the decision: raised or held. Raises a refusal, which undoes the claim, the raise included.
CREATE FUNCTION fencing.hold(resource text, token text, holder text DEFAULT NULL, strict boolean DEFAULT false)
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    shown record := fencing.read_token_v1(hold.token);
    claimed record;
    reason text;
BEGIN
    -- No writer says of itself that its raises are in the journal.
    PERFORM set_config('fencing.secured', '', true);
    PERFORM fencing.check_open_v1();
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
REVOKE ALL ON FUNCTION fencing.hold FROM PUBLIC;

-- Lock a fence against the next raise, and return its newest version. VOLATILE, unlike its callers.
CREATE FUNCTION fencing.guard_lock_v1(p_resource text) RETURNS fencing.fence
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    fence fencing.fence;
BEGIN
    SELECT * INTO STRICT fence FROM fencing.fence f WHERE f.resource = p_resource FOR SHARE;
    RETURN fence;
END
$function$;

-- Judge a write of one resource by what the session says it holds.
-- Returns the reason of the objection, null if there is none, with token, holder and fence.
-- STABLE on purpose, all the way down from the trigger: a STABLE function sees what the statement sees that called
-- it. Each statement in a VOLATILE function takes a snapshot of its own. So a fence that carries the token here was
-- raised before the writing statement began. That statement sees all that the holder before had written. Only then
-- does guard_lock_v1 lock the row and show its newest version.
CREATE FUNCTION fencing.guard_judge_v1(
    p_resource text, p_strict boolean, OUT reason text, OUT token text, OUT holder text, OUT fence fencing.fence
) LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    declared jsonb := fencing.declared_v1();
    shown record;
BEGIN
    IF p_resource IS NULL OR NOT declared ? p_resource THEN
        reason := CASE WHEN declared = '{}' THEN 'token-required' ELSE 'resource-mismatch' END;
        RETURN;
    END IF;
    token := declared -> p_resource ->> 'token';
    holder := declared -> p_resource ->> 'holder';
    shown := fencing.read_token_v1(token);
    IF shown.value IS NULL THEN
        reason := 'token-malformed';
        RETURN;
    END IF;
    SELECT * INTO fence FROM fencing.fence f WHERE f.resource = p_resource;
    IF fence.resource IS NULL OR (fence.epoch, fence.value) < (shown.epoch, shown.value) THEN
        reason := 'token-unclaimed';
        RETURN;
    END IF;
    IF (fence.epoch, fence.value) = (shown.epoch, shown.value) THEN
        fence := fencing.guard_lock_v1(p_resource);
    END IF;
    reason := CASE
        WHEN (fence.epoch, fence.value) > (shown.epoch, shown.value) THEN 'token-stale'
        WHEN holder <> fence.holder THEN 'token-duplicate'
        WHEN p_strict AND fence.write_id IS NULL THEN 'token-unclaimed'
        WHEN p_strict AND fence.write_id <> fencing.transaction_v1() THEN 'token-used'
        WHEN EXISTS (
            SELECT FROM fencing.intent i
            WHERE i.resource = p_resource AND (i.epoch, i.value) < (shown.epoch, shown.value)) THEN 'writes-pending'
        END;
END
$function$;

-- Put on record what a guard objects to that only observes: once for each transaction, resource, reason and table.
-- Notes of this transaction are still in the intake: nothing is sealed before it is committed.
CREATE FUNCTION fencing.guard_note_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text, p_operation text
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    shown record := fencing.read_token_v1(p_token);
    noted_in text := 'transaction/' || pg_current_xact_id();
BEGIN
    INSERT INTO fencing.intake (
        kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method, target, client, request_id,
        fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
    SELECT 'rejection', 'tables', p_target, left(p_resource, 512), p_reason, false, shown.epoch, shown.value,
        left(p_holder, 200), fencing.session_role_v1(), p_operation, p_target, host(inet_client_addr()), noted_in,
        p_fence.epoch, p_fence.value, p_fence.holder, p_fence.caller, p_fence.raised_at
    WHERE NOT EXISTS (
        SELECT FROM fencing.intake i
        WHERE i.request_id LIKE 'transaction/%' AND i.request_id = noted_in
          AND (i.resource, i.reason, i.target) = (left(p_resource, 512), p_reason, p_target));
END
$function$;

-- Check a write of one resource.
-- Returns nothing where it passes or the guard only observes; else raises a refusal. A database that was put back may
-- show a token that was overtaken, so nothing passes until it is open.
CREATE FUNCTION fencing.guard_v1(
    p_resource text, p_target text, p_operation text, p_observe boolean, p_strict boolean
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    judged record := fencing.guard_judge_v1(p_resource, p_strict);
BEGIN
    IF NOT p_observe THEN
        PERFORM fencing.check_open_v1();
    END IF;
    IF judged.reason IS NULL THEN
        RETURN;
    ELSIF p_observe THEN
        PERFORM fencing.guard_note_v1(
            judged.reason, coalesce(p_resource, p_target), judged.token, judged.holder, judged.fence, p_target,
            p_operation);
    ELSE
        PERFORM fencing.refuse_v1(judged.reason, p_resource, judged.token, judged.holder, judged.fence, p_target);
    END IF;
END
$function$;

-- Lock a fence against the next raise, if its newest version still carries the token.
-- Returns whether it does. VOLATILE, unlike its callers.
CREATE FUNCTION fencing.guard_locked_v1(p_resource text, p_epoch integer, p_value bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
    PERFORM FROM fencing.fence f
    WHERE f.resource = p_resource AND f.epoch = p_epoch AND f.value = p_value FOR SHARE;
    RETURN FOUND;
END
$function$;

-- Do what guard_v1 does, with less work for a write that passes, which is nearly every one.
-- One query with the statement's snapshot answers all of the judgement's questions. If it confirms nothing, or the
-- resource is strict, guard_v1 judges from the beginning.
-- It has no settings of its own: each of them would cost more than a comparison. It runs within trigger functions that
-- have them, and no other session may call it.
CREATE FUNCTION fencing.guard_v2(
    p_resource text, p_target text, p_operation text, p_observe boolean, p_strict boolean
) RETURNS void LANGUAGE plpgsql STABLE AS $function$
DECLARE
    held text := current_setting('fencing.held', true);
    token text;
    named text;
    fence record;
BEGIN
    IF held <> '' THEN
        token := held::jsonb -> p_resource ->> 'token';
        named := held::jsonb -> p_resource ->> 'holder';
    ELSIF current_setting('fencing.resource', true) = p_resource THEN
        token := current_setting('fencing.token', true);
        named := nullif(current_setting('fencing.holder', true), '');
    END IF;
    IF token IS NOT NULL AND NOT p_strict THEN
        SELECT f.epoch, f.value INTO fence FROM fencing.fence f
        WHERE f.resource = p_resource
          AND CASE WHEN f.epoch = 0 THEN f.value::text ELSE f.epoch || '.' || f.value END = token
          AND (f.holder = named) IS NOT FALSE
          AND NOT EXISTS (
              SELECT FROM fencing.intent i
              WHERE i.resource = f.resource AND (i.epoch, i.value) < (f.epoch, f.value));
        IF FOUND AND fencing.guard_locked_v1(p_resource, fence.epoch, fence.value) THEN
            IF NOT p_observe AND current_setting('fencing.open', true) IS DISTINCT FROM 'yes' THEN
                IF NOT fencing.is_open_v2() THEN
                    PERFORM fencing.check_open_v1();
                END IF;
                PERFORM set_config('fencing.open', 'yes', true);
            END IF;
            RETURN;
        END IF;
    END IF;
    PERFORM fencing.guard_v1(p_resource, p_target, p_operation, p_observe, p_strict);
END
$function$;
REVOKE ALL ON FUNCTION fencing.guard_locked_v1, fencing.guard_v2 FROM PUBLIC;

-- The triggers that do not depend on the table. Their arguments are: enforce or observe; accept or strict; the role
-- that is let through; the template; the table as the record names it. `gateway guard install` makes the trigger for
-- rows.

-- Check, before the first row, what the session says it holds. Without this a statement that finds no row would pass
-- under a stale token. It also makes a direct writer lock as the gateway does, fences before rows.
CREATE FUNCTION fencing.guard_statement_v1() RETURNS trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    name text;
BEGIN
    IF coalesce(current_setting('fencing.held', true), '') = '' THEN
        -- One resource at most, which is common, and needs no set to be sorted.
        name := current_setting('fencing.resource', true);
        IF name <> '' AND current_setting('fencing.token', true) <> '' THEN
            PERFORM fencing.guard_v2(name, TG_ARGV[4], TG_OP, TG_ARGV[0] = 'observe', false);
        END IF;
        RETURN NULL;
    END IF;
    FOR name IN SELECT k.name FROM jsonb_object_keys(fencing.declared_v1()) AS k (name) ORDER BY k.name COLLATE "C" LOOP
        PERFORM fencing.guard_v2(name, TG_ARGV[4], TG_OP, TG_ARGV[0] = 'observe', false);
    END LOOP;
    RETURN NULL;
END
$function$;

-- Check a TRUNCATE, which fires nothing for its rows: only one name for the whole table can be checked.
CREATE FUNCTION fencing.guard_truncate_v1() RETURNS trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF TG_ARGV[3] NOT LIKE '%{%' THEN
        PERFORM fencing.guard_v1(TG_ARGV[3], TG_ARGV[4], TG_OP, TG_ARGV[0] = 'observe', TG_ARGV[1] = 'strict');
    ELSIF TG_ARGV[0] = 'observe' THEN
        PERFORM fencing.guard_note_v1('resource-underivable', TG_ARGV[4], NULL, NULL, NULL, TG_ARGV[4], TG_OP);
    ELSE
        PERFORM fencing.refuse_v1('resource-underivable', TG_ARGV[4], NULL, NULL, NULL, TG_ARGV[4]);
    END IF;
    RETURN NULL;
END
$function$;
REVOKE ALL ON FUNCTION fencing.guard_statement_v1, fencing.guard_truncate_v1 FROM PUBLIC;
-- Watched tables: detection of changes that the guard of a table has not seen. The manual, docs/guard.md, describes what is found
-- and when. Decision 049 has the reasons.
--
-- Columns that name a table are regclass and not oid: a dump has names, which mean the same table when it is
-- restored.

-- A table that has a guard; partitions are part of it.
CREATE TABLE fencing.guarded (
    relation regclass PRIMARY KEY,
    -- The table as the record names it.
    target text NOT NULL,
    -- The triggers that were missing or switched off at the last look.
    lacking text[] NOT NULL DEFAULT '{}'
);

-- A table, or a partition, whose rows carry stamps.
CREATE TABLE fencing.watch (
    relation regclass PRIMARY KEY,
    target text NOT NULL,
    -- The shape of the columns when all stamps were right; null as long as the stamps have not been taken.
    shape bigint,
    -- The shape that this pass began with.
    passing bigint,
    -- How far this pass has compared rows with stamps, and stamps with rows.
    block bigint NOT NULL DEFAULT 0,
    after text[] COLLATE "C" NOT NULL DEFAULT '{}',
    -- Counts passes.
    round bigint NOT NULL DEFAULT 0,
    taken_at timestamptz NOT NULL DEFAULT '-infinity'
);

-- The stamp of a row: a hash of it. `suspect`: a write found another row than the stamp says.
CREATE TABLE fencing.stamp (
    relation regclass NOT NULL,
    key text[] COLLATE "C" NOT NULL,
    hash bigint NOT NULL,
    resource text COLLATE "C",
    suspect boolean NOT NULL DEFAULT false,
    PRIMARY KEY (relation, key)
) WITH (fillfactor = 70);
CREATE INDEX stamp_suspect ON fencing.stamp (relation) WHERE suspect;

-- Change the stamp of a row as the row has changed. The trigger of a watched table calls it for each row, with the
-- hash before and after; null where there is no row. It has the rights of the trigger; a session that calls it by
-- hand has none on the stamps.
--
-- The stamp is changed by what the row has changed by. So the order does not matter in which the triggers of one
-- transaction fire. One of them may write the row again, and the triggers of that write fire first. Whether a stamp
-- that does not fit is the sign of a bypass can only be told when the transaction is over. So it is marked, and
-- looked at then.
CREATE FUNCTION fencing.stamp_v1(p_relation oid, p_key text[], p_before bigint, p_after bigint, p_resource text)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF p_before IS NULL THEN
        INSERT INTO fencing.stamp (relation, key, hash, resource) VALUES (p_relation, p_key, p_after, p_resource)
        ON CONFLICT DO NOTHING;
    ELSIF p_after IS NULL THEN
        DELETE FROM fencing.stamp s WHERE s.relation = p_relation AND s.key = p_key AND s.hash = p_before;
    ELSE
        UPDATE fencing.stamp s SET hash = p_after, resource = p_resource
        WHERE s.relation = p_relation AND s.key = p_key AND s.hash = p_before;
    END IF;
    IF NOT FOUND THEN
        INSERT INTO fencing.stamp AS s (relation, key, hash, resource, suspect)
        VALUES (p_relation, p_key, coalesce(p_before, 0) # coalesce(p_after, 0), p_resource, true)
        ON CONFLICT (relation, key) DO UPDATE
        SET hash = s.hash # excluded.hash, resource = excluded.resource, suspect = true;
    END IF;
END
$function$;

-- Remove the stamps of a table that is truncated.
CREATE FUNCTION fencing.stamp_truncate_v1() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    DELETE FROM fencing.stamp s WHERE s.relation = TG_RELID;
    RETURN NULL;
END
$function$;
REVOKE ALL ON FUNCTION fencing.stamp_truncate_v1 FROM PUBLIC;

-- Return what the text of a row depends on beside its values. Another shape means other texts for the same rows.
CREATE FUNCTION fencing.shape_v1(p_relation oid) RETURNS bigint
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp RETURN (
    SELECT hashtextextended(current_setting('server_version_num')::integer / 10000 || ' ' || string_agg(
        format('%s %s %s %s', a.attnum, a.attname, a.atttypid, a.atttypmod)
        || coalesce((
            SELECT string_agg(e.enumlabel, ',' ORDER BY e.enumsortorder) FROM pg_enum e
            WHERE e.enumtypid IN (a.atttypid, t.typelem, t.typbasetype)), '')
        || coalesce((
            SELECT string_agg(format('%s %s', p.attnum, p.atttypid), ',' ORDER BY p.attnum) FROM pg_attribute p
            WHERE p.attrelid = t.typrelid AND t.typrelid <> 0 AND p.attnum > 0 AND NOT p.attisdropped), ''),
        ';' ORDER BY a.attnum), 0)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    WHERE a.attrelid = p_relation AND a.attnum > 0 AND NOT a.attisdropped
);

-- Return the names of the triggers that make up the guard of a table. Its trigger for rows says which: if it has a
-- transition table, other triggers check the rows, once for each statement.
CREATE FUNCTION fencing.guard_triggers_v1(p_relation regclass) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp RETURN
    ARRAY['fencing_guard_statement', 'fencing_guard_row', 'fencing_guard_truncate'] || CASE WHEN EXISTS (
        SELECT FROM pg_trigger t
        WHERE t.tgrelid = p_relation AND t.tgname = 'fencing_guard_row' AND t.tgoldtable IS NOT NULL)
    THEN ARRAY['fencing_guard_inserted', 'fencing_guard_updated', 'fencing_guard_deleted'] ELSE '{}' END;

-- Forget the guard of a table. The script that takes the guard off calls it.
CREATE FUNCTION fencing.guard_removed_v1(p_relation regclass) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    parts oid[] := ARRAY(SELECT p_relation::oid UNION SELECT t.relid::oid FROM pg_partition_tree(p_relation) AS t);
BEGIN
    DELETE FROM fencing.guarded g WHERE g.relation = p_relation;
    DELETE FROM fencing.watch w WHERE w.relation = ANY (parts);
    DELETE FROM fencing.stamp s WHERE s.relation = ANY (parts);
END
$function$;

-- Register the guard of a table. The script that installs the guard calls it. Stamps that are there stay: rows
-- written while there was no guard do not fit them.
-- Takes the table, its name on record, and whether its rows are watched. Grants what comparing needs to the owner of
-- the schema, which may be another role than the owner of the table.
CREATE FUNCTION fencing.guard_installed_v1(p_relation regclass, p_target text, p_watches boolean) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    sweeper oid := (SELECT c.relowner FROM pg_class c WHERE c.oid = 'fencing.stamp'::regclass);
    watched regclass;
    naming text;
BEGIN
    IF NOT p_watches THEN
        PERFORM fencing.guard_removed_v1(p_relation);
    END IF;
    INSERT INTO fencing.guarded (relation, target) VALUES (p_relation, p_target)
    ON CONFLICT (relation) DO UPDATE SET target = excluded.target, lacking = '{}';
    INSERT INTO fencing.watch (relation, target)
    SELECT c.oid, p_target FROM pg_class c
    WHERE p_watches AND c.relkind = 'r'
      AND (c.oid = p_relation OR c.oid IN (SELECT t.relid FROM pg_partition_tree(p_relation) AS t))
    ON CONFLICT (relation) DO UPDATE SET target = excluded.target;
    IF NOT p_watches THEN
        RETURN;
    END IF;
    FOR watched IN
        SELECT w.relation FROM fencing.watch w
        WHERE w.target = p_target AND NOT has_table_privilege(sweeper, w.relation, 'SELECT')
    LOOP
        EXECUTE format('GRANT SELECT ON %s TO %s', watched, sweeper::regrole);
    END LOOP;
    naming := (
        SELECT replace(p.proname, 'guard_', 'named_') FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
        WHERE t.tgrelid = p_relation AND t.tgname = 'fencing_guard_row');
    IF NOT has_function_privilege(sweeper, format('fencing.%I(anyelement)', naming), 'EXECUTE') THEN
        EXECUTE format('GRANT EXECUTE ON FUNCTION fencing.%I(anyelement) TO %s', naming, sweeper::regrole);
    END IF;
END
$function$;

-- A bypass that was found: `rows` of one resource, or a guard.
CREATE TYPE fencing.finding AS (reason text, resource text, target text, found_by text, rows bigint);

-- Return what statements about a watched table are made of: SQL over its row `t` and a stamp `s`. Keys are compared
-- as the types of their columns, which are PostgreSQL's own: a cast of another type could be code of its owner.
CREATE FUNCTION fencing.watch_pieces_v1(p_relation regclass, OUT key text, OUT same text, OUT named text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $function$
    SELECT
        'ARRAY[' || string_agg(format('format(''%%s'', t.%I)', a.attname), ', ' ORDER BY k.n) || ']',
        string_agg(format('t.%I = s.key[%s]::%s', a.attname, k.n,
            format_type(coalesce(nullif(y.typbasetype, 0), y.oid), NULL)), ' AND ' ORDER BY k.n),
        coalesce((
            SELECT format('fencing.%I(t)', replace(p.proname, 'guard_', 'named_'))
            FROM pg_trigger g JOIN pg_proc p ON p.oid = g.tgfoid
            WHERE g.tgrelid = p_relation AND g.tgname = 'fencing_guard_row'
              AND p.pronamespace = 'fencing'::regnamespace), 'NULL')
    FROM pg_index i
    CROSS JOIN unnest(i.indkey::smallint[]) WITH ORDINALITY AS k (number, n)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
    JOIN pg_type y ON y.oid = a.atttypid
    WHERE i.indrelid = p_relation AND i.indisprimary AND k.n <= i.indnkeyatts
$function$;
REVOKE ALL ON FUNCTION fencing.watch_pieces_v1 FROM PUBLIC;

-- Do one step of a pass over the watched table that was taken up longest ago. A step compares all suspect rows, then
-- some blocks of rows, or some stamps once all blocks are done. Rows and stamps are compared in the snapshot of one
-- statement. A row that does not fit goes on record. Its stamp is changed by what it is wrong by, so that writes
-- under way do no harm. If the stamps were not taken yet, or for another shape, they are just put right. A whole pass
-- of that takes them.
--
-- Takes a table or null for any, the time a table rests between steps, and how many blocks and stamps to compare.
-- Returns the table, null where there was nothing to do; whether the pass is over; and what was found.
-- Raises an error after 100 ms of waiting for a lock: it locks stamps, and transactions that write rows do so too, in
-- any order. So it gives up long before a deadlock would be reported, and the gateway tries again with less.
CREATE FUNCTION fencing.watch_step_v1(
    p_relation regclass, p_rest interval, p_blocks bigint, p_stamps bigint,
    OUT relation regclass, OUT passed boolean, OUT findings fencing.finding[]
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET timezone = 'UTC' SET datestyle = 'ISO, YMD' SET intervalstyle = 'iso_8601'
SET bytea_output = 'hex' SET extra_float_digits = 1 SET lc_monetary = 'C' SET lock_timeout = '100ms' AS $function$
DECLARE
    watch fencing.watch;
    pieces record;
    shape bigint;
    quiet boolean;
    hash text := 'hashtextextended(format(''%s'', t) COLLATE "C", 0)';
    of_stamps text;
    of_rows text;
    correct text;
    more fencing.finding[];
    blocks bigint;
    last text[];
BEGIN
    findings := '{}';
    SELECT * INTO watch FROM fencing.watch w
    WHERE (p_relation IS NULL OR w.relation = p_relation) AND w.taken_at <= clock_timestamp() - p_rest
      -- A partition that was added later may belong to another role, and not be readable.
      AND has_table_privilege(w.relation, 'SELECT')
    ORDER BY w.taken_at LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    relation := watch.relation;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS SHARE MODE', relation);
    pieces := fencing.watch_pieces_v1(relation);
    shape := fencing.shape_v1(relation);
    IF pieces.key IS NULL OR shape IS NULL THEN
        UPDATE fencing.watch w SET taken_at = clock_timestamp() WHERE w.relation = watch.relation;
        RETURN;
    END IF;
    quiet := watch.shape IS DISTINCT FROM shape;
    IF watch.passing IS DISTINCT FROM shape THEN
        watch.passing := shape;
        watch.block := 0;
        watch.after := '{}';
    END IF;
    of_stamps := format(
        'SELECT s.key, r.hash AS current, s.hash AS stamped, s.resource, s.suspect FROM (SELECT * FROM fencing.stamp AS s '
        'WHERE s.relation = $1 AND @WHICH@ LIMIT $4) AS s '
        'LEFT JOIN LATERAL (SELECT %s FROM ONLY %s AS t WHERE %s) AS r (hash) ON true', hash, relation, pieces.same);
    of_rows := format(
        'SELECT r.key, r.hash AS current, s.hash AS stamped, coalesce(s.resource, r.named) AS resource, false AS suspect FROM ('
        'SELECT %s AS key, %s AS hash, %s AS named FROM ONLY %s AS t WHERE t.ctid >= $2::text::tid AND t.ctid < $3::text::tid'
        ') AS r LEFT JOIN fencing.stamp AS s ON s.relation = $1 AND s.key = r.key '
        'WHERE s.hash IS DISTINCT FROM r.hash', pieces.key, hash, pieces.named, relation);
    correct := '
        WITH compared AS MATERIALIZED (@COMPARED@), misfit AS (
            SELECT * FROM compared WHERE current IS DISTINCT FROM stamped AND NOT (current IS NULL AND stamped = 0)
        ), corrected AS (
            INSERT INTO fencing.stamp AS s (relation, key, hash, resource)
            SELECT $1, key, coalesce(current, 0) # coalesce(stamped, 0), resource FROM misfit
            ON CONFLICT (relation, key) DO UPDATE
            SET hash = s.hash # excluded.hash, suspect = s.suspect OR s.hash # excluded.hash = 0
        ), cleared AS (
            UPDATE fencing.stamp AS s SET suspect = false FROM compared AS c
            WHERE c.suspect AND c.current = c.stamped AND s.relation = $1 AND s.key = c.key AND s.hash = c.stamped
        ), removed AS (
            DELETE FROM fencing.stamp AS s USING compared AS c
            WHERE c.suspect AND c.current IS NULL AND c.stamped = 0 AND s.relation = $1 AND s.key = c.key AND s.hash = 0
        ), named AS (
            SELECT resource, CASE WHEN current IS NULL THEN ''row-vanished'' WHEN stamped IS NULL THEN ''row-appeared''
                ELSE ''row-changed'' END AS reason, CASE WHEN suspect THEN ''write'' ELSE ''sweep'' END AS found_by, key
            FROM misfit WHERE NOT $5
        ), grouped AS (
            SELECT resource, reason, found_by, count(*) AS rows, (array_agg(to_jsonb(key)))[:10] AS keys
            FROM named GROUP BY resource, reason, found_by
        ), recorded AS (
            INSERT INTO fencing.intake (kind, plane, rule, resource, reason, target,
                fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details)
            SELECT ''bypass'', ''tables'', $6, g.resource, g.reason, $6, f.epoch, f.value, f.holder, f.caller, f.raised_at,
                jsonb_build_object(''found_by'', g.found_by, ''rows'', g.rows, ''keys'', to_jsonb(g.keys))
            FROM grouped AS g LEFT JOIN fencing.fence AS f ON f.resource = g.resource
        )
        SELECT coalesce(array_agg(ROW(reason, resource, $6, found_by, rows)::fencing.finding), ''{}'') FROM grouped';

    EXECUTE replace(correct, '@COMPARED@', replace(of_stamps, '@WHICH@', 's.suspect'))
    INTO findings USING relation, '', '', p_stamps, quiet, watch.target;
    blocks := pg_relation_size(relation) / current_setting('block_size')::bigint;
    passed := false;
    IF watch.block < blocks THEN
        EXECUTE replace(correct, '@COMPARED@', of_rows) INTO more
        USING relation, format('(%s,0)', watch.block), format('(%s,0)', least(watch.block + p_blocks, blocks)), 0, quiet,
            watch.target;
        findings := findings || more;
        watch.block := least(watch.block + p_blocks, blocks);
    ELSE
        EXECUTE replace(correct, '@COMPARED@', replace(of_stamps, '@WHICH@', 's.key > $7 ORDER BY s.key')) INTO more
        USING relation, '', '', p_stamps, quiet, watch.target, watch.after;
        findings := findings || more;
        SELECT s.key INTO last FROM fencing.stamp s WHERE s.relation = watch.relation AND s.key > watch.after
        ORDER BY s.key OFFSET p_stamps - 1 LIMIT 1;
        watch.after := coalesce(last, watch.after);
        passed := last IS NULL AND NOT (quiet AND EXISTS (
            SELECT FROM fencing.stamp s WHERE s.relation = watch.relation AND s.suspect));
        IF passed THEN
            watch.shape := watch.passing;
            watch.passing := NULL;
            watch.block := 0;
            watch.after := '{}';
            watch.round := watch.round + 1;
        END IF;
    END IF;
    UPDATE fencing.watch w
    SET shape = watch.shape, passing = watch.passing, block = watch.block, after = watch.after, round = watch.round,
        taken_at = clock_timestamp()
    WHERE w.relation = watch.relation;
END
$function$;
REVOKE ALL ON FUNCTION fencing.watch_step_v1 FROM PUBLIC;

-- Look whether the guards are all there and switched on. A guard that lost something since the last look goes on
-- record, once. Also brings the list of watched tables up to date, because partitions come and go.
-- Returns what was found.
CREATE FUNCTION fencing.look_at_guards_v1() RETURNS SETOF fencing.finding
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    guarded fencing.guarded;
    lacks text[];
    fresh text[];
    finding fencing.finding;
BEGIN
    -- Guards that are not registered: their table was restored without the rows of this schema.
    INSERT INTO fencing.guarded (relation, target)
    SELECT t.tgrelid, (string_to_array(encode(t.tgargs, 'escape'), '\000'))[5] FROM pg_trigger t
    JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE t.tgname = 'fencing_guard_row' AND t.tgparentid = 0 AND p.pronamespace = 'fencing'::regnamespace
    ON CONFLICT (relation) DO NOTHING;
    FOR guarded IN SELECT * FROM fencing.guarded g ORDER BY g.target FOR UPDATE SKIP LOCKED LOOP
        IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = guarded.relation) THEN
            DELETE FROM fencing.guarded g WHERE g.relation = guarded.relation;
            CONTINUE;
        END IF;
        lacks := ARRAY(
            SELECT format('%s on %s: %s', wanted.name, tree.relid, CASE WHEN t.oid IS NULL THEN 'gone' ELSE 'off' END)
            FROM (SELECT guarded.relation AS relid UNION SELECT p.relid FROM pg_partition_tree(guarded.relation) AS p) AS tree
            CROSS JOIN unnest(fencing.guard_triggers_v1(guarded.relation)) AS wanted (name)
            LEFT JOIN pg_trigger t ON t.tgrelid = tree.relid AND t.tgname = wanted.name
            WHERE t.oid IS NULL OR t.tgenabled NOT IN ('O', 'A')
            ORDER BY 1);
        fresh := ARRAY(SELECT l FROM unnest(lacks) AS l WHERE l <> ALL (guarded.lacking));
        IF cardinality(fresh) > 0 THEN
            finding := ROW(
                CASE WHEN array_to_string(fresh, ' ') LIKE '%: off%' THEN 'guard-disabled' ELSE 'guard-removed' END,
                NULL, guarded.target, 'sweep', 1)::fencing.finding;
            INSERT INTO fencing.intake (kind, plane, rule, reason, target, details)
            VALUES ('bypass', 'tables', guarded.target, finding.reason, guarded.target,
                jsonb_build_object('found_by', 'sweep', 'lacking', to_jsonb(fresh)));
            RETURN NEXT finding;
        END IF;
        IF lacks <> guarded.lacking THEN
            UPDATE fencing.guarded g SET lacking = lacks WHERE g.relation = guarded.relation;
        END IF;
    END LOOP;
    INSERT INTO fencing.watch (relation, target)
    SELECT t.tgrelid, (string_to_array(encode(t.tgargs, 'escape'), '\000'))[5] FROM pg_trigger t
    JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
    WHERE t.tgname = 'fencing_guard_row' AND p.pronamespace = 'fencing'::regnamespace AND c.relkind = 'r'
      AND (string_to_array(encode(t.tgargs, 'escape'), '\000'))[6] = 'watch'
    ON CONFLICT (relation) DO NOTHING;
    DELETE FROM fencing.watch w WHERE NOT EXISTS (
        SELECT FROM fencing.guarded g
        WHERE g.relation = w.relation OR w.relation IN (SELECT p.relid FROM pg_partition_tree(g.relation) AS p));
    DELETE FROM fencing.stamp s WHERE (s.relation, s.key) IN (
        SELECT o.relation, o.key FROM (
            SELECT n.relation FROM (SELECT DISTINCT x.relation FROM fencing.stamp x) AS n
            WHERE NOT EXISTS (SELECT FROM fencing.watch w WHERE w.relation = n.relation)) AS lost
        JOIN fencing.stamp o ON o.relation = lost.relation LIMIT 10000);
END
$function$;
REVOKE ALL ON FUNCTION fencing.look_at_guards_v1 FROM PUBLIC;
-- Refusals of guards, on record. A refusal is an error, which undoes all that its transaction has written. Sequences
-- are not undone. So each refusal takes a number from one sequence, and stores its particulars in one of sixteen others,
-- by that number. They are packed into 63 bits: 5 for the round, 4 for the reason, 22 for the process, 32 for a table hash. The next look makes entries of them.
--
-- A refusal runs with the rights of the owner of the schema, or of the role that installed the guard. A session that
-- calls refuse_v1 by hand, with rights of its own, leaves no trace here.

-- Numbers refusals.
CREATE SEQUENCE fencing.refusal;

-- The particulars of refusals, each by its number modulo sixteen.
CREATE SEQUENCE fencing.refusal_00;
CREATE SEQUENCE fencing.refusal_01;
CREATE SEQUENCE fencing.refusal_02;
CREATE SEQUENCE fencing.refusal_03;
CREATE SEQUENCE fencing.refusal_04;
CREATE SEQUENCE fencing.refusal_05;
CREATE SEQUENCE fencing.refusal_06;
CREATE SEQUENCE fencing.refusal_07;
CREATE SEQUENCE fencing.refusal_08;
CREATE SEQUENCE fencing.refusal_09;
CREATE SEQUENCE fencing.refusal_10;
CREATE SEQUENCE fencing.refusal_11;
CREATE SEQUENCE fencing.refusal_12;
CREATE SEQUENCE fencing.refusal_13;
CREATE SEQUENCE fencing.refusal_14;
CREATE SEQUENCE fencing.refusal_15;

-- One row: all refusals up to `counted` are on record, since `at`. `missing`: the next number, where later ones have
-- been stored before it.
CREATE TABLE fencing.refusals_counted (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    counted bigint NOT NULL DEFAULT 0,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    missing bigint
) WITH (fillfactor = 50);
INSERT INTO fencing.refusals_counted DEFAULT VALUES;

-- Count a refusal, by its reason and table. Does nothing in a read-only transaction, or without the right to count.
CREATE FUNCTION fencing.count_refusal_v1(p_reason text, p_target text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    number bigint;
BEGIN
    IF current_setting('transaction_read_only') = 'on' OR NOT has_sequence_privilege('fencing.refusal', 'UPDATE') THEN
        RETURN;
    END IF;
    number := nextval('fencing.refusal');
    PERFORM setval(
        format('fencing.refusal_%s', lpad((number % 16)::text, 2, '0'))::regclass,
        ((number / 16 % 32) << 58)
        | (coalesce(array_position(fencing.reasons_v1(), p_reason), 0)::bigint << 54)
        | ((pg_backend_pid() & 4194303)::bigint << 32)
        | (coalesce(hashtext(p_target COLLATE "C"), 0)::bigint & 4294967295));
END
$function$;

-- Put the refusals since the last look on record, in one entry for each table, reason and session. Beyond sixteen
-- refusals only their number is known; one more entry has that. Counting and recording is one transaction, and one
-- session at a time does it.
-- Takes when the caller looked before, null if it does not know.
-- Returns the number for each table and reason.
--
-- A number without particulars was taken a moment ago, or never: after a crash of the server numbers go on higher, by
-- up to 32. It is waited for, and after two seconds counted as never taken.
CREATE FUNCTION fencing.record_refusals_v1(p_since timestamptz)
RETURNS TABLE (target text, reason text, count bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    taken bigint;
    seen fencing.refusals_counted;
    packed bigint[];
    put_down bigint[];
    newest bigint;
    total bigint := 0;
    known jsonb := '[]';
    gap bigint;
    slot integer;
BEGIN
    PERFORM FROM fencing.refusal s JOIN fencing.refusals_counted c
        ON c.counted <> CASE WHEN s.is_called THEN s.last_value ELSE 0 END;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT * INTO seen FROM fencing.refusals_counted FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- Read in this order: a session takes its number before it stores the particulars.
    packed := ARRAY[
        (SELECT last_value FROM fencing.refusal_00 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_01 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_02 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_03 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_04 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_05 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_06 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_07 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_08 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_09 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_10 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_11 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_12 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_13 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_14 WHERE is_called),
        (SELECT last_value FROM fencing.refusal_15 WHERE is_called)
    ];
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO STRICT taken FROM fencing.refusal s;
    -- The highest number that each sequence has particulars of, worked out from its round.
    put_down := ARRAY(
        SELECT CASE WHEN packed[n + 1] IS NULL OR n > taken THEN 0
            ELSE n + 16 * ((taken - n) / 16 - (((taken - n) / 16 - (packed[n + 1] >> 58)) % 32 + 32) % 32) END
        FROM generate_series(0, 15) AS g (n) ORDER BY n);
    newest := least(seen.counted, taken);
    LOOP
        EXIT WHEN newest >= (SELECT max(p) FROM unnest(put_down) AS p);
        slot := ((newest + 1) % 16)::integer;
        -- Its particulars are there, or later numbers have overwritten them and all places around.
        IF put_down[slot + 1] = newest + 1 OR (SELECT min(p) FROM unnest(put_down) AS p) > newest THEN
            newest := newest + 1;
            total := total + 1;
            IF put_down[slot + 1] = newest THEN
                known := known || jsonb_build_object(
                    'reason', (fencing.reasons_v1())[((packed[slot + 1] >> 54) & 15)::integer],
                    'pid', (packed[slot + 1] >> 32) & 4194303, 'target', packed[slot + 1] & 4294967295);
            END IF;
        ELSIF seen.missing = newest + 1 AND seen.at < clock_timestamp() - interval '2 seconds' THEN
            newest := (SELECT min(p) FROM unnest(put_down) AS p WHERE p > newest) - 1;
        ELSE
            gap := newest + 1;
            EXIT;
        END IF;
    END LOOP;
    RETURN QUERY
    WITH refusal AS (
        SELECT (k ->> 'reason') AS reason, (k ->> 'pid')::integer AS pid, (k ->> 'target')::bigint AS hash, 1::bigint AS times
        FROM jsonb_array_elements(known) AS k
        UNION ALL
        SELECT NULL, NULL, NULL, total - jsonb_array_length(known) WHERE total > jsonb_array_length(known)
    ), grouped AS (
        SELECT r.reason, r.pid, r.hash, sum(r.times)::bigint AS times FROM refusal r GROUP BY 1, 2, 3
    ), told AS (
        SELECT x.*, g.target, a.usename, a.application_name, a.client_addr, a.backend_start, a.pid IS NOT NULL AS there
        FROM grouped x
        LEFT JOIN LATERAL (
            SELECT g.target FROM fencing.guarded g
            WHERE hashtext(g.target COLLATE "C")::bigint & 4294967295 = x.hash LIMIT 1) AS g ON true
        LEFT JOIN pg_stat_activity a ON a.pid = x.pid AND a.datname = current_database()
    ), recorded AS (
        INSERT INTO fencing.intake (kind, plane, rule, reason, enforced, caller, target, client, details)
        SELECT 'guard-refused', 'tables', t.target, t.reason, true, 'role:' || t.usename, t.target, host(t.client_addr),
            jsonb_strip_nulls(jsonb_build_object(
                'count', t.times,
                'since', to_char(coalesce(p_since, seen.at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                'by', CASE WHEN t.hash = 0 THEN 'fencing.hold' WHEN t.hash IS NOT NULL THEN 'guard' END,
                'session', CASE WHEN t.there THEN jsonb_build_object(
                    'pid', t.pid, 'user', t.usename, 'application_name', nullif(t.application_name, ''),
                    'client_addr', host(t.client_addr),
                    'started', to_char(t.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')) END))
        FROM told t
    )
    SELECT t.target, t.reason, t.times FROM told t;
    UPDATE fencing.refusals_counted c
    SET counted = newest, missing = gap, at = clock_timestamp()
    WHERE c.counted <> newest OR c.missing IS DISTINCT FROM gap;
END
$function$;
REVOKE ALL ON FUNCTION fencing.record_refusals_v1 FROM PUBLIC;
-- Keys of callers. Decision 082 has the reasons.

-- When a key of a configured caller was last used, as far as gateways have noted it. Rows of former keys stay. `key` is
-- the fingerprint of an API key, or the access key id of a pair of S3 keys.
CREATE TABLE fencing.key_use (
    caller text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    last_used timestamptz NOT NULL,
    PRIMARY KEY (caller, kind, key)
) WITH (fillfactor = 50);
-- Roles: statements of requests under roles of the database, those of several requests in one transaction
-- (docs/decisions/085). The gateway prepares such a statement on its session, for each role anew. These functions run it
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
-- Compatibility: which gateways may use this schema (docs/decisions/092-gateways-go-back-and-the-schema-stays.md).

-- Gateways from this release on find all that they call. A migration that drops something for an older one raises it.
CREATE TABLE fencing.compatibility (
    -- There is one row.
    present boolean PRIMARY KEY DEFAULT true CHECK (present),
    -- The revision that the oldest of these gateways brought along.
    oldest text COLLATE "C" NOT NULL
);
INSERT INTO fencing.compatibility (oldest) VALUES ('r1000');
