"""What is on record of a refused write: who tried what, and what overtook it."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from gateway.fencing.rules import Fence
from gateway.fencing.token import Token


@dataclass(frozen=True, slots=True)
class Attempt:
    """A write as it arrived: who sent it, and at what it was aimed.

    ``token`` and ``holder`` are what the writer presented; ``caller`` is who it proved to be; ``client`` its network
    address; ``target`` the path and query of the request; ``payload_size`` is in bytes. The payload's size and
    SHA-256 (hex) are None where the write was refused before its body was read.
    """

    token: Token | None
    holder: str | None
    caller: str
    method: str
    target: str
    client: str | None
    request_id: str
    payload_size: int | None = None
    payload_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Rejection:
    """One row of the record. ``enforced`` is False where a rule in observe mode let the write pass."""

    id: UUID
    at: datetime
    resource: str
    reason: str
    enforced: bool
    attempt: Attempt
    fence: Fence | None
