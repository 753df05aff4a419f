"""What goes in and out by the routes of leases: wishes, renewals, and leases as their holders see them."""

from datetime import datetime
from typing import Annotated, TypeAlias
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from gateway.api.requests import HolderName
from gateway.fencing.lease import Mode

MAX_RENEWALS = 1000

Wait: TypeAlias = Annotated[float, Field(strict=True, allow_inf_nan=False, ge=0)]
Ttl: TypeAlias = Annotated[
    float, Field(strict=True, allow_inf_nan=False, ge=0.1, description="Seconds that the lease lasts without renewal.")
]


class AcquireRequest(BaseModel):
    """A wish for a lock."""

    model_config = ConfigDict(extra="forbid")

    holder: HolderName = Field(description="Unique to one process: the same holder gets the same lease again.")
    ttl: Ttl = 30.0
    wait: Wait = Field(default=0.0, description="Seconds to wait in the queue while somebody else has the lock.")
    mode: Mode = Mode.EXCLUSIVE
    request: HolderName | None = Field(
        default=None, description="Unique to this wish, so that it can be sent again, keep its place, and be withdrawn."
    )
    barrier: bool = Field(
        default=False, strict=True, description="Raise the fence to the new token before answering, as a barrier does."
    )


class RenewRequest(BaseModel):
    """For how long from now on; as long as last time where it is left out."""

    model_config = ConfigDict(extra="forbid")

    ttl: Ttl | None = None


class RenewalEntry(BaseModel):
    """A lease to be renewed."""

    model_config = ConfigDict(extra="forbid")

    resource: Annotated[str, Field(max_length=512)]
    lease: UUID
    ttl: Ttl | None = None


class RenewManyRequest(BaseModel):
    """Leases to be renewed in one go, each for itself."""

    model_config = ConfigDict(extra="forbid")

    leases: list[RenewalEntry] = Field(max_length=MAX_RENEWALS)


class WithdrawRequest(BaseModel):
    """The wish that is withdrawn."""

    model_config = ConfigDict(extra="forbid")

    holder: HolderName
    request: HolderName


class LeaseView(BaseModel):
    """A lease, as its holder sees it."""

    resource: str
    lease: UUID = Field(description="What renewing and releasing take. It is a secret of the holder's.")
    holder: str
    mode: Mode
    token: str
    sequencer: str | None = Field(description="The token with a proof that it was issued; null without a signing key.")
    acquired_at: datetime = Field(description="By the database's clock.")
    expires_at: datetime = Field(description="By the database's clock. Do not compare it with your own.")
    expires_in: float = Field(
        description="Seconds that were left when the database answered. Count them from before you sent the request."
    )


class RenewedView(BaseModel):
    """What became of one renewal."""

    resource: str
    lease: UUID
    expires_in: float | None = Field(description="Seconds, as for one lease; null: the lease is lost.")


class RenewedList(BaseModel):
    """In the order of the renewals."""

    leases: list[RenewedView]
