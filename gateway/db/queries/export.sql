-- name: ndjson
-- One entry a line: the text its hash is made of, and the hash.
SELECT fencing.ndjson_v1(entry)
FROM fencing.entry WHERE day = {day}{conditions} ORDER BY position

-- name: csv
-- One entry a row. A text that a spreadsheet would take for a formula gets an apostrophe before it. Such a text begins
-- with = + - @, a tab or a carriage return, or with the wide forms of those signs.
SELECT position, id, fencing.moment_v1(at), kind, plane, {text:rule}, {text:resource}, reason,
    CASE WHEN enforced THEN 'true' WHEN NOT enforced THEN 'false' END, fencing.token_v1(epoch, value), {text:holder},
    {text:caller}, {text:method}, {text:target}, {text:client}, {text:request_id}, payload_size, payload_sha256,
    fencing.token_v1(fence_epoch, fence_value), {text:fence_holder}, {text:fence_caller}, fencing.moment_v1(fence_raised_at),
    details, encode(hash, 'hex')
FROM fencing.entry WHERE day = {day}{conditions} ORDER BY position
