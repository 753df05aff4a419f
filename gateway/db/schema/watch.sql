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
