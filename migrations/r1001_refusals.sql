-- The particulars of what guards refuse outlive the rollback.

-- Room for the particulars of refusals: eight logs, so that sessions which are refused at once do not wait for each other.
-- A log is 256 sequences. Each keeps eight bytes, and neither a rollback nor a crash takes them back.
-- `gateway guard install` makes the room. A database without a guard has none.
--
-- A refusal takes a row here `FOR UPDATE`, and appends to that log. No statement ever updates such a row: at REPEATABLE
-- READ, it could not be locked after an update.
CREATE TABLE fencing.refusal_log (log integer PRIMARY KEY);
INSERT INTO fencing.refusal_log (log) SELECT generate_series(0, 7);

-- How many refusals found no room, by the log whose row was locked.
CREATE SEQUENCE fencing.refusal_more_0 MINVALUE 0 START 0;
CREATE SEQUENCE fencing.refusal_more_1 MINVALUE 0 START 0;
CREATE SEQUENCE fencing.refusal_more_2 MINVALUE 0 START 0;
CREATE SEQUENCE fencing.refusal_more_3 MINVALUE 0 START 0;
CREATE SEQUENCE fencing.refusal_more_4 MINVALUE 0 START 0;
CREATE SEQUENCE fencing.refusal_more_5 MINVALUE 0 START 0;
CREATE SEQUENCE fencing.refusal_more_6 MINVALUE 0 START 0;
CREATE SEQUENCE fencing.refusal_more_7 MINVALUE 0 START 0;

-- Up to which word each log is on record, and how many refusals of the entry that begins there, since `at`. Also how many
-- that found no room.
CREATE TABLE fencing.refusal_log_read (
    log integer PRIMARY KEY,
    position bigint NOT NULL DEFAULT 0,
    told bigint NOT NULL DEFAULT 0,
    counted bigint NOT NULL DEFAULT 0,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50);
INSERT INTO fencing.refusal_log_read (log) SELECT generate_series(0, 7);

-- Name the sequence of a word; null without room. Each log is a ring.
CREATE FUNCTION fencing.refusal_word_v1(p_log integer, p_position bigint) RETURNS regclass LANGUAGE sql STABLE
RETURN to_regclass('fencing.refusal_word_' || lpad((p_log * 256 + p_position % 256)::text, 4, '0'));

-- Read a word, by the name of its sequence. Returns null where nothing has been put there.
CREATE FUNCTION fencing.read_word_v1(p_word regclass) RETURNS bigint LANGUAGE sql VOLATILE
RETURN pg_sequence_last_value(p_word);

-- Make the room, unless it is there. The script of a guard calls it.
CREATE FUNCTION fencing.keep_refusals_v1() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    LOCK TABLE fencing.refusal_log IN SHARE ROW EXCLUSIVE MODE;
    IF to_regclass('fencing.refusal_end_0') IS NOT NULL THEN
        RETURN;
    END IF;
    FOR number IN 0..2047 LOOP
        EXECUTE format('CREATE SEQUENCE fencing.refusal_word_%s MINVALUE -9223372036854775808 START 0',
            lpad(number::text, 4, '0'));
    END LOOP;
    FOR number IN 0..7 LOOP
        -- The place of the newest entry, in the upper 48 bits, and the number of its words.
        EXECUTE format('CREATE SEQUENCE fencing.refusal_end_%s MINVALUE 0 START 0', number);
        -- Up to which word the log may be written over.
        EXECUTE format('CREATE SEQUENCE fencing.refusal_free_%s MINVALUE 0 START 0', number);
    END LOOP;
END
$function$;
REVOKE ALL ON FUNCTION fencing.keep_refusals_v1 FROM PUBLIC;

-- Tell whether a log has room for an entry of so many words, or ends with one of this hash. Without a lock, only a no is
-- certain.
CREATE FUNCTION fencing.has_room_v1(p_log integer, p_hash bigint, p_size integer) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    newest bigint := coalesce(pg_sequence_last_value(format('fencing.refusal_end_%s', p_log)::regclass), 0);
BEGIN
    RETURN (newest >> 16) + (newest & 65535) + p_size - 256
            <= coalesce(pg_sequence_last_value(format('fencing.refusal_free_%s', p_log)::regclass), 0)
        OR newest > 0 AND fencing.read_word_v1(fencing.refusal_word_v1(p_log, newest >> 16)) = p_hash;
END
$function$;

