-- name: extent
-- From the first to the last thing of note during a span, and since when the first holder had the fence. An entry is sealed after it has happened: the day before is for
-- clocks that were put back.
SELECT min(at) AS first, max(at) AS last, min(fence_raised_at) AS begun
FROM fencing.entry
WHERE resource = $1 AND position <= $2 AND at >= $3 AND at <= $4 AND day >= ($3::timestamptz AT TIME ZONE 'UTC')::date - 1

-- name: whole
-- The same of the whole record.
SELECT min(at) AS first, max(at) AS last, min(fence_raised_at) AS begun
FROM fencing.entry WHERE resource = $1 AND position <= $2

-- name: parties
-- Return the parties that acted or were overtaken during a span, with their refused writes and the number of parties. All
-- are shown if they are no more than $5. Otherwise the $6 with the most refused writes are shown, their successors, and
-- the $7 with the highest tokens.
WITH acting AS (
    SELECT epoch, value, holder, min(caller) AS caller,
        count(*) FILTER (WHERE kind = 'rejection') AS refused,
        count(*) FILTER (WHERE NOT enforced) AS noted,
        count(*) FILTER (WHERE kind = 'rejection' AND plane = 'api') AS requests,
        min(at) FILTER (WHERE kind = 'rejection') AS first,
        max(at) FILTER (WHERE kind = 'rejection') AS last,
        max(position) AS newest,
        min(position) FILTER (WHERE kind = 'rejection' AND (fence_epoch, fence_value) > (epoch, value)) AS met
    FROM fencing.entry
    WHERE resource = $1 AND position <= $2 AND at >= $3 AND at <= $4
      AND day >= ($3::timestamptz AT TIME ZONE 'UTC')::date - 1
      AND kind IN ('rejection', 'raised', 'barrier', 'epoch', 'lease-granted', 'lease-released', 'lease-expired',
          'lease-broken')
    GROUP BY epoch, value, holder
), raised AS MATERIALIZED (
    SELECT epoch, value, fence_epoch, fence_value, fence_holder, fence_caller, position
    FROM fencing.entry
    WHERE resource = $1 AND position <= $2 AND at >= $3 AND at <= $4
      AND day >= ($3::timestamptz AT TIME ZONE 'UTC')::date - 1
      AND kind IN ('raised', 'barrier', 'epoch')
), parties AS (
    SELECT epoch, value, holder, min(caller) AS caller, sum(refused)::bigint AS refused, sum(noted)::bigint AS noted,
        sum(requests)::bigint AS requests, min(first) AS first, max(last) AS last, max(newest) AS newest, min(met) AS met
    FROM (
        SELECT * FROM acting
        UNION ALL
        SELECT fence_epoch, fence_value, fence_holder, fence_caller, 0, 0, 0, NULL, NULL, position, NULL
        FROM raised WHERE fence_value IS NOT NULL
    ) AS both_sides
    GROUP BY epoch, value, holder
), ranked AS (
    SELECT *,
        row_number() OVER (ORDER BY refused DESC, newest DESC) AS by_refused,
        row_number() OVER (ORDER BY epoch DESC NULLS LAST, value DESC, newest DESC) AS by_token,
        count(*) OVER () AS parties,
        count(*) FILTER (WHERE refused > 0) OVER () AS zombies,
        (sum(refused) OVER ())::bigint AS refused_in_all,
        (sum(noted) OVER ())::bigint AS noted_in_all,
        (sum(requests) OVER ())::bigint AS requests_in_all
    FROM parties
), overtakers AS (
    SELECT o.epoch, o.value
    FROM ranked AS z, LATERAL (
        SELECT r.epoch, r.value FROM raised AS r
        WHERE (r.epoch, r.value) > (z.epoch, z.value) ORDER BY r.epoch, r.value LIMIT 1
    ) AS o
    WHERE z.refused > 0 AND z.by_refused <= $6
)
SELECT epoch, value, holder, caller, refused, noted, requests, first, last, met, parties, zombies, refused_in_all, noted_in_all,
    requests_in_all
FROM ranked
WHERE parties <= $5 OR (refused > 0 AND by_refused <= $6) OR by_token <= $7
   OR (epoch, value) IN (SELECT epoch, value FROM overtakers)
ORDER BY epoch NULLS LAST, value, holder NULLS FIRST

-- name: refusals
-- The refused writes of some tokens, and those without any, in pieces of $5 seconds.
SELECT epoch, value, holder, min(at) AS first, max(at) AS last, count(*) AS count,
    count(*) FILTER (WHERE NOT enforced) AS noted, count(*) FILTER (WHERE plane = 'api') AS requests,
    min(position) AS position,
    CASE WHEN min(reason) = max(reason) THEN min(reason) END AS reason
