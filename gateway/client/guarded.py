"""Transactions that write under the locks of their task or thread, and the refusals of guards (docs/guard.md).

A task has the locks of the task that has started it. A thread begins with none, except one of ``asyncio.to_thread``. A
forked process has none of its parent's. The modules of frameworks share this one. No driver is imported here.
"""

import json
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from gateway.client.errors import Stale
from gateway.client.libpq import HELD, HOLDER, RESOURCE, TOKEN
from gateway.errors import TokenDuplicate, TokenStale

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


SETTINGS: Final = (RESOURCE, TOKEN, HOLDER, HELD, "application_name")
"""The settings of a transaction, in the order in which statements set them."""

_OVERTAKEN: Final = (TokenStale.code, TokenDuplicate.code)


def settings() -> dict[str, str] | None:
    """Return the settings of a transaction under the locks that are held. None where no lock is.

    Raise ``LockLost`` if one of them is lost.
    """
    locks = held()
    return locks[-1].postgres_settings(*locks[:-1]) if locks else None


def refusal(error: BaseException | None) -> Stale | None:
    """Return what a guard has said, if it has refused an overtaken token, and tell the lock. Else None.

    ``error``: any driver's, or a framework's whose cause is one.
    """
    for sqlstate, message, detail in _reports(error):
        if sqlstate == "FN412" and message and detail:
            facts = json.loads(detail)
            if facts["code"] not in _OVERTAKEN:
                return None
            stale = Stale(message, code=facts["code"], facts=facts)
            for lock in held():
                lock.overtaken(stale)
            return stale
    return None


def _reports(error: BaseException | None) -> Iterator[tuple[str | None, str, str | None]]:
    """Yield SQLSTATE, message and detail of an error and its causes, by the names of psycopg, psycopg2 and asyncpg."""
    while error is not None:
        known: Any = error
        said = getattr(known, "diag", None)
        if said is not None:
            yield said.sqlstate, said.message_primary, said.message_detail
        else:
            yield getattr(known, "sqlstate", None), getattr(known, "message", ""), getattr(known, "detail", None)
        error = error.__cause__