-- Tell the first words of a statement: at most three names or keywords, without comments before them. A word next to a
-- quote, a dollar sign or a letter beyond ASCII ends them. So no literal, parameter or comment is ever told.
-- Takes the text of the statement. Returns at most 100 characters, null where no such word comes first.
--
-- A line's comment goes to the end of the line, whatever is in it. A comment within a comment is not removed, and hides all.
CREATE FUNCTION fencing.first_words_v1(p_statement text) RETURNS text LANGUAGE sql IMMUTABLE
RETURN nullif(left(rtrim(regexp_replace(substring(
    regexp_replace(left(p_statement, 2000) COLLATE "C",
        '^(?:\s|--[^\n\r]*(?:[\n\r]|$)|/\*(?:[^*/]|\*(?!/)|/(?!\*))*\*/)+', ''),
    '^((?:(?:[A-Za-z_][A-Za-z0-9_]*|"[A-Za-z0-9_]+")(?:\.(?:[A-Za-z_][A-Za-z0-9_]*|"[A-Za-z0-9_]+"))*'
    '(?=[\s(),;:=<>*]|\[|$)\s*){1,3})'), '\s+', ' ', 'g')), 100), '');

-- Keep the particulars of a refusal, beyond the rollback that it causes. If a log cannot take them, only count it.
-- Takes what word_refusal_v1 does. Does nothing in a read-only transaction, or without the right to count.
--
-- An entry begins with five words. The first two are a hash of the text, and the number of refusals with the length of the
-- text. The others are times, of the first refusal, the last one and the fence. The text follows. A refusal with the text of the
-- newest entry only raises the number there: a zombie that tries again and again takes no more room. The log is chosen
-- by the text.
CREATE FUNCTION fencing.keep_refusal_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    facts bytea;
    hash bigint;
    moment bigint;
    size integer;
    chosen integer;
    newest bigint;
    begins bigint;
    head bigint;
    waited integer := 0;
    busy boolean;
BEGIN
    IF current_setting('transaction_read_only') = 'on' OR NOT has_sequence_privilege('fencing.refusal', 'UPDATE') THEN
        RETURN;
    END IF;
    SELECT convert_to(string_agg(translate(coalesce(fact, ''), E'\x01', ''), E'\x01' ORDER BY place), getdatabaseencoding())
    INTO facts
    FROM unnest(ARRAY[
        p_reason, left(p_resource, 512), left(p_token, 64), left(p_holder, 200),
        fencing.token_v1(p_fence.epoch, p_fence.value), left(p_fence.holder, 200), left(p_fence.caller, 200),
        fencing.session_role_v1(), current_setting('application_name'), host(inet_client_addr()), p_target,
        fencing.first_words_v1(current_query())
    ]) WITH ORDINALITY AS each (fact, place);
    hash := ('x' || encode(substr(sha256(facts), 1, 8), 'hex'))::bit(64)::bigint;
    moment := extract(epoch FROM clock_timestamp()) * 1000000;
    size := 5 + (octet_length(facts) + 7) / 8;
    LOOP
        busy := false;
        FOR step IN 0..CASE WHEN to_regclass('fencing.refusal_end_0') IS NULL THEN -1 ELSE 7 END LOOP
            chosen := ((hash & 7) + step) % 8;
            CONTINUE WHEN NOT fencing.has_room_v1(chosen, hash, size);
            PERFORM FROM fencing.refusal_log l WHERE l.log = chosen FOR UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                busy := true;
                CONTINUE;
            END IF;
            CONTINUE WHEN NOT fencing.has_room_v1(chosen, hash, size);
            newest := coalesce(pg_sequence_last_value(format('fencing.refusal_end_%s', chosen)::regclass), 0);
            begins := newest >> 16;
            IF newest > 0 AND fencing.read_word_v1(fencing.refusal_word_v1(chosen, begins)) = hash THEN
                head := fencing.read_word_v1(fencing.refusal_word_v1(chosen, begins + 1));
                PERFORM setval(fencing.refusal_word_v1(chosen, begins + 3), moment);
                PERFORM setval(fencing.refusal_word_v1(chosen, begins + 1), head + 65536);
                RETURN;
            END IF;
            begins := begins + (newest & 65535);
            PERFORM setval(fencing.refusal_word_v1(chosen, begins), hash);
            PERFORM setval(fencing.refusal_word_v1(chosen, begins + 1), 65536 + octet_length(facts));
            PERFORM setval(fencing.refusal_word_v1(chosen, begins + 2), moment);
            PERFORM setval(fencing.refusal_word_v1(chosen, begins + 3), moment);
            PERFORM setval(fencing.refusal_word_v1(chosen, begins + 4),
                coalesce((extract(epoch FROM p_fence.raised_at) * 1000000)::bigint, 0));
            PERFORM setval(fencing.refusal_word_v1(chosen, begins + 5 + word),
                ('x' || encode(substr(facts || '\x00000000000000'::bytea, word * 8 + 1, 8), 'hex'))::bit(64)::bigint)
            FROM generate_series(0, size - 6) AS words (word);
            -- Last, so that a reader finds the whole entry or nothing of it.
            PERFORM setval(format('fencing.refusal_end_%s', chosen)::regclass, (begins << 16) + size);
            RETURN;
        END LOOP;
        IF NOT busy THEN
            SELECT l.log INTO chosen FROM fencing.refusal_log l LIMIT 1 FOR UPDATE SKIP LOCKED;
            IF FOUND THEN
                PERFORM setval(more, 1 + coalesce(pg_sequence_last_value(more), 0))
                FROM format('fencing.refusal_more_%s', chosen) AS name, LATERAL (SELECT name::regclass AS more) AS s;
                RETURN;
            END IF;
        END IF;
        -- Another refusal has the log, for a millisecond.
        EXIT WHEN waited = 300;
        waited := waited + 1;
        PERFORM pg_sleep(0.01);
    END LOOP;
    PERFORM fencing.count_refusal_v1(p_reason, p_target);
