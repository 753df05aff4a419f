"""SQLAlchemy: transactions of an engine write under the locks that their task or thread holds (docs/frameworks.md).

The settings of a lock end with the transaction, so no connection of the pool carries them on.
"""

from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import ExceptionContext

from gateway.client.guarded import SETTINGS, held, refusal, settings

if TYPE_CHECKING:  # It needs greenlet, which SQLAlchemy installs with its extra "asyncio" alone.
    from sqlalchemy.ext.asyncio import AsyncEngine

AnEngine = TypeVar("AnEngine", Engine, "AsyncEngine")

_SET: Final = text("SELECT " + ", ".join(f"set_config('{name}', :{name.replace('.', '_')}, true)" for name in SETTINGS))
_HOLD: Final = text("SELECT fencing.hold(:resource, :token, :holder)")


def fenced(engine: AnEngine, *, hold: bool = False) -> AnEngine:
    """Fence the transactions of an engine by the locks that are held when they begin; return the engine.

    ``hold``: claim the tokens at the beginning, by ``fencing.hold``. Then a newer holder waits for the end of the
    transaction, and all of it is fenced, whatever it does: DDL, tables without a guard.

    A transaction raises ``LockLost`` where a lock is lost at its beginning, and ``Stale`` where the token is overtaken.
    """
    inner = engine if isinstance(engine, Engine) else engine.sync_engine
    event.listen(inner, "begin", _hold if hold else _declare)
    event.listen(inner, "handle_error", _translate)
    return engine


def _declare(connection: Connection) -> None:
    if (declared := settings()) is not None:
        connection.execute(_SET, {name.replace(".", "_"): value for name, value in declared.items()}).close()


def _hold(connection: Connection) -> None:
    _declare(connection)
    # In the order of names, as the gateway does: two transactions that claim the same never wait for each other.
    for lock in sorted(held(), key=lambda lock: lock.resource):
        holder = lock.headers.get("Fencing-Holder")
        connection.execute(_HOLD, {"resource": lock.resource, "token": lock.token, "holder": holder}).close()


def _translate(context: ExceptionContext) -> Any:
    return refusal(context.original_exception)
