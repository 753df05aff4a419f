"""A command that runs while a lock is held: in a process group of its own, and stopped when the lock is lost.

The group is what makes stopping thorough: what a shell script has started is stopped with it. Signals that would have
reached the command without us are passed on to the group, and the terminal is lent to it (terminal.py).
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

WANTED = frozenset((signal.SIGTTIN, signal.SIGTTOU))
"""The signals that stop a process that asks for a terminal of another group."""


class Terminal:
    """The terminal of this process, if it has one."""

    def __init__(self) -> None:
        self._device: int | None = None
        self._lent = False
        with suppress(OSError):
            self._device = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)

    @property
    def there(self) -> bool:
        """Whether this process has a terminal: its user may stop and resume the command there."""
        return self._device is not None

    @property
    def lent(self) -> bool:
        return self._lent

    def lend(self, group: int) -> bool:
        """Let this process group have it. False where it is not ours to lend: we are in the background ourselves."""
        if self._device is None or os.tcgetpgrp(self._device) not in (os.getpgrp(), group):
            return False
        os.tcsetpgrp(self._device, group)
        # From here on we are in the background, and may have something to say there all the same.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU})
        self._lent = True
        return True

    def close(self) -> None:
        """Take it back, if it was lent, and never lend it again."""
        if self._device is None:
            return
        if self._lent:
            # Our parent may have taken it meanwhile, or the terminal may be gone.
            with suppress(OSError):
                os.tcsetpgrp(self._device, os.getpgrp())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})
        os.close(self._device)
        self._device = None


FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)

LOOK = 0.05
"""Seconds between two looks at whether what was stopped has left anything behind."""


@dataclass(frozen=True, slots=True)
class Ended:
    """``code`` is the exit code, 128 + n where signal n has ended the command, as shells have it.

    ``stopped``: it did not end by itself.
    """

    code: int
    stopped: bool


class Signals:
    """Collect the signals sent to this process during a run, for the code in charge at the time."""

    def __init__(self, receiver: Callable[[int], None]) -> None:
        self._receiver = receiver

    def hand_to(self, receiver: Callable[[int], None]) -> None:
        self._receiver = receiver

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear them while the context lasts. Only in the main thread, where signals arrive."""
        loop = asyncio.get_running_loop()
        # A signal that our parent ignored (nohup) stays ignored, and the command ignores it as well.
        numbers = [number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN]
        for number in numbers:
            loop.add_signal_handler(number, self._hear, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _hear(self, number: int) -> None:
        self._receiver(number)


async def supervise(
    command: Sequence[str],
    environment: Mapping[str, str],
    lost: Callable[[], Coroutine[Any, Any, object]],
    stopping: Callable[[], None],
    grace: float,
    signals: Signals,
) -> Ended:
    """Run the command to its end, or until ``lost`` returns: then SIGTERM, and after ``grace`` seconds SIGKILL.

    ``stopping`` is called before the first of them. Standard input, output and error are our own; signals go to the
    command, and nowhere when it has ended. Only in the main thread. Raises ``OSError`` where it cannot be started.
    """
    with _started(command, environment) as child:
        signals.hand_to(child.send)
        async with asyncio.TaskGroup() as tasks:
            loss = tasks.create_task(lost())
            await asyncio.wait((child.ended, loss), return_when=asyncio.FIRST_COMPLETED)
            loss.cancel()
        stopped = not child.ended.done()
        if stopped:
            stopping()
            await child.stop(grace)
        signals.hand_to(lambda _: None)
        return Ended(child.ended.result(), stopped)


@contextmanager
def _started(command: Sequence[str], environment: Mapping[str, str]) -> Iterator["_Child"]:
    loop, terminal = asyncio.get_running_loop(), Terminal()
    try:
        # Python ignores these, and what is ignored stays so in the command; handlers the system takes off by itself.
        group = os.posix_spawnp(
            command[0], list(command), environment, setpgroup=0, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ)
        )
        child = _Child(group, terminal, loop)
        with child.watched():
            yield child
    finally:
        terminal.close()


class _Child:
    """The process, and the group of all that it starts. ``ended`` gets its exit code."""

    def __init__(self, group: int, terminal: Terminal, loop: asyncio.AbstractEventLoop) -> None:
        self.ended: asyncio.Future[int] = loop.create_future()
        self._group = group
        self._terminal = terminal
        self._loop = loop
        # Stopped because it wants the terminal, and it is not ours to lend.
        self._starved = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Hear what happens to the process. It is killed where it outlives this."""
        handlers = {signal.SIGCHLD: self._look, signal.SIGCONT: self._resumed}
        if self._terminal.there:
            handlers[signal.SIGTSTP] = self._suspend
        for number, handler in handlers.items():
            self._loop.add_signal_handler(number, handler)
        self._look()
        try:
            yield
        finally:
            for number in handlers:
                self._loop.remove_signal_handler(number)
            if not self.ended.done():
                self.send(signal.SIGKILL)

    def send(self, number: int) -> None:
        """Send a signal to the whole group, or to no process if none is left."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._group, number)

    def _look(self) -> None:
        """See what has become of the process, without waiting."""
        if self.ended.done():
            return
        process, status = os.waitpid(self._group, os.WNOHANG | os.WUNTRACED)
        if not process:
            return
        if os.WIFSTOPPED(status):
            self._paused(os.WSTOPSIG(status))
        else:
            code = os.waitstatus_to_exitcode(status)
            self.ended.set_result(code if code >= 0 else 128 - code)

    async def stop(self, grace: float) -> None:
        """SIGTERM; after ``grace`` seconds, SIGKILL. Returns when all of the group are gone, or have been killed."""
        self.send(signal.SIGTERM)
        # A stopped process receives it only after this.
        self.send(signal.SIGCONT)
        try:
            async with asyncio.timeout(grace):
                await asyncio.shield(self.ended)
                while self._anybody_left():  # noqa: ASYNC110 - nothing announces that a group is empty
                    await asyncio.sleep(LOOK)
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self.ended

    def _anybody_left(self) -> bool:
        with suppress(ChildProcessError):
            # The first process of a container inherits what the command leaves behind.
            os.waitpid(-self._group, os.WNOHANG)
        try:
            os.killpg(self._group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            # Macs say so of a group that has only ended processes left.
            return False
        return True

    def _suspend(self) -> None:
        self.send(signal.SIGTSTP)

    def _paused(self, number: int) -> None:
        """Handle a stopped command. SIGSTOP is a user's will; the others are job control at a terminal."""
        if number == signal.SIGSTOP or not self._terminal.there:
            return
        if number in WANTED and self._terminal.lend(self._group):
            self.send(signal.SIGCONT)
            return
        # Ctrl-Z, or the want of the terminal in the background: the whole job stops, which is what its shell looks for.
        self._starved = number in WANTED
        self._loop.remove_signal_handler(signal.SIGTSTP)
        os.killpg(0, signal.SIGTSTP)
        # Here we stand until the job is resumed: in the foreground (fg), or in the background (bg).
        self._loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        if not self._starved:
            if self._terminal.lent:
                self._terminal.lend(self._group)
            self.send(signal.SIGCONT)

    def _resumed(self) -> None:
        if self._starved:
            self._paused(signal.SIGTTIN)