END
$function$;

-- Put on record how many refusals were only counted: one entry for each table and reason. Beyond sixteen refusals not
-- even these are known; one more entry has their number.
-- Takes what is on record, with that row locked, when the caller looked before, and how many more there were.
-- Returns the number for each table and reason.
--
-- A number without particulars was taken a moment ago, or never: after a crash of the server numbers go on higher, by
-- up to 32. It is waited for, and after two seconds counted as never taken.
CREATE FUNCTION fencing.record_counted_v1(
    seen fencing.refusals_counted, p_since timestamptz, p_more bigint
)
RETURNS TABLE (target text, reason text, count bigint)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    taken bigint;
    packed bigint[];
    put_down bigint[];
    newest bigint;
    total bigint := p_more;
    known jsonb := '[]';
    gap bigint;
    slot integer;
BEGIN
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
                    'target', packed[slot + 1] & 4294967295);
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
        SELECT (k ->> 'reason') AS reason, (k ->> 'target')::bigint AS hash, 1::bigint AS times
        FROM jsonb_array_elements(known) AS k
        UNION ALL
        SELECT NULL, NULL, total - jsonb_array_length(known) WHERE total > jsonb_array_length(known)
    ), grouped AS (
        SELECT r.reason, r.hash, sum(r.times)::bigint AS times FROM refusal r GROUP BY 1, 2
    ), told AS (
        SELECT x.*, g.target
        FROM grouped x
        LEFT JOIN LATERAL (
            SELECT g.target FROM fencing.guarded g
            WHERE hashtext(g.target COLLATE "C")::bigint & 4294967295 = x.hash LIMIT 1) AS g ON true
    ), recorded AS (
        INSERT INTO fencing.intake (kind, plane, rule, reason, enforced, target, details)
        SELECT 'guard-refused', 'tables', t.target, t.reason, true, t.target,
            jsonb_strip_nulls(jsonb_build_object(
                'count', t.times,
                'since', fencing.moment_v1(coalesce(p_since, seen.at)),
                'by', CASE WHEN t.hash = 0 THEN 'fencing.hold' WHEN t.hash IS NOT NULL THEN 'guard' END))
        FROM told t
    )
    SELECT t.target, t.reason, t.times FROM told t;
    UPDATE fencing.refusals_counted c
    SET counted = newest, missing = gap, at = clock_timestamp()
    WHERE c.counted <> newest OR c.missing IS DISTINCT FROM gap;
END
$function$;
REVOKE ALL ON FUNCTION fencing.record_counted_v1 FROM PUBLIC;

-- Put the refusals since the last look on record. Counting and recording is one transaction, and one session at a time
-- does it. It reads some 256 words of a log, so a caller repeats it while it returns something.
-- Takes when the caller looked before, null if it does not know.
-- Returns what it has put on record. Without an id, it is an entry about `count` refusals of which only that is known.
CREATE FUNCTION fencing.record_refusals_v2(p_since timestamptz) RETURNS TABLE (
    id uuid, at timestamptz, count bigint, resource text, reason text, epoch integer, value bigint, holder text,
    caller text, target text, client text, fence_epoch integer, fence_value bigint, fence_holder text,
    fence_caller text, fence_raised_at timestamptz
) LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
DECLARE
    seen fencing.refusals_counted;
    ring record;
    newest bigint;
    head bigint;
    size integer;
    fresh bigint;
    facts bytea;
    fact text[];
    shown record;
    met record;
    first_at timestamptz;
    last_at timestamptz;
    budget integer := 256;
    more bigint;
    missed bigint := 0;
