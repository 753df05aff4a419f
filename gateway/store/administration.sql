-- name: record
-- Somebody is about to change a bucket or its settings.
INSERT INTO fencing.administration (caller, operation, bucket, target, client, request_id)
VALUES ($1, $2, $3, $4, $5, $6)
RETURNING id
