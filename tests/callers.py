"""Proven callers, for tests that begin behind authentication."""

from gateway.auth.grants import Rights
from gateway.auth.principal import Principal
from gateway.fencing.record import ANONYMOUS

ANYBODY = Principal(ANONYMOUS, Rights.all())
"""The anonymous caller, to whom everything is granted."""


def known(name: str) -> Principal:
    """Return a caller to whom everything is granted."""
    return Principal(name, Rights.all())
