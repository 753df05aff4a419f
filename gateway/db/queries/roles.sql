-- name: write
-- Write for several requests under a role of their callers.
SELECT * FROM fencing.write_as_v1(
    $1::text, $2::text, $3::text[], $4::text[], $5::text[], $6::integer, $8::text::json, $7::text[])

-- name: read
-- Read for several requests under a role of their callers.
SELECT * FROM fencing.read_as_v1($1::text, $2::text, $3::text[], $4::text[], $5::text[], $6::integer, $7::text[])
