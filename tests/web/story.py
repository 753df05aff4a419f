"""Records to look at: a compactor that was paused, a cron job that runs twice, incidents, names that would do harm."""

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from tests.web.stage import Stage

COMPACTION = "s3/reports/2026/compaction"
ORDER = "public.orders/5"


def entry(kind: str, at: datetime, resource: str | None, **columns: Any) -> dict[str, Any]:
    """A row of the intake."""
    return {"kind": kind, "at": at, "resource": resource, "epoch": 0, **columns}


def rejection(
    at: datetime, resource: str, value: int, holder: str, fence: tuple[int, str], **columns: Any
) -> dict[str, Any]:
    """A refused write of ``holder`` with the token ``value``; ``fence``: its token, and who raised it a minute ago."""
    return {
        **entry("rejection", at, resource, value=value, holder=holder),
        "caller": holder.rpartition("-")[0] or holder,
        "reason": "token-stale",
        "enforced": True,
        "plane": "tables",
        "rule": "public.orders",
        "method": "PATCH",
        "target": "/v1/tables/orders?id=eq.5",
        "client": "10.0.4.17",
        "request_id": "9f1c0000000000a1",
        "payload_size": 21,
        "payload_sha256": hashlib.sha256(holder.encode()).hexdigest(),
        "fence_epoch": 0,
        "fence_value": fence[0],
        "fence_holder": fence[1],
        "fence_caller": fence[1].rpartition("-")[0] or fence[1],
        "fence_raised_at": at - timedelta(minutes=1),
        **columns,
    }


def takeover(
    at: datetime, resource: str, value: int, holder: str, over: tuple[int, str], kind: str = "barrier"
) -> dict[str, Any]:
    """``holder`` takes a resource over with the token ``value``, from a holder that had held it for ten minutes."""
    caller, fence_caller = holder.rpartition("-")[0], over[1].rpartition("-")[0]
    met = {"fence_epoch": 0, "fence_value": over[0], "fence_holder": over[1], "fence_caller": fence_caller}
    return {
        **entry(kind, at, resource, value=value, holder=holder, caller=caller, plane="api"),
        **met,
        "fence_raised_at": at - timedelta(minutes=10),
    }


def zombie(at: datetime, resource: str, holder: str, count: int, minutes: float) -> list[dict[str, Any]]:
    """``worker-9`` took over from ``holder`` half an hour ago, and so many late writes of it began ``minutes`` ago."""
    taken, begun = at - timedelta(minutes=30), at - timedelta(minutes=minutes)
    late = [
        rejection(begun + timedelta(seconds=number), resource, 33, holder, (34, "worker-9"), fence_raised_at=taken)
        for number in range(count)
    ]
    return [takeover(taken, resource, 34, "worker-9", (33, holder), kind="raised"), *late]


def tell(stage: Stage, now: datetime) -> None:
    """Put the story on record, as if it had happened during the last hours before ``now``."""
    began = now - timedelta(hours=3)
    told = [takeover(began, COMPACTION, 34, "compactor-b", (33, "compactor-a"))]
    told += [
        rejection(
            began + timedelta(seconds=20 + 7 * index),
            COMPACTION,
            33,
            "compactor-a",
            (34, "compactor-b"),
            plane="objects",
            rule="reports/**",
            method="PUT",
            target=f"/reports/2026/compaction/part-{index:05}.parquet",
            payload_size=8_388_608 + index,
            fence_raised_at=began,
        )
        for index in range(12)
    ]
    cron = now - timedelta(minutes=50)
    told.append(takeover(cron, ORDER, 8, "cron-blue", (7, "cron-green"), kind="raised"))
    told.append(rejection(cron + timedelta(minutes=4), ORDER, 7, "cron-green", (8, "cron-blue"), fence_raised_at=cron))
    told += [
        rejection(
            now - timedelta(minutes=30 - index),
            f"public.stock/{index}",
            2,
            "importer-1",
            (9, "importer-2"),
            enforced=False,
            rule="public.stock",
            target=f"/v1/tables/stock?id=eq.{index}",
        )
        for index in range(4)
    ]
    told.append(entry("lease-expired", now - timedelta(minutes=20), ORDER, value=8, holder="cron-blue", caller="cron"))
    stage.put_on_record(told)
    _count(stage, now)


def _count(stage: Stage, now: datetime) -> None:
    """Writes of the last day, by the minute."""
    stage.sql(
        """INSERT INTO fencing.traffic (gateway, minute, plane, rule, accepted, refused, observed)
        SELECT 'gateway-1', minute, plane, rule, (base * (1.2 + sin(extract(epoch FROM minute) / 9000.0)))::bigint,
               CASE WHEN now - minute BETWEEN '175 minutes' AND '180 minutes' THEN bad ELSE 0 END,
               CASE WHEN rule = 'public.stock' AND now - minute BETWEEN '27 minutes' AND '31 minutes' THEN 1 ELSE 0 END
        FROM (VALUES ($1::timestamptz)) AS at (now),
             generate_series(date_trunc('minute', now) - interval '1 day', now, interval '1 minute') AS minute,
             (VALUES ('tables', 'public.orders', 42, 1), ('objects', 'reports/**', 11, 3),
                     ('tables', 'public.stock', 7, 0)) AS rules (plane, rule, base, bad)""",
        now,
    )


SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
HOSTILE = "<script>document.title='owned'</script>\u202e\"'{{7*7}}"
ACCOUNT = "public.accounts/1"


_WORKER = {"caller": "worker", "fence_caller": "worker"}


class Incident:
    """A resource that ``writer-b`` took over from ``writer-a``, about an hour ago, which had had it for 247 seconds."""

    def __init__(self, stage: Stage, resource: str = ACCOUNT) -> None:
        self.stage, self.resource = stage, resource
        self.begun: datetime = stage.sql("SELECT date_trunc('second', now()) AS now")[0]["now"] - timedelta(hours=1)
        taken = takeover(self.at(247), resource, 34, "writer-b", (33, "writer-a"), kind="raised")
        stage.put_on_record([{**taken, **_WORKER, "fence_raised_at": self.begun}])
        stage.sql(
            "INSERT INTO fencing.fence (resource, epoch, value, holder, caller, raised_at) "
            "VALUES ($1, 0, 34, 'writer-b', 'worker', $2)",
            resource,
            self.at(247),
        )

    def at(self, seconds: float) -> datetime:
        return self.begun + timedelta(seconds=seconds)

    def refused(self, *seconds: float) -> None:
        """Late writes of the first holder."""
        more: dict[str, Any] = {**_WORKER, "fence_raised_at": self.at(247)}
        late = (self.resource, 33, "writer-a", (34, "writer-b"))
        self.stage.put_on_record([rejection(self.at(moment), *late, **more) for moment in seconds])


def late_write(stage: Stage, resource: str = "live/1", holder: str = "late-writer", count: int = 1) -> None:
    """Refused writes that happen now."""
    stage.put_on_record([rejection(datetime.now(UTC), resource, 3, holder, (4, "next-writer"))] * count)
