"""The log: one line of JSON on standard error for what an operator wants to know. Never a secret, never a payload."""

import sys
from time import monotonic

import structlog

from gateway.observe.events import (
    BucketAdministered,
    CatalogWarning,
    Event,
    IntentSettled,
    OutcomeLost,
    RequestFailed,
    ServiceUnreachable,
    StepReached,
    SweepFailed,
    TombstoneSwept,
    UploadSwept,
    WriteRefused,
)

_logger = structlog.wrap_logger(
    structlog.PrintLogger(sys.stderr),
    processors=[
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.dict_tracebacks,
        structlog.processors.JSONRenderer(),
    ],
)


REFUSALS = 100
"""Refused writes that are logged in one second. The record has every one; a storm of them must not be one of lines."""


class _Refusals:
    """Keeps count of the lines of a second."""

    def __init__(self) -> None:
        self._second, self._lines, self._left_out = 0, 0, 0

    def fit(self, second: int) -> bool:
        """Whether one more line fits into this second."""
        if second != self._second:
            if self._left_out:
                _logger.warning("more writes refused, all on record", left_out=self._left_out)
            self._second, self._lines, self._left_out = second, 0, 0
        self._lines += 1
        self._left_out += self._lines > REFUSALS
        return self._lines <= REFUSALS


_refusals = _Refusals()


def log(event: Event) -> None:  # noqa: C901 - one arm an event
    """Write the event down, unless it is a step of an ordinary write."""
    match event:
        case StepReached():
            return
        case WriteRefused(plane, rejection):
            if not _refusals.fit(int(monotonic())):
                return
            _logger.warning(
                "write refused" if rejection.enforced else "write would be refused",
                plane=plane,
                resource=rejection.resource,
                reason=rejection.reason,
                token=str(rejection.attempt.token),
                fence=str(rejection.fence.token) if rejection.fence else None,
                caller=rejection.attempt.caller,
                holder=rejection.attempt.holder,
                rejection=str(rejection.id),
                request_id=rejection.attempt.request_id,
            )
        case IntentSettled(resource, bucket, key, write_id):
            _logger.info("write settled", resource=resource, bucket=bucket, key=key, write_id=write_id)
        case OutcomeLost(resource, bucket, key, write_id):
            _logger.warning("outcome lost", resource=resource, bucket=bucket, key=key, write_id=write_id)
        case TombstoneSwept(resource, bucket, key):
            _logger.info("tombstone swept", resource=resource, bucket=bucket, key=key)
        case UploadSwept(bucket, key, upload_id):
            _logger.info("upload swept", bucket=bucket, key=key, upload_id=upload_id)
        case SweepFailed(what, error):
            _logger.warning("sweep failed", what=what, error=error)
        case ServiceUnreachable(service, error):
            _logger.error("service unreachable", service=service, error=error)
        case BucketAdministered(caller, operation, bucket, status):
            _logger.info("bucket administered", caller=caller, operation=operation, bucket=bucket, status=status)
        case CatalogWarning(table, warning):
            _logger.warning("catalog warning", table=table, warning=warning)
        case RequestFailed(request_id, method, path, error):
            _logger.error("request failed", request_id=request_id, method=method, path=path, exc_info=error)
