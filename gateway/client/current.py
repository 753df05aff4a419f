"""The locks that a task or thread holds, for modules of frameworks. They are not handed a lock.

A task has the locks of the task that has started it. A thread begins with none, except one of ``asyncio.to_thread``. A
forked process has none of its parent's.
"""

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.client.hold import Hold, State

_ENTERED: ContextVar[tuple["Hold", ...]] = ContextVar("fencing_locks", default=())


def held() -> tuple["Hold", ...]:
    """Return the locks whose blocks this task or thread is in, the innermost last."""
    return tuple(lock for lock in _ENTERED.get() if _is_within(lock.state))


def enter(lock: "Hold") -> None:
    """Note that this task or thread is in the block of a lock."""
    _ENTERED.set((*held(), lock))


def leave(lock: "Hold") -> None:
    """Note that the block has ended, for every task that was started in it as well."""
    lock.state.left = True
    _ENTERED.set(held())


def _is_within(state: "State") -> bool:
    return state.keeper is not None and not state.left and not state.keeper.is_copy()