BEGIN
    PERFORM FROM fencing.refusal_log_read r,
        LATERAL (SELECT fencing.read_word_v1(to_regclass(format('fencing.refusal_end_%s', r.log))) AS newest,
            fencing.read_word_v1(format('fencing.refusal_more_%s', r.log)::regclass) AS more) AS e
    WHERE e.newest >> 16 <> r.position OR e.more <> r.counted
       OR e.newest > 0 AND fencing.read_word_v1(fencing.refusal_word_v1(r.log, r.position + 1)) >> 16 <> r.told;
    IF NOT FOUND THEN
        PERFORM FROM fencing.refusal s JOIN fencing.refusals_counted c
            ON c.counted <> CASE WHEN s.is_called THEN s.last_value ELSE 0 END;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    SELECT * INTO seen FROM fencing.refusals_counted FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR ring IN SELECT r.* FROM fencing.refusal_log_read r ORDER BY r.at LOOP
        -- The words that an earlier transaction has put on record are free. This one may yet be undone.
        PERFORM setval(to_regclass(format('fencing.refusal_free_%s', ring.log)), ring.position)
        WHERE ring.position > coalesce(
            fencing.read_word_v1(to_regclass(format('fencing.refusal_free_%s', ring.log))), 0);
        newest := coalesce(fencing.read_word_v1(to_regclass(format('fencing.refusal_end_%s', ring.log))), 0);
        WHILE budget > 0 AND newest > 0 LOOP
            head := fencing.read_word_v1(fencing.refusal_word_v1(ring.log, ring.position + 1));
            size := 5 + ((head & 65535) + 7) / 8;
            fresh := (head >> 16) - ring.told;
            budget := budget - size;
            SELECT substr(string_agg(int8send(fencing.read_word_v1(
                fencing.refusal_word_v1(ring.log, ring.position + 5 + word))), '' ORDER BY word), 1, (head & 65535)::integer)
            INTO facts FROM generate_series(0, size - 6) AS words (word);
            IF ring.position > newest >> 16 OR facts IS NULL
                OR ('x' || encode(substr(sha256(facts), 1, 8), 'hex'))::bit(64)::bigint
                    <> fencing.read_word_v1(fencing.refusal_word_v1(ring.log, ring.position)) THEN
                -- Sequences and tables are of different moments, after a restore from a dump. Go on with the newest.
                ring.position := newest >> 16;
                ring.told := fencing.read_word_v1(fencing.refusal_word_v1(ring.log, ring.position + 1)) >> 16;
                EXIT;
            END IF;
            IF fresh > 0 THEN
                fact := string_to_array(convert_from(facts, getdatabaseencoding()), E'\x01', '');
                shown := fencing.read_token_v1(fact[3]);
                met := fencing.read_token_v1(fact[5]);
                first_at := to_timestamp(0) + fencing.read_word_v1(
                    fencing.refusal_word_v1(ring.log, ring.position + 2)) * interval '1 microsecond';
                last_at := to_timestamp(0) + fencing.read_word_v1(
                    fencing.refusal_word_v1(ring.log, ring.position + 3)) * interval '1 microsecond';
                RETURN QUERY
                INSERT INTO fencing.intake AS i (
                    kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, target, client, at,
                    fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details)
                SELECT CASE WHEN one.times = 1 THEN 'rejection' ELSE 'guard-refused' END,
                    'tables', fact[11], coalesce(fact[2], fact[11], 'fencing.hold'), fact[1], true,
                    shown.epoch, shown.value, fact[4], fact[8], fact[11], fact[10],
                    CASE WHEN one.number = 1 AND ring.told = 0 THEN first_at ELSE last_at END,
                    met.epoch, met.value, fact[6], fact[7],
                    CASE WHEN met.value IS NOT NULL THEN to_timestamp(0) + fencing.read_word_v1(
                        fencing.refusal_word_v1(ring.log, ring.position + 4)) * interval '1 microsecond' END,
                    jsonb_strip_nulls(jsonb_build_object(
                        'by', CASE WHEN fact[11] IS NULL THEN 'fencing.hold' ELSE 'guard' END,
                        'program', fact[9],
                        'statement', fact[12],
                        'count', nullif(one.times, 1),
                        -- Of more than two, only the first and the last one have a time of their own.
                        'since', CASE WHEN one.number < least(fresh, 1001) AND (one.number > 1 OR ring.told > 0) OR one.times > 1
                            THEN fencing.moment_v1(CASE WHEN ring.told = 0 THEN first_at ELSE ring.at END) END))
                FROM (
                    SELECT number, 1::bigint AS times FROM generate_series(1, least(fresh, 1000)) AS number
                    UNION ALL SELECT 1001, fresh - 1000 WHERE fresh > 1000
                ) AS one ORDER BY one.number
                RETURNING CASE WHEN i.kind = 'rejection' THEN i.id END, i.at, coalesce((i.details ->> 'count')::bigint, 1),
                    i.resource, i.reason, i.epoch, i.value, i.holder, i.caller, i.target, i.client, i.fence_epoch,
                    i.fence_value, i.fence_holder, i.fence_caller, i.fence_raised_at;
            END IF;
            ring.told := head >> 16;
            EXIT WHEN ring.position = newest >> 16;
            ring.position := ring.position + size;
            ring.told := 0;
        END LOOP;
        more := coalesce(fencing.read_word_v1(format('fencing.refusal_more_%s', ring.log)::regclass), 0);
        missed := missed + greatest(more - ring.counted, 0);
        UPDATE fencing.refusal_log_read r
        SET position = ring.position, told = ring.told, counted = more, at = clock_timestamp()
        WHERE r.log = ring.log AND (r.position, r.told, r.counted) <> (ring.position, ring.told, more);
    END LOOP;
    RETURN QUERY
    SELECT NULL::uuid, clock_timestamp(), c.count, NULL::text, c.reason, NULL::integer, NULL::bigint, NULL::text, NULL::text,
        c.target, NULL::text, NULL::integer, NULL::bigint, NULL::text, NULL::text, NULL::timestamptz
    FROM fencing.record_counted_v1(seen, p_since, missed) AS c;
