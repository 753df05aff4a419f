"""Notices to the service manager that started this process, as systemd's sd_notify(3) defines them.

A notice is a datagram to the socket in ``NOTIFY_SOCKET``. A notice that cannot be sent is dropped: the manager then
knows less, and the gateway serves as before.
"""

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Self

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""The variables of a service manager. Nothing that this process starts may speak for it, so they are taken away."""
_SENDING = 0.2
"""Seconds that a manager may take to make room for a notice."""


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """The service manager of this process. ``address`` is None without one, and then all notices do nothing."""

    address: str | None = None
    watchdog: float | None = None
    """Seconds after which the manager takes a process without a sign of life for dead; None if it does not watch."""

    @classmethod
    def of(cls, environment: Mapping[str, str], process: int | None = None) -> Self:
        """Return the manager that the variables name. A wrong value counts as absent."""
        named = environment.get("NOTIFY_SOCKET", "")
        if not named.startswith(("/", "@")) or len(named) < 2:
            return cls()
        watched = environment.get("WATCHDOG_PID", "") in ("", str(process or os.getpid()))
        microseconds = environment.get("WATCHDOG_USEC", "")
        is_number = microseconds.isascii() and microseconds.isdigit() and int(microseconds) > 0
        # In Linux, a leading zero byte marks an address outside the file system.
        address = "\0" + named[1:] if named.startswith("@") else named
        return cls(address, int(microseconds) / 1e6 if watched and is_number else None)

    def ready(self, status: str) -> None:
        """Say that the service takes requests, and describe it."""
        self._send("READY=1", f"STATUS={status}")

    def stopping(self, within: float) -> None:
        """Say that the service ends its requests, for which it may take ``within`` seconds."""
        self._send("STOPPING=1", "STATUS=Ending its requests", f"EXTEND_TIMEOUT_USEC={int(within * 1e6)}")

    def reload_begins(self) -> None:
        """Say that the service reads its configuration again. ``ready`` ends this, whatever came of it."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now}", "STATUS=Reading its configuration again")

    @asynccontextmanager
    async def reloading(self, status: str) -> AsyncIterator[None]:
        """Say that the service reads its configuration again while the block runs, and then that it is ready."""
        self.reload_begins()
        try:
            yield
        finally:
            self.ready(status)

    async def watch(self) -> None:
        """Give signs of life from the event loop, as often as the manager needs them."""
        while self.address is not None and self.watchdog is not None:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog / 3)

    def _send(self, *lines: str) -> None:
        if self.address is None:
            return
        with suppress(OSError, ValueError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.settimeout(_SENDING)
            sender.sendto("\n".join(lines).encode(), self.address)
