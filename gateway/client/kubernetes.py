"""Tokens from Kubernetes: a Lease object has a holder, and the token is its ``leaseTransitions``.

The server ends no Lease. A waiter sees, by its own clock, that the record has not changed for its whole
duration, as in client-go's leader election. It takes the Lease by an update of the very version it has seen.
``leaseTransitions`` counts changes of the holder, so each acquire is a holder of its own here. The count starts anew
when the object is deleted, and ends at 2^31 - 1. See docs/sources.md.
"""

import hashlib
import math
import re
import ssl
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from gateway.client.cancellation import Remembered, whole
from gateway.client.errors import FencingError, NotAcquired, Unavailable
from gateway.client.http import Answer, Asking
from gateway.client.source import Attempt, Clock, Held, LockService, now

IN_CLUSTER: Final = "https://kubernetes.default.svc"
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
ANNOTATION: Final = "fencing-gateway/resource"
RIGHTS: Final = "get, create and update of leases.coordination.k8s.io in the namespace"
MOST_TRANSITIONS: Final = 2**31 - 1
CONFLICTS: Final = 5
# client-go's default, for a Lease without a duration.
DEFAULT_DURATION: Final = 15

Lease: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KubernetesHandle:
    """The Lease object, and the name of this one hold in it."""

    name: str
    identity: str


@dataclass(frozen=True, slots=True)
class _Observed:
    """A record of a Lease, and when it was first seen, by the clock of this source."""

    record: tuple[Any, ...]
    since: float


class KubernetesSource(LockService[KubernetesHandle]):
    """Locks that are Lease objects of one namespace.

    Inside a pod, no argument is needed. ``account`` is the directory of its service account. It has the namespace, the
    server's authority, and the token, which is read for each request, since it is replaced from time to time. Outside,
    give ``url``, ``token``, ``tls`` and ``namespace``; ``kubectl proxy`` needs ``url`` alone. ``poll``: seconds between
    two looks of a waiter. ``timeout``: seconds for one request. A ``ttl`` is rounded up to whole seconds.

    The Lease of a dead holder is free once it was seen unchanged for its whole duration. With ``wait`` 0, a later call
    of the same source gets it. A Lease that no other holder has taken can be renewed after its time, too.
    """

    service = "Kubernetes"
    handles = KubernetesHandle
    reuses = True

    def __init__(
        self,
        *,
        namespace: str | None = None,
        url: str | None = None,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        account: Path | None = None,
        poll: float = 1.0,
        timeout: float = 5.0,
        clock: Clock = now,
    ) -> None:
        super().__init__(clock)
        self._token = token
        self._tls = tls
        self._account = account or (ACCOUNT if url is None else None)
        self._namespace = namespace
        self.poll = poll
        self._ask = Asking(
            "Kubernetes", url or IN_CLUSTER, timeout=timeout, tls=self._authorities, headers=self._authorization
        )
        self._observed: Remembered[str, _Observed] = Remembered()

    async def _take(self, attempt: Attempt[KubernetesHandle]) -> Held | NotAcquired:
        name = name_of(attempt.resource)
        attempt.handle = handle = attempt.handle or KubernetesHandle(name, f"{attempt.holder} {uuid.uuid4()}")
        return await whole(self._try(attempt, handle))

    async def _keep(self, held: Held, handle: KubernetesHandle, ttl: float) -> float | None:
        seconds = _seconds(ttl)
        for _ in range(CONFLICTS):
            lease = await self._get(handle.name)
            if not _is(lease, held.value, handle):
                return None
            if await self._put(lease, renewTime=_today(), leaseDurationSeconds=seconds):
                return seconds
        raise _busy(handle.name)

    async def _give_back(self, handle: KubernetesHandle) -> None:
        """Name no holder. The Lease stays, for the count of its transitions."""
        for _ in range(CONFLICTS):
            lease = await self._get(handle.name)
            if lease.get("spec", {}).get("holderIdentity") != handle.identity:
                return
            if await self._put(lease, holderIdentity="", renewTime=_today(), leaseDurationSeconds=1):
                return
        raise _busy(handle.name)

    async def holds(self, held: Held) -> bool:
        """See ``Source.holds``: true until another holder takes it, after its time, too."""
        handle = self._handle(held)
        return _is(await self._get(handle.name), held.value, handle)

    async def aclose(self) -> None:
        await self._ask.aclose()

    async def _try(self, attempt: Attempt[KubernetesHandle], handle: KubernetesHandle) -> Held | NotAcquired:
        seconds = _seconds(attempt.ttl)
        for _ in range(CONFLICTS):
            asked, today = self._clock(), _today()
            lease = await self._get(handle.name)
            term = {"renewTime": today, "leaseDurationSeconds": seconds}
            spec = lease.get("spec", {})
            value = spec.get("leaseTransitions") or 0
            if spec.get("holderIdentity") == handle.identity:
                # Ours already, by a request whose answer was lost.
                done = await self._put(lease, **term)
            else:
                taken = self._taken(attempt.resource, handle.name, lease)
                if taken is not None:
                    return taken
                value = _next(value, handle.name)
                mine = {"holderIdentity": handle.identity, "acquireTime": today, "leaseTransitions": value, **term}
                done = await (self._put(lease, **mine) if lease else self._create(attempt.resource, handle.name, mine))
            if done:
                return attempt.held(value, asked + seconds)
        raise _busy(handle.name)

    def _taken(self, resource: str, name: str, lease: Lease) -> NotAcquired | None:
        """Return the holder and the end of its time as far as we have seen; None without a holder.

        The times in the record are by other clocks. Only a change of the record counts.
        """
        spec = lease.get("spec", {})
        holder = spec.get("holderIdentity")
        if not holder:
            return None
        record = (lease["metadata"].get("uid"), *(spec.get(field) for field in _RECORD))
        seen = self._observed.get(name)
        if seen is None or seen.record != record:
            # Since it has arrived here, and so later than it was written.
            self._observed[name] = seen = _Observed(record, self._clock())
        left = seen.since + (spec.get("leaseDurationSeconds") or DEFAULT_DURATION) - self._clock()
        return NotAcquired(resource, holder=_OURS.sub("", holder), expires_in=left) if left > 0 else None

    async def _get(self, name: str) -> Lease:
        """Read the object; an empty one if there is none. A read without a version never comes from a cache."""
        answer = await self._ask("GET", f"{self._path()}/{name}")
        if answer.status == 404:
            return {}
        return self._lease(answer)

    async def _create(self, resource: str, name: str, spec: Mapping[str, Any]) -> bool:
        """Create the object; return False if another client was quicker."""
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "annotations": {ANNOTATION: resource}},
            "spec": spec,
        }
        answer = await self._ask("POST", self._path(), content=body)
        return answer.status != 409 and bool(self._lease(answer))

    async def _put(self, lease: Lease, **changes: object) -> bool:
        """Change this very version of the object. False where there is another one by now, or none."""
        body = {**lease, "spec": {**lease.get("spec", {}), **changes}}
        answer = await self._ask("PUT", f"{self._path()}/{lease['metadata']['name']}", content=body)
        return answer.status not in (404, 409) and bool(self._lease(answer))

    def _lease(self, answer: Answer) -> Lease:
        if answer.status not in (200, 201):
            raise self._ask.refused(answer, RIGHTS)
        lease: Lease = answer.body
        return lease

    def _path(self) -> str:
        if self._namespace is None:
            self._namespace = self._of_account("namespace") or "default"
        return f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases"

    def _authorization(self) -> Mapping[str, str]:
        token = self._token or self._of_account("token")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _authorities(self) -> ssl.SSLContext | None:
        if self._tls is None and self._account is not None:
            return ssl.create_default_context(cadata=self._of_account("ca.crt"))
        return self._tls

    def _of_account(self, name: str) -> str | None:
        if self._account is None:
            return None
        try:
            return (self._account / name).read_text().strip()
        except OSError as error:
            raise FencingError(
                f"The pod's service account has no {name}: {error}.", advice="Outside of a pod, give url and token."
            ) from error


