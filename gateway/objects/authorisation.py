"""Authorisation: what grants let a caller do with buckets and keys, before the store or any fence is asked."""

from dataclasses import replace

from gateway.auth.grants import IN_A_BUCKET, Action, Missing, Place, PlaceKind, nearest
from gateway.errors import GatewayError, ResourceMalformed, StoreError
from gateway.fencing.decision import Enforcement
from gateway.fencing.record import MissingGrant
from gateway.fencing.resource import escape
from gateway.http.body import offload
from gateway.objects.exchange import Exchange
from gateway.objects.key_rules import ObjectTarget, Resources
from gateway.objects.reads import ABOUT_A_BUCKET, LISTINGS
from gateway.objects.s3.access_control import destinations
from gateway.objects.s3.operations import Level, Operation, OperationKind
from gateway.objects.store import bucket_profile
from gateway.objects.store.bucket_profile import KEYS
from gateway.objects.store.probe import Profiles
from gateway.objects.store_rights import StoreRights
from gateway.record.denials import Denials

_WITH_A_DESTINATION = frozenset(
    {
        Operation.PUT_BUCKET_ANALYTICS_CONFIGURATION,
        Operation.PUT_BUCKET_INVENTORY_CONFIGURATION,
        Operation.PUT_BUCKET_LOGGING,
        Operation.PUT_BUCKET_REPLICATION,
    }
)

_SHOWN = 300
"""Characters of a key in an error."""


