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
