"""The change of a naming, without any I/O: in which order a target is closed, settled and carried over.

A target is a table or a bucket. The generator yields the effects that it wants and is sent their answers. A process may
stop at each ``yield``, and another one may begin again from the start. ``tests/model`` tries all of it beside writers.

The rules that carry the promise:

- Closing gives the target another generation, which no gateway proves. Writers under way still hold what they proved.
- Nothing is carried over before all of these are over: rows by the lock of the table, keys by their intents.
- Fences are carried over and the next naming comes into force in one transaction.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gateway.fencing.intent import Intent


@dataclass(frozen=True, slots=True)
class Close:
    """Commit that no write proves its naming any more."""


@dataclass(frozen=True, slots=True)
class FindPending:
    """Return the intents of the target. The rows of a table have none."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Make certain that an intent's write has taken effect or never will. A later round finds it if that fails."""

    intent: Intent


@dataclass(frozen=True, slots=True)
class CarryOver:
    """In one transaction, with no writer under way: carry the fences over, and put the next naming in force."""


Effect: TypeAlias = Close | FindPending | Settle | CarryOver
Steps: TypeAlias = Generator[Effect, Sequence[Intent] | None, None]


def change() -> Steps:
    """Change the naming of one target. To begin again is harmless."""
    yield Close()
    while pending := (yield FindPending()):
        for intent in pending:
            yield Settle(intent)
    yield CarryOver()
