-- Ownership: the names that this database has fences for, if its gateways serve several databases. No two of them may
-- serve one name. So what each owns is a fact in it, and not of a gateway's configuration.

-- The share of this database, and the rules that say so: see gateway.fencing.ownership.
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
