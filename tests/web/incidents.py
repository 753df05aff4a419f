"""The content of the timeline's pages: small incidents, and names that would do harm without an escape."""

from datetime import datetime, timedelta
from typing import Any, Literal

from tests.web.stage import Stage

SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")
HOSTILE = "<script>document.title='owned'</script>\u202e\"'{{7*7}}"
ACCOUNT = "public.accounts/1"


class Incident:
    """A resource that ``writer-b`` took over from ``writer-a``, about an hour ago, which had had it for 247 seconds."""

    def __init__(
        self, stage: Stage, resource: str = ACCOUNT, first: str = "writer-a", second: str = "writer-b"
    ) -> None:
        self.stage, self.resource, self.first, self.second = stage, resource, first, second
        self.begun: datetime = stage.sql("SELECT date_trunc('second', now()) AS now")[0]["now"] - timedelta(hours=1)
        taken = self.entry("raised", 247, 34, second, over=(33, first, 0))
        stage.put_on_record([taken])
        stage.sql(
            "INSERT INTO fencing.fence (resource, epoch, value, holder, caller, raised_at) "
            "VALUES ($1, 0, 34, $2, $3, $4)",
            resource,
            second,
            "worker",
            self.at(247),
        )

    def at(self, seconds: float) -> datetime:
        return self.begun + timedelta(seconds=seconds)

    def entry(
        self,
        kind: str,
        seconds: float,
        value: int,
        holder: str,
        over: tuple[int, str, float] | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        met = {}
        if over is not None:
            token, other, since = over
            met = {
                "fence_epoch": 0,
                "fence_value": token,
                "fence_holder": other,
                "fence_caller": "worker",
                "fence_raised_at": self.at(since),
            }
        acted = {"resource": self.resource, "epoch": 0, "value": value, "holder": holder, "caller": "worker"}
        return {"kind": kind, "at": self.at(seconds), **acted, **met, **more}

    def refused(self, *seconds: float, enforced: bool = True) -> None:
        """Late writes of the first holder."""
        request = {"method": "PATCH", "target": "/v1/tables/accounts?id=eq.1", "client": "10.0.0.7", "request_id": "r"}
        self.stage.put_on_record(
            [
                self.entry(
                    "rejection",
                    moment,
                    33,
                    self.first,
                    (34, self.second, 247),
                    reason="token-stale",
                    enforced=enforced,
                    **request,
                )
                for moment in seconds
            ]
        )


def late_write(stage: Stage, resource: str = "live/1", holder: str = "late-writer", count: int = 1) -> None:
    """Refused writes that happen now."""
    entry = {
        "kind": "rejection",
        "resource": resource,
        "reason": "token-stale",
        "enforced": True,
        "epoch": 0,
        "value": 3,
        "holder": holder,
        "caller": "worker",
        "method": "PUT",
        "target": "/reports/1",
        "client": "10.0.0.7",
        "request_id": "r",
        "fence_epoch": 0,
        "fence_value": 4,
        "fence_holder": "next-writer",
        "fence_caller": "worker",
    }
    stage.put_on_record([entry] * count)
