"""Clients of a store on a raw socket."""

import pytest

from gateway.objects.store import client
from tests.waiting import PATIENCE


@pytest.fixture
def patient_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a connection take long where the time limit is short: half of it, for a connection, is less than a stall."""
    monkeypatch.setattr(client, "_connect_timeout", lambda _: PATIENCE)
