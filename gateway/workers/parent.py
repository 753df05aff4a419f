"""The parent: it accepts connections and hands each to a worker, replaces workers that die, and stops them all.

It serves no request itself. It keeps all that must survive a worker: the configuration in force, the counts of dead
workers, and connections that no worker has taken yet.
"""

import asyncio
import math
import os
import pickle
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.background import grown, wait_until
from gateway.config import Config
from gateway.errors import ConfigurationError
from gateway.observe.events import Observe, ReloadFailed, WorkerEnded
from gateway.observe.gauges import Counted, Gathered, Values, added
from gateway.service_manager import ServiceManager
from gateway.workers.link import TAKEN, Channel, NoAnswer, Report

MOST = 128
KILLED_AFTER = 5.0
"""Seconds that a worker gets beyond the time for its requests, until it is killed."""
FOLLOWS_WITHIN = 15.0
"""Seconds in which a worker must have followed to a configuration."""
REPORTED_WITHIN = 1.0
"""Seconds for which a scrape waits for a worker. After that, its last report counts."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 30.0
_STABLE = 60.0
"""Seconds after which the death of a worker is not taken for one more of a series."""
_AT_ONCE = 64
"""Connections that may be on their way to one worker. Others wait in the kernel."""
_NO_FILES_LEFT = 1.0
_NOTICED = 5.0
"""Seconds beyond all others that the service manager leaves this process, until it kills it."""


def number_of(workers: str) -> int:
    """Return the number of workers that ``--workers`` asks for. Raises ``ConfigurationError``."""
    if workers == "auto":
        return min(cores(), MOST)
    if not (workers.isascii() and workers.isdigit() and 1 <= int(workers) <= MOST):
        raise ConfigurationError(f"--workers: must be a number from 1 to {MOST}, or auto", advice="")
    return int(workers)


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Return the number of cores that this process may use: those of its affinity, and of its share in a container."""
    allowed = len(os.sched_getaffinity(0))
    try:
        time, period = quota.read_text().split()
        return max(1, min(allowed, math.ceil(int(time) / int(period))))
    except (OSError, ValueError):  # none is set: it says max
        return allowed


@dataclass(eq=False)
class Worker:
    """A worker, as the parent sees it. ``config`` is the one that it serves with."""

    number: int
    config: Config
    connections: socket.socket
    process: asyncio.subprocess.Process
    channel: Channel = field(init=False)
    ready: bool = False
    report: Report | None = None
    handed: int = 0
    """Connections handed to it since its last report."""
    untaken: deque[socket.socket] = field(default_factory=deque)
    """Connections that it has not taken yet, the oldest first."""
    limit: asyncio.TimerHandle | None = None
    """Ends it, if its next step of a reload takes too long."""

    @property
    def load(self) -> tuple[int, int]:
        """Return what makes another worker the better one: connections that it does not take, and open ones."""
        return len(self.untaken), self.handed + (self.report.connections if self.report else 0)

    def expect_nothing(self) -> None:
        """Let it take its time: it does not reload."""
        if self.limit is not None:
            self.limit.cancel()


