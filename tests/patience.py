"""Long limits of gateways and databases, for tests that are not about these limits."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gateway.config import Config
from gateway.config.sections import Limits
from gateway.db import database
from gateway.db.database import Database
from tests.waiting import PATIENCE

LIMITS = {"connect_timeout": PATIENCE, "idle_timeout": PATIENCE}
"""Limits of a database: sessions open, and transactions stand still, as a busy machine has it."""
OF_GATEWAYS = {**LIMITS, "store_timeout": PATIENCE, "sweep_interval": 0.0}
"""Limits of a gateway in a test: those of its database, a patient store, and no rounds of the sweeper."""


def limited(config: Config, **limits: float) -> Config:
    """Return the configuration with these limits, which no file sets."""
    return config.with_limits(Limits(**{**OF_GATEWAYS, **limits}))  # type: ignore[arg-type]


def patient(dsn: str, **settings: Any) -> Database:
    """Return a database whose limits are longer than a test waits for anything. ``settings``: other ones of it."""
    long = 2 * PATIENCE
    limits = {"statement_timeout": long, "lock_timeout": long, "idle_timeout": long, "connect_timeout": long}
    return Database(dsn, **{**limits, **settings})


@contextmanager
def patient_trips() -> Iterator[None]:
    """Let a shared trip take long. One that gives up makes each of its writes go another way, which tests count."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "SHARED_STATEMENT_TIMEOUT", PATIENCE)
        patch.setattr(database, "SHARED_LOCK_TIMEOUT", PATIENCE)
        yield
