"""The record gets a partition for each week, and no longer for each day: a search has a seventh of them to look at.

Days that have a partition keep it, those that were prepared already too. A week is dropped once the last of its days is
too old (docs/record.md); docs/decisions/044 says why searches need it.
"""

from alembic import op

revision = "0013"
down_revision = "0012"

# Pages are in the order of the position, and days of a week are looked at together: the primary key begins with the day.
# Writers do not notice that it is made; who reads the record waits for it, some seconds for a few million entries.
POSITION = """
CREATE INDEX entry_position ON fencing.entry (position)
"""

# Which days the partitions are for, both included: the name says so. The other days (`entry_other`) are not among them.
STRETCHES = """
CREATE FUNCTION fencing.stretches_v1() RETURNS TABLE (name text, first date, last date) LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT c.relname::text,
        to_date(substr(c.relname::text, 7, 8), 'YYYYMMDD'), to_date(right(c.relname::text, 8), 'YYYYMMDD')
    FROM pg_catalog.pg_inherits i JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = 'fencing.entry'::regclass AND c.relname ~ '^entry_[0-9]{8}(_[0-9]{8})?$';
END
"""

# As in 0009, for stretches of days: one ends with its Sunday, or before a day that is in another partition.
PREPARE = """
CREATE OR REPLACE FUNCTION fencing.prepare_days_v1(p_ahead integer, p_most integer) RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $function$
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
        -- One at a time; sealing and reading go on.
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
    RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = 'The record is in use; it is done another time.';
END
$function$
"""

# As in 0009. Of a stretch of days it is the last one that must be too old, and that is on record.
DROP_DAY = """
CREATE OR REPLACE FUNCTION fencing.drop_day_v1(p_keep integer) RETURNS date
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $function$
DECLARE
    before date := (clock_timestamp() AT TIME ZONE 'UTC')::date - p_keep;
    name text;
    gone record;
BEGIN
    IF p_keep IS NULL OR p_keep < 7 THEN
        RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'The record is kept for seven days at least.';
    END IF;
    -- One at a time; sealing and reading go on.
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
    RAISE EXCEPTION USING ERRCODE = '55006', MESSAGE = 'The record is in use; it is done another time.';
END
$function$
"""


def upgrade() -> None:
    for statement in (POSITION, STRETCHES, PREPARE, DROP_DAY):
        op.get_bind().exec_driver_sql(statement)
