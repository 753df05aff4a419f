"""The controlling terminal, lent to a command that runs in a process group of its own, as a shell does it.

A terminal belongs to one process group at a time; a process of another one that reads from it, or changes its settings,
is stopped (SIGTTIN, SIGTTOU). So the terminal is lent when that happens, and not before: until then Ctrl-C goes to
whoever stands beside us in a pipeline, too.
"""

import os
import signal
from contextlib import suppress

WANTED = frozenset((signal.SIGTTIN, signal.SIGTTOU))
"""What stops a process that has asked for a terminal which is not its own group's."""


class Terminal:
    """The terminal of this process, if it has one."""

    def __init__(self) -> None:
        self._device: int | None = None
        self._lent = False
        with suppress(OSError):
            self._device = os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY)

    @property
    def there(self) -> bool:
        """Whether this process has one: somebody may stop and resume what it runs there."""
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
            # Whoever has started us may have taken it meanwhile, or the terminal may be gone.
            with suppress(OSError):
                os.tcsetpgrp(self._device, os.getpgrp())
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTTOU})
        os.close(self._device)
        self._device = None
