-- name: counts
-- The newest refusals of a time, $4 at most, by step, reason and rule. A caller that is denied may have made up the rule.
SELECT date_bin($5, at, $2) AS step, reason, NOT enforced AS passed, plane,
       CASE WHEN reason <> 'denied' OR NOT enforced THEN rule END AS rule, count(*) AS refusals, max(at) AS last
FROM (
    SELECT at, reason, enforced, plane, rule FROM fencing.entry
    WHERE day >= $1 AND kind = 'rejection' AND at >= $2 AND at < $3{conditions} ORDER BY position DESC LIMIT $4
) AS newest
GROUP BY 1, 2, 3, 4, 5

-- name: tallies
-- Count the newest refusals of a time, $4 at most, by step and by the key of their incident. The reasons in the array $6
-- are about a token. Of the rows, the $7 newest are returned. `inside`: those from $8 until $9. Steps are aligned with $8.
SELECT reason, caller, key_resource, epoch, value, key_holder,
       date_bin($5, at, $8) AS step, count(*) AS refusals, count(*) FILTER (WHERE NOT enforced) AS passed,
       count(*) FILTER (WHERE plane = 'api') AS requests,
       count(*) FILTER (WHERE at >= $8 AND at < $9) AS inside,
       min(at) AS first, max(at) AS last, min(position) AS first_position, max(position) AS last_position,
       min(resource) AS resource,
       min(resource) IS NOT DISTINCT FROM max(resource) AND count(resource) IN (0, count(*)) AS same
FROM (
    SELECT at, position, reason, caller, enforced, resource, plane,
           CASE WHEN reason = ANY ($6::text[]) THEN resource END AS key_resource,
           CASE WHEN reason = ANY ($6::text[]) THEN epoch END AS epoch,
           CASE WHEN reason = ANY ($6::text[]) THEN value END AS value,
           CASE WHEN reason = ANY ($6::text[]) THEN holder END AS key_holder
    FROM fencing.entry
    WHERE day >= $1 AND kind = 'rejection' AND at >= $2 AND at < $3{conditions} ORDER BY position DESC LIMIT $4
) AS newest
GROUP BY 1, 2, 3, 4, 5, 6, 7
ORDER BY max(at) DESC LIMIT $7

-- name: entries
-- The entries at some positions.
SELECT * FROM fencing.entry WHERE day >= $1 AND position = ANY ($2::bigint[])

-- name: newest
-- The newest refused writes between two positions that match.
SELECT * FROM fencing.entry
WHERE day >= $1 AND kind = 'rejection' AND position BETWEEN $2 AND $3{conditions} ORDER BY position DESC LIMIT $4

-- name: renewed
-- Which writers have taken their resource over with a newer token, after the position of their last refusal.
SELECT asked.number FROM unnest(
    $2::text[], $3::integer[], $4::bigint[], $5::text[], $6::text[], $7::bigint[]
) WITH ORDINALITY AS asked (resource, epoch, value, holder, caller, after, number)
WHERE EXISTS (
    SELECT FROM fencing.entry AS e
    WHERE e.day >= $1 AND e.kind IN ('raised', 'barrier', 'epoch') AND e.resource = asked.resource
      AND e.position > asked.after AND (e.epoch, e.value) > (asked.epoch, asked.value)
      AND e.holder IS NOT DISTINCT FROM asked.holder AND e.caller IS NOT DISTINCT FROM asked.caller
)

-- name: acknowledgements
-- The newest acknowledgements after a position of the incidents with the keys $4, $5 at most of each. The reasons in the
-- array $3 are about a token, and their keys name it.
SELECT * FROM (
    SELECT *, row_number() OVER (PARTITION BY key ORDER BY position DESC) AS nth
    FROM (
        SELECT *, CASE WHEN details ->> 'reason' = ANY ($3::text[])
            THEN jsonb_build_array(
                details ->> 'reason', details ->> 'of', resource,
                CASE WHEN value IS NOT NULL THEN coalesce(epoch, 0) END, value, holder
            )
            ELSE jsonb_build_array(details ->> 'reason', details ->> 'of') END AS key
        FROM fencing.entry WHERE day >= $1 AND kind = 'incident-acknowledged' AND position > $2
    ) AS acknowledged
    WHERE key IN (SELECT unnest($4::text[])::jsonb)
) AS numbered
WHERE nth <= $5

-- name: notable
-- Changes past the gateway, and refusals by guards of which only the number is known, in a time: how many, and the last.
SELECT kind, sum(times)::bigint AS entries, max(at) AS last, (array_agg(about ORDER BY position DESC))[1] AS about
FROM (
    SELECT kind, at, coalesce(nullif(resource, ''), target) AS about, position,
        CASE kind WHEN 'guard-refused' THEN coalesce((details ->> 'count')::bigint, 1) ELSE 1 END AS times
    FROM fencing.entry
    WHERE day >= $1 AND kind = ANY ('{bypass,guard-refused}') AND at >= $2 ORDER BY position DESC LIMIT $3
) AS newest
GROUP BY kind
