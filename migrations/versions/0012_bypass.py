"""What went round the gateway: objects that changed without it, rows of guarded tables that did, refusals of their guards.

docs/guard.md and docs/objects.md say what is found and when; docs/decisions/049 why it is done so.
"""

from alembic import op

revision = "0012"
down_revision = "0011"

OBJECTS = """
-- What is remembered of a key is also what a finding is measured by, where `witnessed`: then nothing but a write through
-- the gateway can have changed the key since. It is not where an amendment has looked at the key before it was announced,
-- where somebody may have settled the write, and in rows from before this revision.
ALTER TABLE fencing.object ADD COLUMN witnessed boolean NOT NULL DEFAULT false
;
CREATE INDEX object_place ON fencing.object (bucket, key)
;
-- How far the comparison of a bucket's listing with what is remembered has got. `taken_at`: when a gateway took it up last.
CREATE TABLE fencing.patrol (
    bucket text COLLATE "C" PRIMARY KEY,
    after text COLLATE "C" NOT NULL DEFAULT '',
    taken_at timestamptz NOT NULL DEFAULT '-infinity'
)
"""

ROWS = """
-- A table that has a guard; partitions are part of it. `lacking`: what was missing of the guard, or was switched off, when
-- somebody looked last. `target` is the name of the table on record.
CREATE TABLE fencing.guarded (
    relation regclass PRIMARY KEY,
    target text NOT NULL,
    lacking text[] NOT NULL DEFAULT '{}'
)
;
-- A table, or a partition, whose rows carry stamps. `shape`: what the columns were when all stamps were right, null as long
-- as they have not been taken. `block`, `after`: how far the comparison of rows with stamps, and of stamps with rows, has
-- got in this pass; `passing`: the shape it began with. `round` counts passes.
--
-- regclass and not oid: a dump has names, which mean the same table when it is restored.
CREATE TABLE fencing.watch (
    relation regclass PRIMARY KEY,
    target text NOT NULL,
    shape bigint,
    passing bigint,
    block bigint NOT NULL DEFAULT 0,
    after text[] COLLATE "C" NOT NULL DEFAULT '{}',
    round bigint NOT NULL DEFAULT 0,
    taken_at timestamptz NOT NULL DEFAULT '-infinity'
)
;
-- The stamp of a row: a hash of it. `suspect`: a write found the row to be another one than the stamp says.
CREATE TABLE fencing.stamp (
    relation regclass NOT NULL,
    key text[] COLLATE "C" NOT NULL,
    hash bigint NOT NULL,
    resource text COLLATE "C",
    suspect boolean NOT NULL DEFAULT false,
    PRIMARY KEY (relation, key)
) WITH (fillfactor = 70)
;
CREATE INDEX stamp_suspect ON fencing.stamp (relation) WHERE suspect
"""

# Called for each row that a watched table's trigger sees, before and after the change; null where there is no row. It has the
# rights of the trigger; who calls it by hand has none on the stamps.
#
# A stamp is changed by what the row has changed by, so the order does not matter in which the triggers of one transaction
# fire: one of them may write the row again, and that one's triggers fire first. Whether a stamp that does not fit is
# the sign of a bypass can only be told when the transaction is over. So it is marked, and looked at then.
STAMP = """
CREATE FUNCTION fencing.stamp_v1(p_relation oid, p_key text[], p_before bigint, p_after bigint, p_resource text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
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
$function$
;
CREATE FUNCTION fencing.stamp_truncate_v1() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    DELETE FROM fencing.stamp s WHERE s.relation = TG_RELID;
    RETURN NULL;
END
$function$
;
REVOKE ALL ON FUNCTION fencing.stamp_truncate_v1 FROM PUBLIC
;
-- What the text of a row depends on beside its values. Another shape: other texts for the same rows.
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
)
"""

# Said by the script that puts a guard on a table, or takes it off. Stamps that are there stay: what was written while there
# was no guard does not fit them.
REGISTER = """
CREATE FUNCTION fencing.guard_removed_v1(p_relation regclass) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    parts oid[] := ARRAY(SELECT p_relation::oid UNION SELECT t.relid::oid FROM pg_partition_tree(p_relation) AS t);
BEGIN
    DELETE FROM fencing.guarded g WHERE g.relation = p_relation;
    DELETE FROM fencing.watch w WHERE w.relation = ANY (parts);
    DELETE FROM fencing.stamp s WHERE s.relation = ANY (parts);
END
$function$
;
-- Rows and stamps are compared with the rights of the owner of the schema, who may be somebody else than the table's.
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
$function$
"""

# What statements about a watched table are made of: SQL over its row `t` and a stamp `s`. Keys are compared as the types of
# their columns, which are PostgreSQL's own: a cast could be somebody else's code otherwise.
PIECES = """
CREATE TYPE fencing.finding AS (reason text, resource text, target text, found_by text, rows bigint)
;
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
$function$
;
REVOKE ALL ON FUNCTION fencing.watch_pieces_v1 FROM PUBLIC
"""

# One stretch of a pass over a watched table, that nobody has taken up for longest: first what is suspect, then some blocks
# of rows, or, once all blocks are done, some stamps. Rows and stamps are compared in the snapshot of one statement. What
# does not fit goes on record, and its stamp is changed by what it is wrong by, so that writes under way do no harm.
# Where the stamps have not been taken, or for another shape, they are just put right: a whole pass of that takes them.
#
# It locks stamps, and rows come and go meanwhile in transactions that do so too, in any order. So it gives up long before
# anybody would be told of a deadlock, and is tried again, with less.
#
# `relation` is null where there was nothing to do; `passed`: the pass is over.
STEP = """
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
      -- A partition that was added later, of a table that is somebody else's, may not be readable.
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
$function$
;
REVOKE ALL ON FUNCTION fencing.watch_step_v1 FROM PUBLIC
"""

