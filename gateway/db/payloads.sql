-- name: read
-- What is kept of the payload of one refused write.
SELECT media_type, body, truncated FROM fencing.payload WHERE entry = $1

-- name: drop
-- Some of those that are older than they are to be kept. The gateway itself may delete none.
SELECT fencing.drop_payloads_v1($1, $2) AS gone
