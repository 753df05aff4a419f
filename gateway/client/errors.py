"""The errors of locks and fenced requests: one class for each reaction of a program.

FencingError
├── Stale                  a newer holder has taken over; a retry is pointless
├── LockLost               the lock is not held any more; stop working under its token
│   └── IssuerWentBackwards    the lock service has issued a token that the fence has overtaken already
├── NotAcquired            another holder has the lock
├── Unavailable            nothing was done; retry
├── OutcomeUnknown         a write may have taken effect; read, then write again
├── Implausible            no lock service has issued this token, as far as the gateway can tell
├── Refused                any other refusal, with its code
└── MissingExtra           a library is not installed (also an ImportError)
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around the import of a library, where it is used. Raises ``MissingExtra`` where it is not installed."""
    try:
        yield
    except ImportError as error:
        raise MissingExtra(extra) from error


class FencingError(Exception):
    """Base of all errors that the client library raises on purpose.

    ``message`` says what happened, ``advice`` what to do next. ``code`` is the gateway's, or ``""`` if the error is not
    from the gateway. ``facts`` are the machine-readable particulars of its answer.
    """

    default_advice = ""
    retryable: ClassVar[bool] = False
    """Whether the same request may be sent again without a look at what has happened."""
    retry_after: float | None = None
    """Seconds that the answer asks the client to wait, if it does."""

    def __init__(
        self, message: str, *, advice: str | None = None, code: str = "", facts: Mapping[str, Any] | None = None
    ) -> None:
        # Libraries of lock services write several lines, and psycopg the stack of functions. Each failure is one line.
        whole, context, _ = message.partition("\nCONTEXT:")
        message = " ".join(f"{whole}.".split()) if context else " ".join(message.split())
        super().__init__(message)
        self.message = message
        self.advice = self.default_advice if advice is None else advice
        self.code = code
        self.facts: dict[str, Any] = dict(facts or {})

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".rstrip()


class Stale(FencingError):
    """The fence has refused the token: 412. Nothing was written, and the refusal is on record."""

    default_advice = "Stop: a newer holder has taken over, and trying again cannot succeed."

    @property
    def resource(self) -> str | None:
        return self._text("resource")

    @property
    def token(self) -> str | None:
        """The token that was refused, as it was sent."""
        return self._text("token")

    @property
    def fence(self) -> str | None:
        """The token that has overtaken it."""
        return self._text("fence")

    @property
    def raised_by(self) -> str | None:
        """The holder, or else the caller, that has raised the fence."""
        return self._text("raised_by")

    @property
    def raised_at(self) -> str | None:
        """When the fence was raised (RFC 3339, by the database's clock)."""
        return self._text("raised_at")

    @property
    def rejection(self) -> str | None:
        """The id of the refusal's record: ``GET /v1/rejections``."""
        return self._text("rejection")

    def _text(self, name: str) -> str | None:
        """Return a fact that is a text. Anything else is not from a gateway: a number may have lost digits."""
        fact = self.facts.get(name)
        return fact if isinstance(fact, str) else None


class LockLost(FencingError):
    """The lock is lost: its renewal was refused, its time was over, or the fence has refused its token."""

    default_advice = "Stop working under its token, and acquire the lock again."


class IssuerWentBackwards(FencingError):
    """The fence is ahead of a token just issued, although the issuer says that it is held: its counter was lost."""

    default_advice = (
        "The counter of the lock service went back (restored, deleted, failed over). Repair it, or have an "
        "administrator start a new epoch of this resource: POST /v1/fences/{resource}/epoch. Then acquire again."
    )


class NotAcquired(FencingError):
    """Another holder has the lock, and kept it for the whole time to wait.

    ``resource``: the lock. ``holder``: its name, if the source can tell. ``expires_in``: seconds until the lease ends
    without a renewal, if the source can tell.
    """

    default_advice = "Try again later, or wait longer."
    retryable = True

    def __init__(
        self,
        resource: str,
        *,
        holder: str | None = None,
        expires_in: float | None = None,
        code: str = "",
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        by = f"is held by {holder}" if holder else "was not to be had"
        super().__init__(f"The lock {resource} {by}.", code=code, facts=facts)
        self.resource = resource
        self.holder = holder
        self.expires_in = expires_in


class Unavailable(FencingError):
    """The gateway or the lock service cannot be reached or cannot work just now. Nothing was done."""

    default_advice = "Try again."
    retryable = True


class OutcomeUnknown(FencingError):
    """Whether the write took effect is not known. It takes no effect any more after the next acknowledged write."""

    default_advice = "Read the current state, then write again with the same token."


class Implausible(FencingError):
    """The gateway's policy refuses the token as one that cannot have been issued."""

    default_advice = "Use the token your lock service gave you; ask the operator if its counter was reset."


class Refused(FencingError):
    """Any other refusal. ``status`` is that of HTTP."""

    def __init__(
        self,
        message: str,
        *,
        status: int,
        advice: str | None = None,
        code: str = "",
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, advice=advice, code=code, facts=facts)
        self.status = status


def needs_gateway() -> Refused:
    """Return the error for a part of a lock that a database alone does not have."""
    return Refused(
        "Requests, S3 clients, S3 keys and other lock services need a gateway, and this client has a database alone.",
        status=501,
        advice="Give FencedClient the address of a gateway, or write to the database by lock.dsn (docs/sdk.md).",
    )


class MissingExtra(FencingError, ImportError):
    """A library is missing. ``extra`` names the extra that installs it."""

    def __init__(self, extra: str) -> None:
        super().__init__(
            f"This needs the extra {extra!r}, which is not installed.",
            advice=f"In a clone of the gateway: pip install '.[{extra}]'",
        )
        self.extra = extra
