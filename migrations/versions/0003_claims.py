"""Claims of many resources at once, each with a token of its own.

``claim_all_v1`` stays: a gateway of the revision before goes on calling it while the new ones come up.
"""

from alembic import op

revision = "0003"
down_revision = "0002"

# What claim_v1 does, for a set of different names. The rules are the same, and so is what the locks are for (see 0001):
# look first without a lock, raise, lock FOR SHARE, then judge what the lock has shown. VOLATILE plpgsql, so that each
# statement sees what has been committed while the one before it waited.
#
# The order of locks is that of names, whatever is done to each: whoever holds some of them waits for a later one only.
# So the names are cut into runs, taken one after the other, and within a run one statement locks row by row:
#   - a run that rises inserts, or raises what is there and lower. ON CONFLICT locks exclusively even where its condition
#     does not hold, and takes the newest version whatever the snapshot says: nothing is left to be locked afterwards.
#     Names that carry the token already join the run if they stand between two that rise, which makes it one run nearly
#     always; their other writers have to wait for this one then, as they would for the names beside them.
#   - a run that rests locks FOR SHARE. What is stale always rests: nobody should have to wait for a zombie.
# Mostly there is one run, all of them new or lower, or all of them held, and it is not worked out where to cut. Names that
# are all new are simply inserted, which is quicker yet; should one of them turn out not to be new, the subtransaction
# gives up what it has locked, and they are taken as a run.
#
# A fence never goes down, so a name that rests cannot come to rise while its lock is waited for.
#
# There is a token for each name, or one for all of them.
#
# Only claims that need attention are returned: refused, or with something pending. The others carry the token now.
CLAIM_MANY = """
CREATE FUNCTION fencing.claim_many_v2(
    p_resources text[], p_epochs integer[], p_values bigint[],
    p_holder text, p_caller text, p_strict boolean, p_write_id uuid
) RETURNS TABLE (decision text, fence fencing.fence, pending boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    rising bigint;
    known bigint;
    uniform boolean;
    run record;
    raised text[] := '{}';
    more text[];
BEGIN
    IF cardinality(p_values) = 1 THEN
        p_epochs := array_fill(p_epochs[1], ARRAY[cardinality(p_resources)]);
        p_values := array_fill(p_values[1], ARRAY[cardinality(p_resources)]);
    END IF;
    SELECT count(*) FILTER (WHERE f.epoch IS NULL OR (f.epoch, f.value) < (u.epoch, u.value)), count(f.epoch)
    INTO rising, known
    FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
    LEFT JOIN LATERAL (
        SELECT t.epoch, t.value FROM fencing.fence t WHERE t.resource = u.resource COLLATE "C" OFFSET 0
    ) AS f ON true;
    IF known = 0 THEN
        BEGIN
            INSERT INTO fencing.fence (resource, epoch, value, holder, caller, write_id)
            SELECT u.resource, u.epoch, u.value, p_holder, p_caller, p_write_id
            FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
            ORDER BY u.resource COLLATE "C";
            raised := p_resources;
        EXCEPTION WHEN unique_violation THEN
            NULL;
        END;
    END IF;
    uniform := rising = cardinality(p_resources) OR (rising = 0 AND NOT p_strict);
    FOR run IN
        WITH presented AS (
            SELECT u.resource COLLATE "C" AS resource, u.epoch, u.value,
                f.resource IS NULL OR (f.epoch, f.value) < (u.epoch, u.value) AS rises,
                coalesce((u.epoch, u.value) < (f.epoch, f.value), false) AS stale
            FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
            LEFT JOIN LATERAL (SELECT * FROM fencing.fence t WHERE t.resource = u.resource COLLATE "C" OFFSET 0) AS f
                ON true
        ), sorted AS (
            SELECT p.resource, p.epoch, p.value,
                NOT p.stale AND (p.rises OR p_strict OR coalesce(
                    p.resource > min(p.resource) FILTER (WHERE p.rises) OVER ()
                    AND p.resource < max(p.resource) FILTER (WHERE p.rises) OVER (), false)) AS rises
            FROM presented p
        ), cut AS (
            SELECT s.*, row_number() OVER (ORDER BY s.resource)
                - row_number() OVER (PARTITION BY s.rises ORDER BY s.resource) AS nth
            FROM sorted s
        )
        SELECT rising > 0 AS rises, NULL COLLATE "C" AS first,
            p_resources AS resources, p_epochs AS epochs, p_values AS tokens
        WHERE uniform AND raised = '{}'
        UNION ALL
        SELECT c.rises, min(c.resource), array_agg(c.resource), array_agg(c.epoch), array_agg(c.value)
        FROM cut c WHERE NOT uniform GROUP BY c.rises, c.nth
        ORDER BY first
    LOOP
        IF run.rises THEN
            WITH risen AS (
                INSERT INTO fencing.fence AS f (resource, epoch, value, holder, caller, write_id)
                SELECT u.resource, u.epoch, u.value, p_holder, p_caller, p_write_id
                FROM unnest(run.resources, run.epochs, run.tokens) AS u (resource, epoch, value)
                ORDER BY u.resource COLLATE "C"
                ON CONFLICT ON CONSTRAINT fence_pkey DO UPDATE
                SET epoch = excluded.epoch, value = excluded.value, holder = excluded.holder, caller = excluded.caller,
                    write_id = excluded.write_id, raised_at = clock_timestamp()
                WHERE (f.epoch, f.value) < (excluded.epoch, excluded.value)
                RETURNING f.resource
            )
            SELECT coalesce(array_agg(r.resource), '{}') INTO more FROM risen r;
            raised := raised || more;
            IF p_strict AND cardinality(more) < cardinality(run.resources) THEN
                UPDATE fencing.fence f SET write_id = p_write_id
                FROM unnest(run.resources, run.epochs, run.tokens) AS u (resource, epoch, value)
                WHERE f.resource = u.resource COLLATE "C" AND f.resource <> ALL (more)
                  AND (f.epoch, f.value) = (u.epoch, u.value) AND f.write_id IS NULL
                  AND (f.holder IS NULL OR p_holder IS NULL OR f.holder = p_holder);
            END IF;
        ELSE
            PERFORM FROM fencing.fence f WHERE f.resource = ANY (run.resources) ORDER BY f.resource FOR SHARE;
        END IF;
    END LOOP;
    IF cardinality(raised) = cardinality(p_resources)
        AND NOT EXISTS (SELECT FROM fencing.intent i WHERE i.resource = ANY (p_resources))
    THEN
        RETURN;
    END IF;
    RETURN QUERY
        SELECT judged.decision, judged.fence, judged.pending
        FROM (
            SELECT u.resource, f.fence, CASE
                -- A subquery: hashed, however long the list turns out to be.
                WHEN u.resource COLLATE "C" IN (SELECT m.r COLLATE "C" FROM unnest(raised) AS m (r)) THEN 'raised'
                WHEN (u.epoch, u.value) < ((f.fence).epoch, (f.fence).value) THEN 'token-stale'
                WHEN p_holder <> (f.fence).holder THEN 'token-duplicate'
                WHEN p_strict AND (f.fence).write_id IS DISTINCT FROM p_write_id THEN 'token-used'
                ELSE 'held' END AS decision,
                EXISTS (
                    SELECT FROM fencing.intent i
                    WHERE i.resource = u.resource COLLATE "C" AND (i.epoch, i.value) < (u.epoch, u.value)
                ) AS pending
            FROM unnest(p_resources, p_epochs, p_values) AS u (resource, epoch, value)
            CROSS JOIN LATERAL (
                SELECT r AS fence FROM fencing.fence AS r WHERE r.resource = u.resource COLLATE "C" OFFSET 0
            ) AS f
        ) AS judged
        WHERE judged.pending OR judged.decision NOT IN ('raised', 'held')
        ORDER BY judged.resource COLLATE "C";
END
$function$
"""


def upgrade() -> None:
    op.get_bind().exec_driver_sql(CLAIM_MANY)
