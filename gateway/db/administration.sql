-- name: record
-- Somebody is about to do what only some may: change a bucket or its settings, take out credentials.
INSERT INTO fencing.intake (
    kind, plane, resource, epoch, value, holder, caller, method, target, client, request_id, details)
VALUES ('administration', $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11::jsonb)
RETURNING id