class Parent:
    """Runs ``count`` workers, each of which gets ``origin`` and the configuration in force."""

    def __init__(
        self,
        origin: object,
        config: Config,
        listener: socket.socket,
        *,
        count: int,
        observe: Observe,
        manager: ServiceManager,
        status: str,
    ) -> None:
        """``status`` describes the gateway to the service manager."""
        self._origin, self._config, self._listener, self._observe = origin, config, listener, observe
        self._count, self._grace, self._checks_within = count, config.server.drain, config.limits.reload_timeout
        self._manager, self._status = manager, status
        self._turn = asyncio.Lock()
        self._reloads: Worker | None = None
        """The worker whose turn it is to reload."""
        self._following: list[asyncio.Task[None]] = []
        self._workers: list[Worker] = []
        self._past: dict[str, Values] = {}
        self._counted: Mapping[str | None, Counted] | None = None
        self._waiting: deque[socket.socket] = deque()
        self._accepts = self._has_served = False
        self._code = 0

    async def run(self) -> int:
        """Run until a signal. Return the exit code: not 0 if no worker could begin to serve."""
        self._stopping = asyncio.Event()
        self._listener.setblocking(False)  # noqa: FBT003 - the signature of the standard library
        # Accepted connections inherit it. Without it answers wait for an ACK.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._heeding_signals():
            async with asyncio.TaskGroup() as self._tasks:
                for number in range(1, self._count + 1):
                    self._tasks.create_task(self._keep(number))
                watching = self._tasks.create_task(self._manager.watch())
                await self._stopping.wait()
                self._manager.stopping(self._grace + KILLED_AFTER + _NOTICED)
                self._pause_accepting()
                self._listener.close()
                while self._waiting:
                    self._waiting.popleft().close()
                stopped = self._tasks.create_task(self._stop())
                stopped.add_done_callback(lambda _: watching.cancel())
        return self._code

    async def _keep(self, number: int) -> None:
        """Keep one worker running. Replace it each time it ends, after a pause that grows."""
        loop, pause = asyncio.get_running_loop(), 0.0
        while not self._stopping.is_set():
            began = loop.time()
            worker, code = await self._run_worker(number)
            if self._stopping.is_set():
                return
            if not self._has_served and code > 0:
                # It has said why. Others would fail the same way.
                self._code = self._code or code
                self._stopping.set()
                return
            pause = grown(0.0 if loop.time() - began > _STABLE else pause, _FIRST_PAUSE, _LONGEST_PAUSE)
            self._observe(WorkerEnded(number, worker.process.pid, code, pause))
            await wait_until(self._stopping, pause)

    async def _run_worker(self, number: int) -> tuple[Worker, int]:
        talk, its_talk = socket.socketpair()
        connections, its_connections = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its_talk, its_connections:
            config = self._config
            process = await self._start(config, number, its_talk.fileno(), its_connections.fileno())
        connections.setblocking(False)  # noqa: FBT003 - the signature of the standard library
        worker = Worker(number, config, connections, process)
        worker.channel = Channel(talk, lambda name, value: self._answer(worker, name, value))
        loop = asyncio.get_running_loop()
        self._workers.append(worker)
        loop.add_reader(connections, self._taken, worker)
        talking = self._tasks.create_task(worker.channel.run())
        if self._stopping.is_set():
            self._signal(worker, signal.SIGTERM)
        code = await process.wait()
        await talking  # its last words
        self._ended(worker)
        return worker, code

    async def _start(self, config: Config, number: int, *ends: int) -> asyncio.subprocess.Process:
        command = (sys.executable, "-m", "gateway", "worker", *map(str, (number, self._count, *ends)))
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, pass_fds=ends)
        assert process.stdin is not None
        with suppress(OSError):  # it has ended already
            # Not as arguments or in its environment, where others could read the secrets.
            process.stdin.write(pickle.dumps((self._origin, config)))
            process.stdin.close()
            await process.stdin.wait_closed()
        return process

    def _ended(self, worker: Worker) -> None:
        """Keep what must survive a worker."""
        self._workers.remove(worker)
        worker.expect_nothing()
        self._hand_back(worker)
        asyncio.get_running_loop().remove_reader(worker.connections)
        worker.connections.close()
        if worker.report is not None:
            self._past = added(self._past, worker.report.snapshot.counts)
        if self._reloads is worker:
            self._end_turn()
        elif self._reloads is None:  # it may have had the signal, and not begun
            self._say_ready()

    def _hand_back(self, worker: Worker) -> None:
        """Hand connections that a worker does not take any more to another one."""
        self._taken(worker)
        worker.ready = False
        untaken, worker.untaken = worker.untaken, deque()
        for connection in untaken:
            self._hand(connection)

    # Connections

    def _resume_accepting(self) -> None:
        while self._waiting and self._best() is not None:
            self._hand(self._waiting.popleft())
        if not self._accepts and not self._stopping.is_set() and self._best() is not None:
            self._accepts = True
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _pause_accepting(self) -> None:
        if self._accepts:
            self._accepts = False
            asyncio.get_running_loop().remove_reader(self._listener)

    def _best(self) -> Worker | None:
        """Return the worker for the next connection. None if it has to wait."""
        ready = [worker for worker in self._workers if worker.ready and len(worker.untaken) < _AT_ONCE]
        return min(ready, key=lambda worker: worker.load, default=None)

    def _accept(self) -> None:
        while self._best() is not None:
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # too many open files: some close in a moment
                self._pause_accepting()
                asyncio.get_running_loop().call_later(_NO_FILES_LEFT, self._resume_accepting)
                return
            self._hand(connection)
        self._pause_accepting()

    def _hand(self, connection: socket.socket) -> None:
        """Hand a connection to a worker. Until the worker has taken it, it is here, too, so that it survives."""
        worker = self._best()
        if worker is None:
            self._waiting.append(connection)
            return
        try:
            socket.send_fds(worker.connections, [b"c"], [connection.fileno()])
        except (BrokenPipeError, ConnectionResetError):  # the worker has just ended
            worker.ready = False
            self._hand(connection)
            return
        except OSError:  # the kernel has no room for it
            connection.close()
            return
        worker.untaken.append(connection)
        worker.handed += 1

    def _taken(self, worker: Worker) -> None:
        """Let go of connections that a worker has taken."""
        while True:
            try:
                taken = worker.connections.recv(len(TAKEN))
            except BlockingIOError:
                break
            except OSError:
                taken = b""
            if not taken:
                worker.ready = False
                asyncio.get_running_loop().remove_reader(worker.connections)
                break
            worker.untaken.popleft().close()
        self._resume_accepting()

    # Questions of workers

    async def _answer(self, worker: Worker, name: str, value: Any) -> Any:
        match name:
            case "ready":
                self._serves(worker)
            case "stopping":
                self._hand_back(worker)
            case "report":
                self._note(worker, value)
            case "gather":
                self._note(worker, value)
                return await self._gather(worker)
            case "counted":
                self._counted = value
            case "begin":
                worker.expect_nothing()  # it waits for another one
                await self._turn.acquire()
                self._reloads = worker
                self._manager.reload_begins()
                self._expect_step(worker, self._checks_within, self._fail)
            case "follow":
                self._put_in_force(worker, value)
            case "followed":
                self._expect_step(worker, 2 * FOLLOWS_WITHIN, self._kill)
                # Awaited, so that all serve as the answer to the caller says. They follow also if the worker dies.
                await asyncio.shield(asyncio.gather(*self._following))
            case "end":
                worker.expect_nothing()
                self._end_turn()
        return None

    def _serves(self, worker: Worker) -> None:
        """Let a worker have connections, now that it serves."""
        if worker.config is not self._config:  # there was a reload since it began
            self._signal(worker, signal.SIGTERM)
            return
        if not self._has_served:
            self._manager.ready(self._status)
        worker.ready = self._has_served = True
        self._resume_accepting()

    @staticmethod
    def _note(worker: Worker, report: Report) -> None:
        if worker.report is None or report.number > worker.report.number:
            worker.report, worker.handed = report, len(worker.untaken)

    async def _gather(self, asker: Worker) -> Gathered:
        async def refresh(worker: Worker) -> None:
            with suppress(NoAnswer, TimeoutError):
                async with asyncio.timeout(REPORTED_WITHIN):
                    self._note(worker, await worker.channel.ask("report"))

        others = [worker for worker in self._workers if worker is not asker]
        await asyncio.gather(*(refresh(worker) for worker in others if worker.ready))
        return Gathered(
            past=self._past,
            # Workers that have ended meanwhile are in the past.
            snapshots=[one.report.snapshot for one in self._workers if one.report is not None],
            processes={one.number: one.process.pid for one in self._workers},
            serving=sum(one.ready for one in self._workers),
            counted=self._counted,
        )

    # Reloads

    def _put_in_force(self, worker: Worker, config: Config) -> None:
        """Wait for no other worker: until the answer, this one serves by the former configuration."""
        self._config = worker.config = config
        self._expect_step(worker, FOLLOWS_WITHIN, self._kill)
        following = [self._let_follow(one, config) for one in self._workers if one is not worker]
        self._following = [self._tasks.create_task(one) for one in following]

    async def _let_follow(self, worker: Worker, config: Config) -> None:
        """Let a worker follow to the configuration in force. One that cannot is replaced, and its successor does."""
        if not worker.ready:  # it is looked at once it serves
            return
        try:
            async with asyncio.timeout(FOLLOWS_WITHIN):
                await worker.channel.ask("follow", config)
            worker.config = config
        except TimeoutError:
            self._kill(worker)
        except NoAnswer:
            self._signal(worker, signal.SIGTERM)

    @staticmethod
    def _expect_step(worker: Worker, seconds: float, otherwise: Callable[[Worker], None]) -> None:
        """Allow a worker so many seconds for its next step of a reload."""
        worker.expect_nothing()
        worker.limit = asyncio.get_running_loop().call_later(seconds, otherwise, worker)

    def _fail(self, worker: Worker) -> None:
        """Replace a worker that hangs before the configuration is in force. The next reload gets its turn."""
        self._observe(ReloadFailed(f"Worker {worker.number} hangs in the reload, and is replaced. Repeat the reload."))
        self._kill(worker)

    def _end_turn(self) -> None:
        """Let another worker reload. A reload is over with its worker, too."""
        self._reloads = None
        self._turn.release()
        self._say_ready()

    def _say_ready(self) -> None:
        if self._has_served and not self._stopping.is_set():
            self._manager.ready(self._status)

    # Signals

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        loop, in_terminal = asyncio.get_running_loop(), sys.stderr.isatty()

        def hangup() -> None:
            if in_terminal and not sys.stderr.isatty():
                self._stopping.set()
                return
            self._manager.reload_begins()
            worker = self._reloads or next((one for one in self._workers if one.ready), None)
            if worker is None:
                self._manager.ready(self._status)
                self._observe(ReloadFailed("No worker serves yet. Repeat the reload in a moment."))
            else:
                if self._reloads is None:
                    self._expect_step(worker, self._checks_within, self._fail)
                self._signal(worker, signal.SIGHUP)

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, hangup)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)

    async def _stop(self) -> None:
        """Let all workers end their requests, and kill those that take too long."""
        for worker in self._workers:
            self._signal(worker, signal.SIGTERM)
        give_up = asyncio.get_running_loop().time() + self._grace + KILLED_AFTER
        while self._workers:
            if asyncio.get_running_loop().time() > give_up:
                for worker in self._workers:
                    self._kill(worker)
            await asyncio.sleep(0.05)

    def _kill(self, worker: Worker) -> None:
        self._signal(worker, signal.SIGKILL)

    @staticmethod
    def _signal(worker: Worker, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            worker.process.send_signal(number)