_RECORD: Final = ("holderIdentity", "acquireTime", "renewTime", "leaseDurationSeconds", "leaseTransitions")
_OURS: Final = re.compile(r" [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def name_of(resource: str) -> str:
    """Return the name of a lock's Lease: the resource's own if it is an RFC 1123 label, else a digest of it.

    The readable part before the digest ends with a dot, which no label has: no two resources have one name.
    """
    if _LABEL.fullmatch(resource):
        return resource
    readable = re.sub(r"[^a-z0-9]+", "-", resource.lower())[:60].strip("-") or "lock"
    return f"{readable}.{hashlib.sha256(resource.encode()).hexdigest()[:40]}"


def _next(transitions: int, name: str) -> int:
    if transitions >= MOST_TRANSITIONS:
        raise FencingError(
            f"The Lease {name} has had 2^31 - 1 transitions, and has no higher token.",
            advice="Delete the Lease, and have an administrator start a new epoch of the resource.",
        )
    return transitions + 1


def _is(lease: Lease, value: int, handle: KubernetesHandle) -> bool:
    spec = lease.get("spec", {})
    return (spec.get("holderIdentity"), spec.get("leaseTransitions")) == (handle.identity, value)


def _busy(name: str) -> Unavailable:
    return Unavailable(f"Others change the Lease {name} all the time.")


def _seconds(ttl: float) -> int:
    return max(1, math.ceil(ttl))


def _today() -> str:
    # For people, and to make the record differ from the one before: no client compares it with a clock.
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # noqa: TID251
