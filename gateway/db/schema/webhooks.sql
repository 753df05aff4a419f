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
