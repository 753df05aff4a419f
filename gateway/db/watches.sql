-- name: relations
-- The tables that carry stamps, partitions by themselves.
SELECT w.relation::text AS relation FROM fencing.watch AS w
JOIN pg_class AS c ON c.oid = w.relation
WHERE has_table_privilege((SELECT o.relowner FROM pg_class AS o WHERE o.oid = 'fencing.stamp'::regclass), c.oid, 'SELECT')
ORDER BY 1

-- name: forget_stamps
-- The stamps of these tables are to be taken anew.
UPDATE fencing.watch AS w SET shape = NULL, passing = NULL WHERE w.target = $1::text RETURNING w.relation::text AS relation

-- name: step
-- One stretch of a pass over a watched table.
SELECT relation::text AS relation, passed, to_jsonb(findings) AS findings
FROM fencing.watch_step_v1($1::text::regclass, make_interval(secs => $2), $3, $4)

-- name: look
-- Which guards have got something missing or switched off since the last look.
SELECT reason, resource, target, found_by, rows FROM fencing.look_at_guards_v1()

-- name: refusals
-- Put on record what guards have refused since the last look.
SELECT target, reason, count FROM fencing.record_refusals_v1($1)
