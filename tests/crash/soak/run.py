"""One run of a soak: writers and trouble side by side, then a last holder, then the check of all that has happened."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from tests.crash.soak.stage import WRITERS, Soak, staged
from tests.crash.soak.trouble import Trouble
from tests.crash.soak.writers import Writer

_UNTIL_LATE = 0.7
"""The share of a run that is over when it gets late, see ``Soak.late``."""


def play(seed: int, seconds: float) -> Counter[str]:
    """Run one soak, and return how often each action and outcome occurred. Raises ``Broken``."""
    with staged(seed) as soak:
        _run(soak, seconds)
        mutations, committed = soak.effects()
    history = soak.history
    history.check(mutations, committed)
    counted = {"deeds": len(history.deeds), "looks": len(history.looks), "mutations": len(mutations)}
    return soak.counted + Counter(counted | {"commits": len(committed)})


def _run(soak: Soak, seconds: float) -> None:
    """Let everything happen, and bring it to its end. Raises ``Broken``."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            errors.append(error)
            soak.over.set()

    works = [Trouble(soak).work, *(Writer(soak, number).work for number in range(WRITERS))]
    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        if not soak.over.wait(seconds * _UNTIL_LATE):
            soak.late.set()
            soak.over.wait(seconds * (1 - _UNTIL_LATE))
    finally:
        soak.over.set()
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
    Writer(soak, WRITERS).conclude()
