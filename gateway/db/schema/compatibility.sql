-- Compatibility: which gateways may use this schema (docs/decisions/092-gateways-go-back-and-the-schema-stays.md).

-- Gateways from this release on find all that they call. A migration that drops something for an older one raises it.
CREATE TABLE fencing.compatibility (
    -- There is one row.
    present boolean PRIMARY KEY DEFAULT true CHECK (present),
    -- The revision that the oldest of these gateways brought along.
    oldest text COLLATE "C" NOT NULL
);
INSERT INTO fencing.compatibility (oldest) VALUES ('r1000');
