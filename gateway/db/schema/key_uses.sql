-- Keys of callers. A fingerprint is some bytes of a slow hash: a reader of this table cannot test guesses fast.

-- When a key of a configured caller was last used, as far as gateways have noted it. Rows of former keys stay. `key` is
-- the fingerprint of an API key, or the access key id of a pair of S3 keys.
CREATE TABLE fencing.key_use (
    caller text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    last_used timestamptz NOT NULL,
    PRIMARY KEY (caller, kind, key)
) WITH (fillfactor = 50);
