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