class ObjectAuthorisation:
    """Each method raises ``Denied``, once the denial is on record, or ``Unavailable`` if it cannot be recorded."""

    def __init__(self, resources: Resources, profiles: Profiles, denials: Denials, rights: StoreRights) -> None:
        self._resources, self._profiles, self._denials = resources, profiles, denials
        self._store_rights = rights

    async def check(self, exchange: Exchange) -> None:
        """Check a request by what its head tells. The keys in a document or a form are checked one by one, later."""
        request, rights = exchange.request, exchange.principal.rights
        operation, bucket = request.operation, request.bucket
        if request.source is not None:
            await self.reads(exchange, request.source.bucket, request.source.key)
        if operation.kind is OperationKind.ADMINISTRATION:
            granted = rights.bucket(Action.ADMINISTER, bucket)
            await self._require(exchange, Action.ADMINISTER, f"bucket {bucket}", granted=granted)
            await self._store_rights.check_headers(request)
        elif operation.level is Level.OBJECT and operation.kind is OperationKind.READ:
            await self.reads(exchange, bucket, request.key)
        elif operation.level is Level.OBJECT:
            await self.writes(exchange, bucket, request.key)
        elif operation.kind is not OperationKind.READ:
            granted = rights.inside(bucket, Action.WRITE)
            await self._require(exchange, Action.WRITE, f"bucket {bucket}", granted=granted)
        elif operation is Operation.LIST_BUCKETS:
            await self._require(exchange, Action.READ, "any bucket", granted=rights.inside(None, *IN_A_BUCKET))
        elif operation in ABOUT_A_BUCKET:
            granted = rights.inside(bucket, *IN_A_BUCKET)
            await self._require(exchange, Action.READ, f"bucket {bucket}", granted=granted)
        elif operation in LISTINGS:
            await self._lists(exchange, bucket, request.parameter("prefix") or "")
        else:
            await self._require(exchange, Action.READ, f"bucket {bucket}", granted=rights.bucket(Action.READ, bucket))

    async def reads(self, exchange: Exchange, bucket: str, key: str) -> None:
        """Check a read of one object, also as the source of a copy."""
        rights, target = exchange.principal.rights, self._target(bucket, key)
        place, resource = _object(bucket, key), self._resource(target)
        granted = place.limits(rights, Action.READ).allow(Action.READ, resource)
        if granted and not rights.bucket(Action.READ, bucket) and not await self._is_one_key(bucket, key):
            raise await self._denied(exchange, Missing(Action.READ, str(place), resource or _filed(bucket)))
        if not granted:
            raise await self._denied(exchange, _missing(exchange, Action.READ, place, resource))

    async def writes(self, exchange: Exchange, bucket: str, key: str) -> MissingGrant | None:
        """Check a write of one key, and the ACL that comes with it. Its spelling is checked with each write.

        Return the missing grant of a write that passes because its rule only observes. A grant names its key then, but
        not its resource (docs/decisions/106).
        """
        target, place = self._target(bucket, key), _object(bucket, key)
        limits, resource = place.limits(exchange.principal.rights, Action.WRITE), self._resource(target)
        lacking = None
        if not limits.cover_all(None if resource is None else (resource,)):
            missing = _missing(exchange, Action.WRITE, place, resource)
            observed = target is not None and target.mode is Enforcement.OBSERVE
            if not observed or not limits.placed or exchange.principal.is_anonymous:
                raise await self._denied(exchange, missing)
            # Without a resource, an enforcing rule does not come to grants.
            lacking = None if resource is None else MissingGrant(missing.action.value, missing.on)
        await self._store_rights.check_headers(exchange.request)
        return lacking

    async def administers(self, exchange: Exchange, body: bytes) -> None:
        """Check the buckets to which a configuration has the store write by itself, under no token."""
        if exchange.request.operation not in _WITH_A_DESTINATION:
            return
        for bucket in sorted(await offload(len(body), destinations, body)):
            granted = exchange.principal.rights.bucket(Action.ADMINISTER, bucket)
            await self._require(exchange, Action.ADMINISTER, f"bucket {bucket}", granted=granted)

    async def _lists(self, exchange: Exchange, bucket: str, prefix: str) -> None:
        rights = exchange.principal.rights
        granted = rights.below(Action.READ, bucket, prefix)
        if granted and prefix and not rights.bucket(Action.READ, bucket):
            granted = await self._is_one_key(bucket, prefix.removesuffix("/"))
        await self._require(exchange, Action.READ, f"keys that begin with {bucket}/{prefix}", granted=granted)

    async def _is_one_key(self, bucket: str, key: str) -> bool:
        """Return whether the store cannot take this key for another one, which no grant may be about."""
        if bucket_profile.mistakable(key, KEYS) is None:
            return True
        try:
            profile = await self._profiles.of(bucket)
        except StoreError:
            return False
        return bucket_profile.mistakable(key, profile.confused) is None

    def _target(self, bucket: str, key: str) -> ObjectTarget | None:
        """Return what fences a key. None if it is too long for a resource, or the gateway's own."""
        try:
            return self._resources.of_any(bucket, key)
        except (ResourceMalformed, StoreError):
            return None

    @staticmethod
    def _resource(target: ObjectTarget | None) -> str | None:
        return None if target is None or target.too_long else target.resource

    async def _require(self, exchange: Exchange, action: Action, on: str, *, granted: bool) -> None:
        """Deny a request about a bucket, or the keys below a prefix, unless it is granted."""
        if granted:
            return
        bucket = exchange.request.bucket
        near = nearest(exchange.principal.rights, action, Place(PlaceKind.BUCKET, bucket) if bucket else None)
        raise await self._denied(exchange, Missing(action, on, _filed(bucket), near))

    async def _denied(self, exchange: Exchange, missing: Missing) -> GatewayError:
        """Record a denial, and return its error."""
        return await self._denials.refuse(replace(missing, on=missing.on[:_SHOWN]), exchange.attempt())


def _object(bucket: str, key: str) -> Place:
    return Place(PlaceKind.BUCKET, f"{bucket}/{key}")


def _missing(exchange: Exchange, action: Action, place: Place, resource: str | None) -> Missing:
    resources = None if resource is None else (resource,)
    return Missing.at(exchange.principal.rights, action, place, resources, _filed(exchange.request.bucket))


def _filed(bucket: str) -> str:
    """Return the resource under which the record files a denial of a whole bucket."""
    return f"s3/{escape(bucket)}"