# Whether the guards are all there and switched on; which of them have got less so since the last look goes on record, once.
# It also brings the list of tables that carry stamps up to date: partitions come and go.
LOOK = """
CREATE FUNCTION fencing.look_at_guards_v1() RETURNS SETOF fencing.finding
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    guarded fencing.guarded;
    lacks text[];
    fresh text[];
    finding fencing.finding;
BEGIN
    -- Those that were installed by an earlier revision.
    INSERT INTO fencing.guarded (relation, target)
    SELECT t.tgrelid, (string_to_array(encode(t.tgargs, 'escape'), '\\000'))[5] FROM pg_trigger t
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
            CROSS JOIN unnest(ARRAY['fencing_guard_statement', 'fencing_guard_row', 'fencing_guard_truncate']) AS wanted (name)
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
    SELECT t.tgrelid, (string_to_array(encode(t.tgargs, 'escape'), '\\000'))[5] FROM pg_trigger t
    JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
    WHERE t.tgname = 'fencing_guard_row' AND p.pronamespace = 'fencing'::regnamespace AND c.relkind = 'r'
      AND (string_to_array(encode(t.tgargs, 'escape'), '\\000'))[6] = 'watch'
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
$function$
;
REVOKE ALL ON FUNCTION fencing.look_at_guards_v1 FROM PUBLIC
"""

# A refusal is an error, which undoes all that its transaction has written. Sequences are not undone: each refusal takes a
# number from one, and puts down who, where and why in one of sixteen others, by that number: 5 bits of the number of the
# round, 4 of the reason, 22 of the process, 32 of the table's name as a hash. The look that follows makes entries of it.
#
# What refuses runs with the rights of the owner of the schema or of whoever installed the guard. Who calls refuse_v1 by hand,
# with rights of its own, leaves no trace here.
REFUSALS = (
    """
CREATE SEQUENCE fencing.refusal
;
-- All up to `counted` are on record, since `at`. `missing`: the next one, where others have been put down before it.
CREATE TABLE fencing.refusals_counted (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    counted bigint NOT NULL DEFAULT 0,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    missing bigint
) WITH (fillfactor = 50)
;
INSERT INTO fencing.refusals_counted DEFAULT VALUES
;
"""
    + "\n;\n".join(f"CREATE SEQUENCE fencing.refusal_{number:02}" for number in range(16))
    + """
;
CREATE FUNCTION fencing.reasons_v1() RETURNS text[] LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN ARRAY[
    'token-stale', 'token-duplicate', 'token-used', 'token-required', 'token-unclaimed', 'token-malformed',
    'resource-malformed', 'holder-malformed', 'resource-mismatch', 'resource-underivable', 'isolation', 'writes-pending']
;
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
$function$
;
ALTER FUNCTION fencing.refuse_v1 RENAME TO word_refusal_v1
;
CREATE FUNCTION fencing.refuse_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    PERFORM fencing.count_refusal_v1(p_reason, p_target);
    PERFORM fencing.word_refusal_v1(p_reason, p_resource, p_token, p_holder, p_fence, p_target);
END
$function$
"""
)

# Put on record which refusals there were since the last look: an entry for each table, reason and session, and one for
# those of which only the number is known, where there were more than sixteen. Counting and recording is one transaction, and
# one at a time does it. p_since: when the caller looked before; null: it does not know.
#
# A number that nobody has put anything down for was taken a moment ago, or never: after a crash of the server numbers go on
# higher, by up to 32. It is waited for, and after two seconds taken for one of those.
RECORD_REFUSALS = """
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
    -- In this order: what is put down has been taken before.
    packed := ARRAY[@SLOTS@];
    SELECT CASE WHEN s.is_called THEN s.last_value ELSE 0 END INTO STRICT taken FROM fencing.refusal s;
    -- The highest number that has been put down in each, told by its round.
    put_down := ARRAY(
        SELECT CASE WHEN packed[n + 1] IS NULL OR n > taken THEN 0
            ELSE n + 16 * ((taken - n) / 16 - (((taken - n) / 16 - (packed[n + 1] >> 58)) % 32 + 32) % 32) END
        FROM generate_series(0, 15) AS g (n) ORDER BY n);
    newest := least(seen.counted, taken);
    LOOP
        EXIT WHEN newest >= (SELECT max(p) FROM unnest(put_down) AS p);
        slot := ((newest + 1) % 16)::integer;
        -- It is there, or all the later ones are that have taken its place and the places around it.
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
$function$
;
REVOKE ALL ON FUNCTION fencing.record_refusals_v1 FROM PUBLIC
""".replace(
    "@SLOTS@",
    ", ".join(
        f"(SELECT last_value FROM fencing.refusal_{number:02} WHERE is_called)"  # noqa: S608 - numbers of our own
        for number in range(16)
    ),
)


def upgrade() -> None:
    for script in (OBJECTS, ROWS, STAMP, REGISTER, PIECES, STEP, LOOK, REFUSALS, RECORD_REFUSALS):
        for statement in script.split("\n;\n"):
            op.get_bind().exec_driver_sql(statement)
