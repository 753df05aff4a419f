"""A gateway that stops or kills itself at a named step. The switch is in here, not in the product: it is a sink.

Run as ``python -m tests.crash.victim``, it is the parent of gateways. Each line on its standard input is one JSON
document: the arguments of ``running.config``, and the bucket that the gateway knows. For each line the parent forks a
gateway, and prints its process id and port. A fork costs a hundredth of a new import. The parent kills all of them
once its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import traceback
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import app, serving
from gateway.objects.probe import probe
from gateway.objects.probe.bucket_profile import Profile
from gateway.objects.store.operations import Upstream
from gateway.observe.events import Event, RequestFailed, StepReached
from gateway.tables.execute.batches import Acting, Raises
from tests.running import config

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Trap:
    """The sink: counts the steps, and takes the process down at the one it is set to."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self._wanted: tuple[str, int] | None = None
        self._signal = signal.SIGKILL

    def set(self, step: str = "", nth: str = "1", how: str = "kill") -> None:
        """Start counting again; ``step`` empty: only count."""
        self.steps.clear()
        self._wanted, self._signal = (step, int(nth)), _SIGNALS[how]

    def __call__(self, event: Event) -> None:
        if isinstance(event, RequestFailed):
            traceback.print_exception(event.error)
        if not isinstance(event, StepReached):
            return
        self.steps.append(event.name)
        if (event.name, self.steps.count(event.name)) == self._wanted:
            os.kill(os.getpid(), self._signal)


class Victim:
    """The gateway, with ``/_/set?step=…&nth=…&how=…`` and ``/_/steps`` in front of it."""

    def __init__(self, gateway: ASGIApp, trap: Trap) -> None:
        self._gateway, self._trap = gateway, trap

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/_/"):
            await self._gateway(scope, receive, send)
            return
        if scope["path"] == "/_/set":
            self._trap.set(**dict(parse_qsl(scope["query_string"].decode())))
        body = json.dumps(self._trap.steps).encode()
        headers = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def live(given: dict[str, Any]) -> None:
    """Be a gateway until killed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    # Or the steps of a write would depend on the writes before it.
    Raises.expected = lambda *_: False  # type: ignore[method-assign]
    Acting.expected = lambda *_: False  # type: ignore[method-assign]
    trap = Trap()
    victim = Victim(app.build(config(**given), trap), trap)
    os.write(1, f"{os.getpid()} {listener.getsockname()[1]}\n".encode())
    serving.server(victim, grace=1).run(sockets=[listener])


class Parent:
    """The process that gateways are forked from: they share the costly parts that are the same for all."""

    def __init__(self) -> None:
        self.pids: list[int] = []
        self._profiles: dict[str, Profile] = {}

    def hatch(self, given: dict[str, Any], known: str | None) -> None:
        """Fork a gateway. ``known``: the bucket that it need not examine, because it has been here."""
        if not self.pids:
            self._prepare(given)
        if known is not None and known not in self._profiles:
            self._profiles[known] = asyncio.run(_examined(given, known))
        if pid := os.fork():
            self.pids.append(pid)
            return
        try:
            os.close(0)
            if known is not None:
                _answer_with(self._profiles[known])
            live(given)
        except BaseException:  # noqa: BLE001 - whatever it is must not unwind into the code of the parent
            traceback.print_exc()
        finally:
            os._exit(1)

    def _prepare(self, given: dict[str, Any]) -> None:
        """Build a gateway that no test gets, so that each fork inherits the imports and first-time results."""
        app.build(config(**given), lambda _: None)
        # The memory that the gateways share stays shared, and the first collection of each does not copy it.
        serving.collect_rarely()


async def _examined(given: dict[str, Any], bucket: str) -> Profile:
    """Return the profile that a gateway finds out before its first write by 150 requests. It is always the same."""
    settings = config(**given)
    assert settings.s3 is not None
    async with Upstream(settings.s3, lambda _: None) as upstream:
        return await probe.probe(upstream, bucket)


def _answer_with(profile: Profile) -> None:
    """From here on an examination ends at once, with this."""

    async def examined(upstream: Upstream, bucket: str) -> Profile:
        return profile

    probe.probe = examined


def main() -> None:
    """Hatch until the standard input ends, then leave no process behind."""
    parent = Parent()
    for line in sys.stdin:
        parent.hatch(**json.loads(line))
    # The processes have to be reaped before their ids are used again, so each is waited for at the end only.
    for pid in parent.pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
