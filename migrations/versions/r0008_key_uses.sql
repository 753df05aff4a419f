-- Gateways note when keys of callers were last used (docs/decisions/082).
CREATE TABLE fencing.key_use (
    caller text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    last_used timestamptz NOT NULL,
    PRIMARY KEY (caller, kind, key)
) WITH (fillfactor = 50);
