"""A gateway that stops or kills itself at a named step. The knob is in here, not in the product: it is a sink.

Run as ``python -m tests.crash.victim`` it is a nursery: for each line on its standard input, what ``running.config``
takes as JSON, it forks a gateway and prints the process id and the port. A fork costs a hundredth of what importing
everything again would. All of them are killed once its standard input ends.
"""

from __future__ import annotations

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
from gateway.observe.events import Event, RequestFailed, StepReached
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
    trap = Trap()
    victim = Victim(app.build(config(**given), trap), trap)
    os.write(1, f"{os.getpid()} {listener.getsockname()[1]}\n".encode())
    serving.server(victim, grace=1).run(sockets=[listener])


def hatch(given: dict[str, Any]) -> int:
    """Fork a gateway; its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.close(0)
        live(given)
    except BaseException:  # noqa: BLE001 - whatever it is must not unwind into the nursery's own code
        traceback.print_exc()
    finally:
        os._exit(1)


def main() -> None:
    """Hatch until the standard input ends, then leave nobody behind."""
    # The processes have to be reaped before their ids are used again, so each is waited for at the end only.
    pids = [hatch(json.loads(line)) for line in sys.stdin]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
