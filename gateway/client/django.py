"""Django: writes carry the locks that their thread or task holds. Add ``Fencing`` to INSTALLED_APPS.

It wraps statements, as django.db.connection.execute_wrapper does. Settings of a lock end with the transaction, so a
persistent connection carries none of them on. docs/frameworks.md says what is not covered.
"""

import re
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

from django.apps import AppConfig
from django.db import Error, transaction
from django.db.backends.signals import connection_created

from gateway.client.guarded import SETTINGS, refusal, settings

_WRITE: Final = re.compile(r"(?:\s|/\*.*?\*/)*(?:INSERT|UPDATE|DELETE|MERGE|WITH)\b", re.IGNORECASE | re.DOTALL)
_SET: Final = "SELECT " + ", ".join(f"set_config('{name}', %s, true)" for name in SETTINGS)


class Fencing(AppConfig):  # type: ignore[misc]
    """Fences what this process writes to its PostgreSQL databases."""

    name = "gateway.client.django"
    label = "fencing"

    def ready(self) -> None:
        connection_created.connect(_wrap, dispatch_uid="fencing")


def _wrap(connection: Any, **_: Any) -> None:
    if connection.vendor == "postgresql" and _fence not in connection.execute_wrappers:
        # The first place: ``execute_wrapper`` blocks that are open just now remove the last one at their end.
        connection.execute_wrappers.insert(0, _fence)


def _fence(execute: Callable[..., Any], sql: Any, *arguments: Any) -> Any:
    """Run a statement; the last argument is its context. Raise ``Stale`` where a guard refuses an overtaken token."""
    declared = settings() if isinstance(sql, str) and _WRITE.match(sql) else None
    try:
        if declared is None:
            return execute(sql, *arguments)
        return _write(partial(execute, sql, *arguments), declared, arguments[-1]["connection"])
    except Error as error:
        if (stale := refusal(error)) is not None:
            raise stale from error
        raise


def _write(write: Callable[[], Any], declared: dict[str, str], connection: Any) -> Any:
    """Write after the settings, in one transaction. Each write has its own: a savepoint may have taken them back."""
    with transaction.atomic(connection.alias) if connection.get_autocommit() else nullcontext():
        with connection.cursor() as cursor:
            cursor.execute(_SET, [declared[name] for name in SETTINGS])
        return write()
