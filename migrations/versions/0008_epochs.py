"""New epochs: how a fence is brought beyond tokens that nobody should have been able to show. And what proves the token
of a multipart upload, which is asked about again with each of its parts.

Gateways of the revision before go on opening uploads: what they leave out is null.
"""

from alembic import op

revision = "0008"
down_revision = "0007"

UPLOADS = "ALTER TABLE fencing.upload ADD COLUMN sequencer text"

# Raise the fence to the beginning of its next epoch, if it carries exactly the expected token. `outcome`: done; mismatch
# (nothing has happened, `fence` is the one there is); exhausted, where there is no next epoch.
#
# The row of the lock comes first, as with everybody who works on a lock: no lease of the epoch before is granted
# meanwhile, and what is granted afterwards is above. Leases with lower tokens end as if they were broken: what their
# holders still write is refused, but writers that cannot be fenced get the delay.
BUMP_EPOCH = """
CREATE FUNCTION fencing.bump_epoch_v1(
    p_resource text, p_epoch integer, p_value bigint, p_caller text, p_reason text,
    OUT outcome text, OUT fence fencing.fence, OUT ended integer
) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    claimed record;
    lease fencing.lease;
BEGIN
    ended := 0;
    outcome := 'mismatch';
    SELECT * INTO fence FROM fencing.fence f WHERE f.resource = p_resource;
    IF NOT FOUND OR (fence.epoch, fence.value) <> (p_epoch, p_value) THEN
        RETURN;
    END IF;
    INSERT INTO fencing.lock (resource) VALUES (p_resource) ON CONFLICT DO NOTHING;
    PERFORM FROM fencing.lock l WHERE l.resource = p_resource FOR UPDATE;
    SELECT * INTO STRICT fence FROM fencing.fence f WHERE f.resource = p_resource FOR UPDATE;
    IF (fence.epoch, fence.value) <> (p_epoch, p_value) THEN
        RETURN;
    ELSIF fence.epoch = 2147483647 THEN
        outcome := 'exhausted';
        RETURN;
    END IF;
    outcome := 'done';
    claimed := fencing.claim_v1(p_resource, fence.epoch + 1, 0, NULL, p_caller, false, NULL);
    fence := claimed.fence;
    PERFORM fencing.lapse_v1(p_resource);
    FOR lease IN
        DELETE FROM fencing.lease l WHERE l.resource = p_resource AND (l.epoch, l.value) < (fence.epoch, fence.value)
        RETURNING l.*
    LOOP
        ended := ended + 1;
        UPDATE fencing.lock l
        SET delayed_until = greatest(l.delayed_until, clock_timestamp() + make_interval(secs => lease.delay))
        WHERE l.resource = p_resource AND lease.delay > 0 AND lease.confirmed;
        INSERT INTO fencing.event (kind, resource, caller, holder, epoch, value, details)
        VALUES ('broken', p_resource, p_caller, lease.holder, lease.epoch, lease.value, jsonb_build_object(
            'reason', p_reason, 'of', lease.caller, 'mode', lease.mode, 'acquired_at', lease.acquired_at));
    END LOOP;
    INSERT INTO fencing.event (kind, resource, caller, epoch, value, details)
    VALUES ('epoch', p_resource, p_caller, fence.epoch, fence.value, jsonb_build_object(
        'reason', p_reason, 'before', jsonb_build_object('epoch', p_epoch, 'value', p_value), 'leases_ended', ended));
    PERFORM fencing.hand_over_v1(p_resource);
END
$function$
"""


def upgrade() -> None:
    for statement in (UPLOADS, BUMP_EPOCH):
        op.get_bind().exec_driver_sql(statement)
