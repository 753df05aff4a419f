"""Gateways as processes of their own that can be paused, resumed and killed."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import urlencode

import psutil

from tests import ROOT

_PATIENCE = 60.0
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

    def __init__(self, given: dict[str, Any]) -> None:
        """``given``: the arguments of ``tests.running.config``."""
        self._given = given
        self._ordering = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.victim"],
            cwd=ROOT,
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
