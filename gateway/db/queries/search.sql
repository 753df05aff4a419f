-- name: stretches
-- The stretches of days that may have entries, the oldest first: each partition, up to the day that is being sealed. Of
-- days that had no partition each is one.
SELECT first, least(last, (SELECT day FROM fencing.head)) AS last FROM (
    SELECT first, last FROM fencing.stretches_v1()
    UNION ALL
    SELECT DISTINCT day, day FROM fencing.entry_other
) AS known
WHERE last >= $1 AND first <= (SELECT day FROM fencing.head)
ORDER BY first

-- name: first_position
-- Return where a stretch of days begins; no row if it has no entries.
SELECT position FROM fencing.entry WHERE day >= $1 AND day <= $2 ORDER BY day, position LIMIT 1

-- name: end
-- Return the end of the record.
SELECT position, day FROM fencing.head

-- name: after
-- Return the entries after an entry of that day.
SELECT * FROM fencing.entry WHERE day >= $1 AND position > $2 ORDER BY day, position LIMIT $3

-- name: by_id
-- One entry, if it is shown to who asks.
SELECT * FROM fencing.entry WHERE id = $1 AND ($2::text IS NULL OR caller = $2) LIMIT 1

-- name: takeover
-- Which entry first went beyond a token, before another one.
SELECT * FROM fencing.entry
WHERE kind IN ('raised', 'barrier', 'epoch') AND resource = $1 AND (epoch, value) > ($2::integer, $3::bigint)
  AND position < $4
ORDER BY position LIMIT 1

-- name: page
-- Stretches of days, one after the other, until there is enough.
SELECT entry FROM ({stretches}) AS found LIMIT $3

-- name: stretch
-- The first or last entries of one stretch of days, from one in $1 to one in $2. Whole rows as one column: planning for
-- each column of each stretch would take longer than all the rest.
(SELECT entry FROM fencing.entry WHERE day >= ($1::date[])[{number}] AND day <= ($2::date[])[{number}]{conditions}
ORDER BY position {order} LIMIT $3)

-- name: total
-- How many entries there are from one day to another, no more than $1.
SELECT count(*) AS entries
FROM (SELECT FROM fencing.entry WHERE day BETWEEN $2 AND $3{conditions} LIMIT $1) AS counted

-- name: denials
-- How many requests lacked which grant, by caller, among so many of the newest denials since a time.
SELECT caller, action, "on", sum(denied)::bigint AS entries, max(at) AS last
FROM (
    SELECT caller, details #>> '{missing,action}' AS action, details #>> '{missing,on}' AS "on", at,
           1 + coalesce((details ->> 'also_denied')::bigint, 0) AS denied
    FROM fencing.entry
    WHERE day >= $1 AND reason = 'denied' AND at >= $2 ORDER BY position DESC LIMIT $4
) AS newest
GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3 LIMIT $3

-- name: groups
-- How many entries there are with each value of a field, among so many of the newest.
SELECT value, count(*) AS entries, max(at) AS last
FROM (
    SELECT {field} AS value, at FROM fencing.entry WHERE day >= $1{conditions} ORDER BY position DESC LIMIT $3
) AS newest
GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT $2

-- name: writers
-- How many entries there are of each writer and reason, among so many of the newest. A writer is a caller, and the holder
-- or the program that it names, or else the beginning of its statement. Of a User-Agent the first word is the program.
SELECT caller, writer, reason, count(*) AS entries, max(at) AS last
FROM (
    SELECT caller, reason, at,
           coalesce(
               nullif(holder, ''), nullif(details #>> '{session,application_name}', ''),
               nullif(CASE details ->> 'by' WHEN 'guard' THEN details ->> 'program'
                      ELSE split_part(details ->> 'program', ' ', 1) END, ''),
               details ->> 'statement'
           ) AS writer
    FROM fencing.entry WHERE day >= $1{conditions} ORDER BY position DESC LIMIT $3
) AS newest
GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1, 2, 3 LIMIT $2
