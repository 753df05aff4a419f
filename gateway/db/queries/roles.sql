-- name: rights
-- Return the attributes of a role and its memberships at every level: they decide which policies bind it.
-- Each GRANT and REVOKE changes xmin.
WITH RECURSIVE reached (role, mark) AS (
    SELECT r.oid, concat(r.rolsuper, r.rolinherit, r.rolbypassrls) FROM pg_roles AS r WHERE r.rolname = $1::text
    UNION
    SELECT m.roleid, m.xmin::text FROM reached AS r
    CROSS JOIN LATERAL (SELECT a.roleid, a.xmin FROM pg_auth_members AS a WHERE a.member = r.role OFFSET 0) AS m
)
SELECT string_agg(r.role || ' ' || r.mark, ',' ORDER BY r.role, r.mark) FROM reached AS r

-- name: write
-- Write for several requests under a role of their callers. If the role has other rights than those of its plans, the
-- name is that of no statement.
SELECT * FROM fencing.write_as_v1(
    CASE WHEN ({rights}) = $3::text THEN $2::text ELSE 'gw_outdated' END,
    $1::text, $4::text[], $5::text[], $6::text[], $7::integer, $9::text::json, $8::text[])

-- name: write_together
-- Write for several requests under a role of their callers, by one statement. The rest is as of write.
SELECT * FROM fencing.write_together_as_v1(
    CASE WHEN ({rights}) = $3::text THEN $2::text ELSE 'gw_outdated' END,
    $1::text, $4::text[], $5::text[], $6::integer, $12::text::json, $7::text[], $8::integer[], $9::bigint[], $10::text[],
    $11::text[])

-- name: read
-- Read for several requests under a role of their callers. The rest is as of write.
SELECT * FROM fencing.read_as_v1(
    CASE WHEN ({rights}) = $3::text THEN $2::text ELSE 'gw_outdated' END,
    $1::text, $4::text[], $5::text[], $6::text[], $7::integer, $8::text[])
