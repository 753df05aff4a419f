-- name: take
-- Make this key the one of the write under way. Waits for a write that has taken it already, and then takes nothing.
INSERT INTO fencing.idempotency (caller, key, fingerprint) VALUES ($1, $2, $3)
ON CONFLICT (caller, key) DO NOTHING
RETURNING true AS taken

-- name: kept
-- Return the request and the answer of this key. After a crash, or where its commit did not wait, the server may show an
-- answer that its standby does not have. The message makes this statement wait for the standby.
SELECT fingerprint, status, headers, body, claimed,
    CASE WHEN current_setting('synchronous_standby_names') <> '' THEN pg_logical_emit_message(true, 'fencing', '') END
FROM fencing.idempotency WHERE caller = $1 AND key = $2

-- name: keep
-- The answer to the write under way.
UPDATE fencing.idempotency SET status = $3, headers = $4, body = $5, claimed = $6 WHERE caller = $1 AND key = $2

-- name: forget
-- Some of the answers that are older than so many seconds; other gateways may be at it too.
DELETE FROM fencing.idempotency AS i USING (
    SELECT caller, key FROM fencing.idempotency
    WHERE at < clock_timestamp() - make_interval(secs => $1)
    ORDER BY at LIMIT $2 FOR UPDATE SKIP LOCKED
) AS old
WHERE i.caller = old.caller AND i.key = old.key
RETURNING true AS forgotten
