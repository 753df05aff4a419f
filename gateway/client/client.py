"""The client: where the gateway is, who the program is there, and the locks it asks for."""

import math
import os
import re
import socket
import ssl
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import PurePath
from secrets import token_hex
from types import TracebackType
from typing import Self

import httpx

from gateway.client import libpq
from gateway.client.api import Api
from gateway.client.hold import State
from gateway.client.leases import Leases
from gateway.client.lock import Lock, OnLoss
from gateway.client.postgres import DatabaseLeases
from gateway.client.s3 import Certificate, Endpoint
from gateway.client.source import Clock, Mode, Source, now
from gateway.errors import ResourceMalformed
from gateway.fencing.headers import is_holder
from gateway.fencing.resource import canonical

LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
"""A lock that waits in a queue has a connection of its own, and must not keep others from being renewed."""


class FencedClient:
    """One gateway, for asyncio. Make one in each event loop, and close it: ``async with``, or ``aclose``.

    ``url``: the gateway's. A connection string of libpq in its place means a database without a gateway, for writers of
    guarded tables (docs/sdk.md). Then only ``holder`` and ``clock`` count of the rest.

    ``api_key`` is for locks, tables and the API; ``access_key_id`` and ``secret_access_key`` are for S3. ``holder``:
    the beginning of this program's holder names, by which others see its locks. By default it has the program, the
    host and the process id: ``billing.py@host-7:4711``. ``authority``: the path of a CA bundle. ``certificate``: the
    path of a client certificate with its key, or one path for each. It may prove the caller instead of an ``api_key``.
    ``timeout``: seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        access_key_id: str | None = None,
        secret_access_key: str | None = None,
        holder: str | None = None,
        region: str = "us-east-1",
        authority: str | None = None,
        certificate: Certificate | None = None,
        timeout: float = 30.0,
        clock: Clock = now,
    ) -> None:
        self._database = DatabaseLeases(url, clock=clock) if libpq.is_connection_string(url) else None
        address = "" if self._database else _address(url)
        self.url = address
        self.holder = _name(holder or program_name(sys.orig_argv))
        self._trusted = partial(trusted, authority, certificate)
        self._timeout = timeout
        self._open: httpx.AsyncClient | None = None
        self._process = os.getpid()
        self._sources: dict[int, Source] = {}
        self._api = Api(self._session, address, api_key)
        self._endpoint = Endpoint(address, access_key_id, secret_access_key, region, authority, certificate)
        self._clock = clock
        self._leases = Leases(self._api, clock)

    def lock(
        self,
        resource: str,
        *,
        source: Source | None = None,
        ttl: float = 30.0,
        wait: float | None = None,
        mode: Mode = "exclusive",
        barrier: bool = True,
        on_loss: OnLoss = "cancel",
        holder: str | None = None,
        on_lost: Callable[[], None] | None = None,
    ) -> Lock:
        """Return a lock to be entered: ``async with client.lock("order/5") as lock``.

        ``source``: the lock service, by default the gateway's own. It is closed with the client, and needs a gateway.
        ``ttl``: seconds that the lock outlives a holder that has died; it is renewed after a third of them.
        ``wait``: seconds to wait for it; None for ever, 0 not at all.
        ``mode``: "exclusive", or "shared" with others that share it.
        ``barrier``: raise the fence before the block begins, so that what is read in it stays true.
        ``on_loss``: "cancel" the block when the lock is lost, and raise ``LockLost`` out of it; or only "tell".
        ``holder``: the whole name, instead of a unique one. Two locks with one name share one hold.
        ``on_lost``: called when the lock is lost, in the thread that finds out; it must not block.

        Entering it raises ``NotAcquired``, ``Unavailable``, ``IssuerWentBackwards``, ``Implausible`` or ``Refused``.
        """
        try:
            canonical(resource)
        except ResourceMalformed as error:
            raise ValueError(f"{error.message} {error.advice}") from None
        if not 0 < ttl < math.inf or (wait is not None and not wait >= 0):
            raise ValueError("ttl must be a number of seconds above 0, wait one from 0 on, or None.")
        if source is not None:
            _ = self._api.url  # a database alone cannot read the epoch of a fence
            self._sources[id(source)] = source
        # A unique name, in this process as well: for the lock service, one name is one holder.
        name = _name(holder) if holder is not None else f"{self.holder[:180]}-{token_hex(6)}"
        state = State(self._api, self._endpoint, self._clock, resource, name, ttl, wait, mode, barrier)
        return Lock(state, source or self._database or self._leases, on_loss, on_lost)

    async def aclose(self) -> None:
        """Close connections, and those of the sources that were used. Locks should have been left before."""
        sources, self._sources = self._sources, {}
        for source in sources.values():
            await source.aclose()
        if self._database is not None:
            await self._database.aclose()
        session, self._open = self._open, None
        if session is not None:
            await session.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _session(self) -> httpx.AsyncClient:
        if self._open is None or self._process != os.getpid():
            # A fork copies the parent's connections: each process would read the other's answers.
            self._process = os.getpid()
            self._open = httpx.AsyncClient(timeout=self._timeout, limits=LIMITS, verify=self._trusted())
        return self._open


def _address(url: str) -> str:
    """Return the address of a gateway. Raise ValueError if it is none."""
    address = url.rstrip("/")
    if httpx.URL(address).scheme not in ("http", "https") or not httpx.URL(address).host:
        # Other addresses, such as SQLAlchemy's of a database, have passwords.
        shown = f"{url.partition(':')[0]}:…" if "@" in url or "=" in url else url
        raise ValueError(
            f"{shown!r} is not an address such as https://gateway.example.com or postgresql://host/database"
        )
    return address


def trusted(authority: str | None, certificate: Certificate | None = None) -> ssl.SSLContext | bool:
    """Return whom a session trusts, and what it shows of itself, as httpx takes it."""
    if authority is None and certificate is None:
        return True
    context = ssl.create_default_context(cafile=authority)
    if certificate is not None:
        context.load_cert_chain(*((certificate,) if isinstance(certificate, str) else certificate))
    return context


_INTERPRETER = re.compile(r"(python|pypy|node|ruby|perl|java|bash|dash|sh)[0-9.]*")


def program_name(command: Sequence[str]) -> str:
    """Return the name of a program that this process runs or is: ``billing.py@host-7:4711``. ``command``: its line."""
    first, *others = (*command, "")
    name = PurePath(first).name
    if _INTERPRETER.fullmatch(name):
        script = others[1] if others[0] in ("-m", "-jar") else others[0]
        name = name if script.startswith("-") else PurePath(script).name or name
    host = socket.gethostname()
    return f"{_readable(name)[:60] or 'program'}@{_readable(host)[:100]}:{os.getpid()}"


def _readable(name: str) -> str:
    return re.sub(r"[^!-~]", "-", name)


def _name(holder: str) -> str:
    if not is_holder(holder):
        raise ValueError("A holder's name must be 1 to 200 printable ASCII characters.")
    return holder
