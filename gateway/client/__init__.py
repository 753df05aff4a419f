"""Locks and fenced clients for programs: ``pip install 'fencing-gateway[client]'``; docs/sdk.md.

``gateway.client.blocking`` has the same for programs without an event loop.
"""

from gateway.client.api import raise_for_refusal
from gateway.client.client import FencedClient
from gateway.client.errors import (
    FencingError,
    Implausible,
    IssuerWentBackwards,
    LockLost,
    MissingExtra,
    NotAcquired,
    OutcomeUnknown,
    Refused,
    Stale,
    Unavailable,
)
from gateway.client.lock import Lock
from gateway.client.s3 import Credentials
from gateway.client.source import Held, Source

__all__ = [
    "Credentials",
    "FencedClient",
    "FencingError",
    "Held",
    "Implausible",
    "IssuerWentBackwards",
    "Lock",
    "LockLost",
    "MissingExtra",
    "NotAcquired",
    "OutcomeUnknown",
    "Refused",
    "Source",
    "Stale",
    "Unavailable",
    "raise_for_refusal",
]