END
$function$;
REVOKE ALL ON FUNCTION fencing.record_refusals_v2 FROM PUBLIC;

-- Do what record_refusals_v2 does, for gateways of version 1.0.
CREATE OR REPLACE FUNCTION fencing.record_refusals_v1(p_since timestamptz)
RETURNS TABLE (target text, reason text, count bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
    SELECT r.target, r.reason, sum(r.count)::bigint FROM fencing.record_refusals_v2(p_since) AS r GROUP BY 1, 2
$function$;
REVOKE ALL ON FUNCTION fencing.record_refusals_v1 FROM PUBLIC;

-- Keep the particulars of a refusal, then raise it.
-- Takes and raises what word_refusal_v1 does.
CREATE OR REPLACE FUNCTION fencing.refuse_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text
) RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    PERFORM fencing.keep_refusal_v1(p_reason, p_resource, p_token, p_holder, p_fence, p_target);
    PERFORM fencing.word_refusal_v1(p_reason, p_resource, p_token, p_holder, p_fence, p_target);
END
$function$;

-- Guards that are there get the room now, others when they are installed.
SELECT fencing.keep_refusals_v1() WHERE EXISTS (SELECT FROM fencing.guarded);

-- Put on record what a guard objects to that only observes: once for each transaction, resource, reason and table.
-- Notes of this transaction are still in the intake: nothing is sealed before it is committed.
CREATE OR REPLACE FUNCTION fencing.guard_note_v1(
    p_reason text, p_resource text, p_token text, p_holder text, p_fence fencing.fence, p_target text, p_operation text
) RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    shown record := fencing.read_token_v1(p_token);
    noted_in text := 'transaction/' || pg_current_xact_id();
BEGIN
    INSERT INTO fencing.intake (
        kind, plane, rule, resource, reason, enforced, epoch, value, holder, caller, method, target, client, request_id,
        fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at, details)
    SELECT 'rejection', 'tables', p_target, left(p_resource, 512), p_reason, false, shown.epoch, shown.value,
        left(p_holder, 200), fencing.session_role_v1(), p_operation, p_target, host(inet_client_addr()), noted_in,
        p_fence.epoch, p_fence.value, p_fence.holder, p_fence.caller, p_fence.raised_at,
        jsonb_strip_nulls(jsonb_build_object(
            'by', 'guard',
            'program', nullif(current_setting('application_name'), ''),
            -- Only the first note of a transaction has it: current_query() copies a statement that may name many rows.
            'statement', CASE WHEN NOT EXISTS (
                SELECT FROM fencing.intake i WHERE i.request_id LIKE 'transaction/%' AND i.request_id = noted_in
            ) THEN fencing.first_words_v1(current_query()) END))
    WHERE NOT EXISTS (
        SELECT FROM fencing.intake i
        WHERE i.request_id LIKE 'transaction/%' AND i.request_id = noted_in
          AND (i.resource, i.reason, i.target) = (left(p_resource, 512), p_reason, p_target));
END
$function$;
