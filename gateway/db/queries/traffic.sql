-- name: write
-- The counts of one gateway, as they are by now.
INSERT INTO fencing.traffic (gateway, minute, plane, rule, accepted, refused, observed)
SELECT $1, * FROM unnest($2::timestamptz[], $3::text[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[])
ON CONFLICT (minute, gateway, plane, rule) DO UPDATE
SET accepted = excluded.accepted, refused = excluded.refused, observed = excluded.observed

-- name: series
-- The writes of a span in steps of equal length. A minute belongs to the step in which it begins.
WITH steps AS (
    SELECT step, $1::timestamptz + step * ($2::timestamptz - $1::timestamptz) / $3::integer AS at
    FROM generate_series(0, $3::integer - 1) AS step
), counted AS (
    SELECT width_bucket(extract(epoch FROM minute), extract(epoch FROM $1::timestamptz),
                        extract(epoch FROM $2::timestamptz), $3::integer) - 1 AS step,
           sum(accepted) AS accepted, sum(refused) AS refused, sum(observed) AS observed
    FROM fencing.traffic
    WHERE minute >= $1 AND minute < $2 AND ($4::text IS NULL OR plane = $4) AND ($5::text IS NULL OR rule = $5)
    GROUP BY 1
)
SELECT at, coalesce(accepted, 0)::bigint AS accepted, coalesce(refused, 0)::bigint AS refused,
       coalesce(observed, 0)::bigint AS observed
FROM steps LEFT JOIN counted USING (step)
ORDER BY step

-- name: of_rules
-- The writes of a span by their rules, and when there were the last of each kind.
SELECT plane, rule, sum(accepted)::bigint AS accepted, sum(refused)::bigint AS refused,
       sum(observed)::bigint AS observed,
       max(minute) FILTER (WHERE accepted > 0) AS last_accepted,
       max(minute) FILTER (WHERE refused > 0) AS last_refused,
       max(minute) FILTER (WHERE observed > 0) AS last_observed
FROM fencing.traffic
WHERE minute >= $1 AND minute < $2
GROUP BY plane, rule
ORDER BY 4 DESC, 5 DESC, 3 DESC, plane, rule

-- name: forget
-- Delete old counts. Counts are no part of the record, so the gateway may remove them.
WITH gone AS (
    DELETE FROM fencing.traffic WHERE (minute, gateway, plane, rule) IN (
        SELECT minute, gateway, plane, rule FROM fencing.traffic
        WHERE minute < now() - make_interval(days => $1) ORDER BY minute LIMIT $2
    ) RETURNING 1
)
SELECT count(*) AS gone FROM gone
