-- name: record
-- Refused writes (or, in observe mode, noted ones), and what is kept of their payloads.
WITH shown AS (
    SELECT * FROM unnest(
        $1::uuid[], $2::text[], $3::integer[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
        $10::text[], $11::bigint[], $12::text[], $13::text[], $14::text[], $15::text[], $16::text[], $17::boolean[],
        $18::integer[], $19::bigint[], $20::text[], $21::text[], $22::timestamptz[]
    ) AS one (
        id, resource, epoch, value, holder, caller, method, target, client, request_id, payload_size, payload_sha256,
        plane, rule, details, reason, enforced, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
), kept AS (
    INSERT INTO fencing.payload (entry, media_type, body, truncated)
    SELECT * FROM unnest($23::uuid[], $24::text[], $25::bytea[], $26::boolean[])
)
INSERT INTO fencing.intake (
    kind, id, resource, epoch, value, holder, caller, method, target, client, request_id, payload_size, payload_sha256,
    plane, rule, details, reason, enforced, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
SELECT 'rejection', id, resource, epoch, value, holder, caller, method, target, client, request_id, payload_size,
       payload_sha256, plane, rule, details::jsonb, reason, enforced, fence_epoch, fence_value, fence_holder,
       fence_caller, fence_raised_at
FROM shown
RETURNING id, at

-- name: record_overtaken
-- Record the writes among many whose fence carries a higher token already, with the kept part of their payloads. A fence
-- never goes down, so no lock is needed for certainty.
WITH shown AS (
    SELECT * FROM unnest(
        $1::uuid[], $2::text[], $3::integer[], $4::bigint[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
        $10::text[], $11::bigint[], $12::text[], $13::text[], $14::text[], $15::text[]
    ) AS one (
        id, resource, epoch, value, holder, caller, method, target, client, request_id, payload_size, payload_sha256,
        plane, rule, details)
), recorded AS (
    INSERT INTO fencing.intake (
        kind, reason, enforced, id, resource, epoch, value, holder, caller, method, target, client, request_id,
        payload_size, payload_sha256, plane, rule, details,
        fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
    SELECT 'rejection', 'token-stale', true, s.id, s.resource, s.epoch, s.value, s.holder, s.caller, s.method, s.target,
           s.client, s.request_id, s.payload_size, s.payload_sha256, s.plane, s.rule, s.details::jsonb,
           f.epoch, f.value, f.holder, f.caller, f.raised_at
    FROM shown AS s JOIN fencing.fence AS f ON f.resource = s.resource AND (f.epoch, f.value) > (s.epoch, s.value)
    RETURNING id, at, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at
), kept AS (
    INSERT INTO fencing.payload (entry, media_type, body, truncated)
    SELECT one.* FROM unnest($16::uuid[], $17::text[], $18::bytea[], $19::boolean[]) AS one (entry, media, body, cut)
    JOIN recorded ON recorded.id = one.entry
)
SELECT * FROM recorded

-- name: read
-- Return the kept payload of one refused write.
SELECT media_type, body, truncated FROM fencing.payload WHERE entry = $1

-- name: drop
-- Some of those that are older than they are to be kept. The gateway itself may delete none.
SELECT fencing.drop_payloads_v1($1, $2) AS gone
