"""A store that keeps what it was asked as it came over the wire: how a request is signed shows only there."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote

from gateway.objects.store.probe import PREFIX
from tests.doubles.s3 import S3Double
from tests.doubles.s3.signature import TIMESTAMP
from tests.doubles.s3.wire import Receive, Scope, Send
from tests.objects.object_gateway import Stage


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: the path decoded, the parameters and the headers (lower-case names) as they came."""

    method: str
    path: str
    parameters: dict[str, str]
    headers: dict[str, str]

    @property
    def lifetime(self) -> int | None:
        """Seconds the signature in the query is good for; None where it is in the headers."""
        if "authorization" in self.headers:
            assert "X-Amz-Signature" not in self.parameters
            return None
        return int(self.parameters["X-Amz-Expires"])

    @property
    def signed_at(self) -> datetime:
        """The time the signature carries, in whole seconds."""
        written = self.parameters.get("X-Amz-Date") or self.headers["x-amz-date"]
        return datetime.strptime(written, TIMESTAMP).replace(tzinfo=UTC)


class RecordingDouble(S3Double):
    """The double, with a log of what came."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"buckets": ["bucket", "other"], **settings})
        self.asked: list[Asked] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        parameters = dict(parse_qsl(scope["query_string"].decode("ascii"), keep_blank_values=True))
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self.asked.append(Asked(scope["method"], unquote(scope["raw_path"].decode("ascii")), parameters, headers))
        await super().__call__(scope, receive, send)

    def changing(self, since: int = 0) -> list[Asked]:
        """Return the requests from the ``since``th on that are no reads, without those of the probe."""
        asked = (each for each in self.asked[since:] if each.method not in ("GET", "HEAD"))
        return [each for each in asked if f"/{PREFIX}" not in each.path]


def recorded(stage: Stage) -> RecordingDouble:
    """The store of a stage whose store records."""
    assert isinstance(stage.double, RecordingDouble)
    return stage.double
