"""Locks and fenced clients for programs: ``pip install '.[client]'`` in a clone; docs/sdk.md.

A lock renews itself while its block runs. It is lost when the lock service refuses, when its validity ends, or when a
fence refuses a write. The clock of that goes on during a suspension. The loss is final, and no block ends as if it had
succeeded. The storage is safe without any of this: it refuses a stale token.

A ``Source`` gives tokens: the gateway's own leases, or another lock service. ``gateway.client.blocking`` has the same
for programs without an event loop. Programs import the names below, the modules of sources, and those of frameworks.
The folder imports ``errors``, ``fencing`` and ``batching`` of the gateway, and nothing of the server.
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
