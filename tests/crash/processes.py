"""Gateways as processes of their own that can be paused, resumed and killed, or that do so themselves at a named step.

The switch for that is in here, not in the product: it is a sink. Run as ``python -m tests.crash.processes``, this is
the parent of gateways. Each line on its standard input is one JSON document: the arguments of ``running.config``, and
the bucket that the gateway knows. For each line the parent forks a gateway, and prints its process id and port. A fork
costs a hundredth of a new import. The parent kills all of them once its standard input ends.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

import psutil
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import app, serving
from gateway.objects.store import probe
from gateway.objects.store.bucket_profile import Profile
from gateway.objects.store.operations import Upstream
from gateway.observe.events import Event, RequestFailed, StepReached
from gateway.tables.execute.batches import Batches
from tests import ROOT
from tests.running import config

_PATIENCE = 60.0
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway process."""

    pid: int
    port: int

    def trap(self, step: str, nth: int, how: str) -> None:
        """Stop or kill it at the ``nth`` time from now on that it comes by this step."""
        self._control(f"set?{urlencode({'step': step, 'nth': nth, 'how': how})}")

    def count(self) -> None:
        """Forget the steps it has passed."""
        self._control("set")

    def steps(self) -> list[str]:
        """The steps it has passed since it was last trapped."""
        return list(self._control("steps"))

    def status(self) -> str:
        """As psutil names it; the dead stay zombies until the nursery ends."""
        return str(psutil.Process(self.pid).status())

    def wait_down(self, how: str, unless: Callable[[], bool] = lambda: False) -> None:
        """Wait until it has stopped or died. Fails once ``unless`` says that this will not happen any more."""
        wanted = (psutil.STATUS_STOPPED,) if how == "stop" else _DEAD
        process, deadline = psutil.Process(self.pid), time.monotonic() + _PATIENCE
        while (status := process.status()) not in wanted:
            assert not unless(), f"the write was over before the process went down: {status}"
            assert time.monotonic() < deadline, f"still {status}"
            time.sleep(0.002)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.wait_down("kill")

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.wait_down("stop")

    def _control(self, path: str) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE)
        try:
            connection.request("GET", f"/_/{path}")
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()


class Nursery:
    """Makes gateways; a context manager that leaves none behind."""

    def __init__(self, given: dict[str, Any], environment: Mapping[str, str] | None = None) -> None:
        """``given``: the arguments of ``tests.running.config``. ``environment``: more of it, for all gateways."""
        self._given = given
        self._ordering = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.processes"],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hatch(self, known: str | None = None, **sections: Any) -> Gateway:
        """A gateway that listens. ``known``: a bucket that has been examined for it, as it would do itself.

        ``sections`` replace those that all others have.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"given": {**self._given, **sections}, "known": known}
        with self._ordering:
            print(json.dumps(order), file=self._process.stdin, flush=True)
            pid, port = map(int, self._process.stdout.readline().split())
        return Gateway(pid, port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(_PATIENCE)


class Victims:
    """Gateways to be mistreated. One that comes out of it alive is used again, and one in reserve is always made."""

    def __init__(self, hatch: Callable[[], Gateway], *, ahead: bool = True) -> None:
        """``ahead`` False: none is made in reserve, because they come out of it alive."""
        self._hatch, self._ahead = hatch, ahead
        self._hatching = ThreadPoolExecutor(max_workers=1)
        self._idle: list[Gateway] = []
        self._taken: list[Gateway] = []
        self._reserve = self._hatching.submit(hatch) if ahead else None

    def take(self) -> Gateway:
        if self._idle:
            self._taken.append(self._idle.pop())
        else:
            # The next one is made in any case: that one cannot be made must not fail every case to come.
            taken = self._reserve or self._hatching.submit(self._hatch)
            self._reserve = self._hatching.submit(self._hatch) if self._ahead else None
            self._taken.append(taken.result())
        return self._taken[-1]

    def awake(self) -> list[Gateway]:
        """Return the gateways that can answer."""
        ready = [*self._idle, *self._taken]
        return [one for one in ready if one.status() not in (*_DEAD, psutil.STATUS_STOPPED)]

    def settle(self) -> None:
        """Return when none is being made."""
        if self._reserve is not None:
            self._reserve.result()

    def give_back(self, victim: Gateway, *, sound: bool) -> None:
        """Return a gateway to the idle ones. ``sound`` False: its state is unknown, so it is ended."""
        self._taken.remove(victim)
        status = victim.status()
        if sound and status not in (*_DEAD, psutil.STATUS_STOPPED):
            self._idle.append(victim)
        elif status not in _DEAD:
            victim.kill()

    def close(self) -> None:
        self._hatching.shutdown()


# In the process of the parent, and in those of its gateways ----------------------------------------


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
    Batches.expected = lambda *_: False  # type: ignore[method-assign]
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
