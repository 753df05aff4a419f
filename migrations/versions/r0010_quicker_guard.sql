-- The guard checks less often, and a refusal for want of a token names the two lines that help.

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

CREATE OR REPLACE FUNCTION fencing.is_open_v1() RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RETURN fencing.is_open_v2();
END
$function$;

CREATE OR REPLACE FUNCTION fencing.word_refusal_v1(
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
            advice := 'Narrow the write to the resources whose locks you hold, or hold this one too.';
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

CREATE FUNCTION fencing.guard_locked_v1(p_resource text, p_epoch integer, p_value bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $function$
BEGIN
    PERFORM FROM fencing.fence f
    WHERE f.resource = p_resource AND f.epoch = p_epoch AND f.value = p_value FOR SHARE;
    RETURN FOUND;
END
$function$;

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

CREATE OR REPLACE FUNCTION fencing.guard_statement_v1() RETURNS trigger
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

CREATE FUNCTION fencing.guard_triggers_v1(p_relation regclass) RETURNS text[]
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp RETURN
    ARRAY['fencing_guard_statement', 'fencing_guard_row', 'fencing_guard_truncate'] || CASE WHEN EXISTS (
        SELECT FROM pg_trigger t
        WHERE t.tgrelid = p_relation AND t.tgname = 'fencing_guard_row' AND t.tgoldtable IS NOT NULL)
    THEN ARRAY['fencing_guard_inserted', 'fencing_guard_updated', 'fencing_guard_deleted'] ELSE '{}' END;

CREATE OR REPLACE FUNCTION fencing.look_at_guards_v1() RETURNS SETOF fencing.finding
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
