"""The prose of the API's description: the subjects of its routes, and examples of bodies. Pure data.

``/v1/docs`` and docs/reference/http.md show both. Each route has a summary of its own, beside its code.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

INTRODUCTION = """\
Locks, fences, the record of refused writes, and the gateway itself, as JSON over HTTP.

- A caller proves itself with an API key or an identity token: `Authorization: Bearer …`. Grants decide what it may do.
- The name of a resource stands in the query, encoded like any value: `POST /v1/lease?resource=job%2F1`. It may also
  stand in the path, exactly as lists print it: `POST /v1/leases/job/1` is the same request.
- Tokens are strings, because a JSON number cannot hold the larger ones exactly.
- Times are by the database's clock.
- Each error is a problem document (RFC 9457) with a `code`, and with `advice` for the next step.
- Rows are at `/v1/tables/`, in PostgREST's dialect. Objects are at `/{bucket}/{key}`, in S3's.
"""


class Subject(Enum):
    """A subject of the API, with what a caller has to know about it. The order is that of the page."""

    LOCKS = (
        "Locks",
        (
            "The lease service: a holder acquires a lock with a fencing token, and renews the lease until it is done. "
            "A lock has a queue, and may be shared. A holder that was paused past its lease is overtaken as soon as "
            "the next holder has written or called a barrier."
        ),
    )
    FENCES = (
        "Fences",
        (
            "The fence of a resource is the highest token seen. A new holder calls the barrier before it reads: from "
            "then on, no write with a lower token takes effect. The lease service or another one issues the tokens."
        ),
    )
    WRITES = (
        "Writes",
        (
            "Writes to several tables in one transaction, and temporary S3 keys that carry a token for clients that "
            "cannot send one. Single writes go to tables and buckets themselves."
        ),
    )
    RECORD = (
        "The record",
        (
            "Every refused write, takeover and lock event, in one order and chained by hashes. The record can be "
            "searched, exported and followed. A caller without the grant `audit` sees its own entries only."
        ),
    )
    WEBHOOKS = ("Webhooks", "The receivers of new entries, and their progress.")
    OPERATION = ("Operation", "Health, metrics, and the configuration in force. Each gateway answers for itself.")

    @property
    def title(self) -> str:
        return str(self.value[0])


TAGS = [{"name": one.title, "description": one.value[1]} for one in Subject]
"""The subjects as OpenAPI has them."""

_LEASE = "7b9c1c1e-8d0f-4f3a-9a55-0d8f6c1f2a11"
_REJECTION = "5d7c9a80-1b6e-4a63-8e8f-6f0a3c1d2e4b"
_HASH = "3f2a9c" + "0" * 58
_FENCE = {
    "resource": "order/5",
    "token": "34",
    "raised_by": "worker-b",
    "caller": "worker",
    "raised_at": "2026-01-01T00:00:31Z",
}
_LOCK = {
    "resource": "order/5",
    "mode": "exclusive",
    "token": "34",
    "holders": [
        {
            "holder": "worker-b",
            "caller": "worker",
            "mode": "exclusive",
            "token": "34",
            "acquired_at": "2026-01-01T00:00:30Z",
            "expires_at": "2026-01-01T00:01:00Z",
            "expires_in": 24.5,
        }
    ],
    "waiters": 1,
    "queue": [{"holder": "worker-c", "caller": "worker", "mode": "exclusive", "since": "2026-01-01T00:00:33Z"}],
    "delayed_for": None,
}

_INCIDENT = {
    "id": _REJECTION,
    "state": "acknowledged",
    "reason": "token-stale",
    "resource": "order/5",
    "token": "33",
    "holder": "worker-a",
    "caller": "worker",
    "fence": "34",
    "overtaken_by": "worker-b",
    "overtaken_at": "2026-01-01T00:00:31Z",
    "count": 12,
    "refused": 12,
    "passed": 0,
    "inside": 12,
    "first": "2026-01-01T00:00:32Z",
    "last": "2026-01-01T00:04:10Z",
    "renewed": False,
    "missing": None,
    "acknowledgements": [
        {
            "id": "0c1b5a52-64d8-4f0b-9d5e-4d1d7f3a9b60",
            "at": "2026-01-01T00:05:00Z",
            "by": "ada",
            "note": "Stopped worker-a on host db-3.",
        }
    ],
}

EXAMPLES: Mapping[str, Any] = {
    "AcquireRequest": {"holder": "worker-b", "ttl": 30, "wait": 10, "request": "nightly-17", "barrier": True},
    "RenewRequest": {"ttl": 30},
    "RenewManyRequest": {"leases": [{"resource": "order/5", "lease": _LEASE, "ttl": 30}]},
    "WithdrawRequest": {"holder": "worker-b", "request": "nightly-17"},
    "LeaseView": {
        "resource": "order/5",
        "lease": _LEASE,
        "holder": "worker-b",
        "mode": "exclusive",
        "token": "34",
        "sequencer": None,
        "acquired_at": "2026-01-01T00:00:30Z",
        "expires_at": "2026-01-01T00:01:00Z",
        "expires_in": 30.0,
    },
    "RenewedList": {"leases": [{"resource": "order/5", "lease": _LEASE, "expires_in": 30.0}]},
    "LockView": _LOCK,
    "LockList": {"locks": [_LOCK], "after": None},
    "BreakRequest": {"expected": "34", "reason": "the host of worker-b is gone"},
    "BarrierRequest": {"token": "34", "holder": "worker-b"},
    "EpochRequest": {"expected": "34", "reason": "etcd was restored from a backup"},
    "FenceView": _FENCE,
    "FenceList": {"fences": [_FENCE], "after": None},
    "SequencerRequest": {"sequencer": "order/5:exclusive:34:kP0uZ3mY8QkkP0uZ3mY8QkkP0uZ3mY8QkkP0uZ3mY8Q"},
    "SequencerView": {
        "resource": "order/5",
        "mode": "exclusive",
        "token": "34",
        "authentic": True,
        "held": True,
        "fence": "34",
        "overtaken": False,
    },
    "TransactionRequest": {
        "writes": [
            {"method": "PATCH", "table": "orders", "query": "id=eq.5", "body": {"state": "paid"}, "token": "34"},
            {"method": "POST", "table": "ledger", "body": {"order_id": 5, "amount": 120}, "resource": "order/5"},
        ]
    },
    "TransactionAnswer": {
        "results": [
            {"status": 204, "headers": {"Content-Range": "0-0/*"}, "body": None},
            {"status": 201, "headers": {"Content-Range": "*/*"}, "body": None},
        ]
    },
    "CredentialsRequest": {"resource": "s3/reports/5/**", "token": "34", "holder": "worker-b", "ttl": 3600},
    "CredentialsView": {
        "access_key_id": "FENCED7QK2M4",
        "secret_access_key": "mV3q8c1x",
        "session_token": "eyJyZXNvdXJjZSI6InMzL3JlcG9ydHMvNS8qKiJ9",
        "expiration": "2026-01-01T01:00:00Z",
        "resource": "s3/reports/5/**",
        "token": "34",
        "holder": "worker-b",
        "read": "own",
    },
    "IncidentView": _INCIDENT,
    "IncidentList": {"now": "2026-01-01T00:05:30Z", "complete": True, "incidents": [_INCIDENT]},
    "AcknowledgeRequest": {"note": "Stopped worker-a on host db-3."},
    "HeadView": {"position": 4711, "hash": _HASH},
    "ConfigurationView": {"toml": '[server]\nlisten = "0.0.0.0:8080"\n'},
    "ReloadView": {"changes": ["fencing.mode: observe -> enforce"]},
    "HealthView": {"postgres": "ok", "s3": "ok"},
    "WebhookList": {
        "webhooks": [
            {
                "name": "on-call",
                "position": 4711,
                "behind": 0,
                "delivered_at": "2026-01-01T00:00:32Z",
                "failures": 0,
                "failing_since": None,
                "last_error": None,
                "not_before": None,
                "paused_at": None,
            }
        ]
    },
    "TestView": {"delivered": True, "status": 204, "error": None},
    "Problem": {
        "type": "urn:fencing-gateway:token-stale",
        "title": "The fencing token has been overtaken",
        "status": 412,
        "detail": "The token 33 for order/5 has been overtaken by 34.",
        "code": "token-stale",
        "advice": "Stop writing: a newer holder has taken over and retrying cannot succeed. Acquire the lock again to "
        "get a newer token.",
        "resource": "order/5",
        "token": "33",
        "fence": "34",
        "raised_by": "worker-b",
        "raised_at": "2026-01-01T00:00:31Z",
        "rejection": _REJECTION,
    },
}
"""An example of each body, by the name of its model. Each follows the model, as a test holds."""
