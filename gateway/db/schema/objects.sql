-- Objects: what is remembered of keys, uploads and tombstones in buckets.

-- The ETag that a key had after the last write through the gateway. A cache: rows may vanish at any time.
CREATE TABLE fencing.object (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    etag text,
    tombstone boolean NOT NULL,
    -- Only a write through the gateway can have changed the key since, so that a bypass is measured by this row. False
    -- where an amendment looked at the key before it was announced, and where the write may have been settled.
    witnessed boolean NOT NULL DEFAULT false,
    PRIMARY KEY (resource, bucket, key)
) WITH (fillfactor = 70);
CREATE INDEX object_place ON fencing.object (bucket, key);

-- A multipart upload that was opened through the gateway, and is neither completed nor given up as far as is known.
CREATE TABLE fencing.upload (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    upload_id text COLLATE "C" NOT NULL,
    -- Stands in the metadata of the object that the upload becomes.
    write_id uuid NOT NULL,
    -- The token that was presented when it was opened. It is valid for parts and completion that present none.
    epoch integer,
    value bigint,
    holder text,
    caller text NOT NULL,
    -- The gateway itself opened it, to take in one large body: only the gateway knows of it and cleans it up.
    staged boolean NOT NULL,
    touched_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    completed_at timestamptz,
    -- The proof that the token was issued, which is asked about again with each part.
    sequencer text,
    PRIMARY KEY (resource, bucket, key, upload_id)
);
CREATE INDEX upload_touched ON fencing.upload (touched_at);
CREATE INDEX upload_staged ON fencing.upload (bucket, key) WHERE staged;

-- Keys at which a tombstone may stand. A row comes before its tombstone and goes after it, so that none is missed.
CREATE TABLE fencing.tombstone (
    resource text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    -- When the tombstone was listed, or last taken up by the sweeper.
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (resource, bucket, key)
);
CREATE INDEX tombstone_listed ON fencing.tombstone (bucket, key);
CREATE INDEX tombstone_at ON fencing.tombstone (at);

-- How far the comparison of a bucket's listing with what is remembered has got. taken_at: when a gateway last took it
-- up.
CREATE TABLE fencing.patrol (
    bucket text COLLATE "C" PRIMARY KEY,
    after text COLLATE "C" NOT NULL DEFAULT '',
    taken_at timestamptz NOT NULL DEFAULT '-infinity'
);