FROM fencing.entry
WHERE resource = $1 AND position <= $2 AND at >= $3 AND at <= $4
  AND day >= ($3::timestamptz AT TIME ZONE 'UTC')::date - 1
  AND kind = 'rejection'
  AND (value IS NULL OR (epoch, value) IN (SELECT * FROM unnest($6::integer[], $7::bigint[])))
GROUP BY epoch, value, holder, floor(date_part('epoch', at - $3::timestamptz) / $5::float8)

-- name: takeovers
-- By whom each of some tokens took over, by whom it was the first to be overtaken, and who came next; whenever that was. A
-- fence never goes down, so in the order of tokens is in the order of time.
WITH takeovers AS (
    SELECT at, kind, epoch, value, holder, caller, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at,
        lag(epoch) OVER w AS epoch_before, lag(value) OVER w AS value_before, row_number() OVER w AS place
    FROM fencing.entry
    WHERE resource = $1 AND position <= $2 AND kind IN ('raised', 'barrier', 'epoch')
    WINDOW w AS (ORDER BY epoch, value)
), found AS (
    SELECT place FROM takeovers AS t
    WHERE EXISTS (
        SELECT FROM unnest($3::integer[], $4::bigint[]) AS wanted (epoch, value)
        WHERE (t.epoch, t.value) = (wanted.epoch, wanted.value)
           OR (t.epoch, t.value) > (wanted.epoch, wanted.value)
              AND (t.value_before IS NULL OR (t.epoch_before, t.value_before) <= (wanted.epoch, wanted.value))
    )
)
SELECT * FROM takeovers WHERE place IN (SELECT place FROM found UNION ALL SELECT place + 1 FROM found)
ORDER BY place

-- name: ids
-- Return the names of some entries.
SELECT position, id FROM fencing.entry WHERE resource = $1 AND position = ANY ($2::bigint[])

-- name: met
-- Which fences some refused writes met: all that is known of takeovers that are not on record.
SELECT epoch, value, holder, caller, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at
FROM fencing.entry
WHERE resource = $1 AND position = ANY ($2::bigint[]) AND fence_raised_at IS NOT NULL

-- name: leases
-- Return the events of leases of some tokens during a span. An expired lease expired before a gateway looked.
SELECT coalesce((details ->> 'expires_at')::timestamptz, at) AS at, kind, epoch, value, holder, coalesce(details ->> 'of', caller) AS caller,
    (details ->> 'acquired_at')::timestamptz AS granted_at
FROM fencing.entry
WHERE resource = $1 AND position <= $2 AND at >= $3 AND at <= $4 AND day >= ($3::timestamptz AT TIME ZONE 'UTC')::date - 1
  AND kind IN ('lease-granted', 'lease-released', 'lease-expired', 'lease-broken')
  AND (epoch, value) IN (SELECT * FROM unnest($5::integer[], $6::bigint[]))
ORDER BY position

-- name: remarks
-- Return the events that belong to no lane, the newest first, and their number.
SELECT at, kind, id, epoch, value, holder, caller, coalesce((details ->> 'count')::bigint, 1) AS count,
    count(*) OVER () AS in_all
FROM fencing.entry
WHERE resource = $1 AND position <= $2 AND at >= $3 AND at <= $4 AND day >= ($3::timestamptz AT TIME ZONE 'UTC')::date - 1
  AND kind IN ('bypass', 'guard-refused', 'settled')
ORDER BY position DESC LIMIT $5

-- name: counted
-- How many refusals by guards are known by their number alone, in a time. A null resource stands for all. An entry
-- without a resource may be about any of them.
SELECT coalesce(sum((details ->> 'count')::bigint), 0)::bigint AS counted
FROM fencing.entry
WHERE kind = 'guard-refused' AND at >= $1::timestamptz AND at <= coalesce($2::timestamptz, 'infinity')
  AND day >= ($1::timestamptz AT TIME ZONE 'UTC')::date - 1
  AND ($3::text IS NULL OR resource IS NULL OR resource = $3)

-- name: activity
-- How much there was in each piece of $5 seconds.
SELECT floor(date_part('epoch', at - $3::timestamptz) / $5::float8)::integer AS piece,
    count(*) FILTER (WHERE kind = 'rejection') AS refused,
    count(*) FILTER (WHERE kind = 'rejection' AND plane = 'api') AS requests,
    count(*) FILTER (WHERE kind <> 'rejection') AS takeovers
FROM fencing.entry
WHERE resource = $1 AND position <= $2 AND at >= $3 AND at <= $4
  AND day >= ($3::timestamptz AT TIME ZONE 'UTC')::date - 1
  AND kind IN ('rejection', 'raised', 'barrier', 'epoch')
GROUP BY piece ORDER BY piece

-- name: pending
-- Object writes that are under way.
SELECT count(*) AS count, min(signed_at) AS oldest FROM fencing.intent WHERE resource = $1
