"""Authorisation: what grants let a caller do with buckets and keys, before the store or any fence is asked.

Fenced credentials read keys whose resources their scope covers, and list nothing else. ``ReadScope`` refuses each of
their reads that no rule here allows. A caller without a scope reads what its grants allow.

A request may also give others rights at the store, by an ACL or a policy. The store does not ask the gateway about
these. A right to write there would be an unfenced way in. A right to read would show what no grant shows, or tell a
client that an object is public which is not.
"""

from collections.abc import Sequence
from dataclasses import replace

from gateway.auth.grants import IN_A_BUCKET, Action, Authorisation, Missing, Place, PlaceKind, Rights, nearest
from gateway.auth.principal import FencedScope
from gateway.errors import GatewayError, ResourceMalformed, RightsAtTheStore, StoreError
from gateway.fencing.decision import Enforcement
from gateway.fencing.record import MissingGrant
from gateway.fencing.resource import covers, escape, includes, overlap
from gateway.http.body import offload
from gateway.objects.exchange import Exchange
from gateway.objects.key_rules import ObjectTarget, Resources
from gateway.objects.s3 import access_control, xml
from gateway.objects.s3.access_control import AclRight, PolicyRight, destinations
from gateway.objects.s3.operations import Level, Operation, OperationKind
from gateway.objects.s3.request import S3Request
from gateway.objects.store.client import query_of
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import Profiles
from gateway.record.refusals import Denials

LISTINGS = frozenset(
    {
        Operation.LIST_MULTIPART_UPLOADS,
        Operation.LIST_OBJECTS,
        Operation.LIST_OBJECTS_V2,
        Operation.LIST_OBJECT_VERSIONS,
    }
)
# Clients ask for these before they write. They tell that the bucket exists, its location, and what a write does there.
_BEFORE_A_WRITE = frozenset({Action.WRITE})
ABOUT_A_BUCKET = {
    Operation.HEAD_BUCKET: IN_A_BUCKET,
    Operation.GET_BUCKET_LOCATION: IN_A_BUCKET,
    Operation.GET_BUCKET_CORS: _BEFORE_A_WRITE,
    Operation.GET_BUCKET_VERSIONING: _BEFORE_A_WRITE,
}
"""Operations for which any of these actions is enough, granted on anything in the bucket."""

_EXPECTED_OWNER = "x-amz-expected-bucket-owner"
_PUBLIC = "the caller anonymous lacks the grant read for all of it"


class StoreRights:
    """Checks ACLs and policies. ``public``: the rights of the caller ``anonymous``, and so of all the world.

    Each method raises ``RightsAtTheStore``, or ``StoreError`` for what cannot be read.
    """

    def __init__(self, upstream: Upstream, resources: Resources, public: Rights) -> None:
        self._upstream, self._resources, self._public = upstream, resources, public

    async def check_headers(self, request: S3Request) -> None:
        await self._check_acl(request, access_control.acl_of_headers(request.headers), f"/{request.bucket}")

    async def check_document(self, request: S3Request, body: bytes) -> None:
        if request.operation is Operation.PUT_BUCKET_POLICY:
            for allowed in access_control.policy_rights(body, request.bucket):
                self._check_policy(request.bucket, allowed)
        elif request.operation in (Operation.PUT_OBJECT_ACL, Operation.PUT_BUCKET_ACL) and body:
            if any(access_control.is_acl(name) for name, _ in request.headers):
                raise StoreError.known("UnexpectedContent")
            await self._check_acl(request, access_control.acl_of_document(body), request.raw_path)

    async def _check_acl(self, request: S3Request, rights: Sequence[AclRight], path: str) -> None:
        """``path``: the bucket or object whose owner may have every right."""
        if not rights:
            return
        ids = {right.grantee for right in rights} - {None}
        owner = await self._owner(path, request) if ids else None
        others = [right for right in rights if owner is None or right.grantee != owner]
        if any(right.writes for right in others):
            raise RightsAtTheStore("This ACL would let others write at the store, past the gateway and its fences.")
        if request.key:
            if others and not self._is_public(request.bucket, request.key):
                raise RightsAtTheStore(f"This ACL would show the object to others at the store, but {_PUBLIC}.")
        elif any(right.grantee is None for right in others) and not self._public.bucket(Action.READ, request.bucket):
            raise RightsAtTheStore(f"This ACL would open the bucket at the store to all the world, but {_PUBLIC}.")

    def _check_policy(self, bucket: str, allowed: PolicyRight) -> None:
        if allowed.writes:
            raise RightsAtTheStore("This policy would let others write at the store, past the gateway and its fences.")
        if allowed.public and not all(self._covers(bucket, keys) for keys in allowed.keys):
            raise RightsAtTheStore(f"This policy would open the bucket at the store to all the world, but {_PUBLIC}.")

    def _covers(self, bucket: str, keys: tuple[str, bool] | None) -> bool:
        if keys is None:
            return self._public.bucket(Action.READ, bucket)
        name, is_prefix = keys
        return self._public.below(Action.READ, bucket, name) if is_prefix else self._is_public(bucket, name)

    def _is_public(self, bucket: str, key: str) -> bool:
        try:
            resource = self._resources.of_any(bucket, key).resource
        except (ResourceMalformed, StoreError):
            resource = None
        return self._public.key(Action.READ, bucket, key).allow(Action.READ, resource)

    async def check_owner(self, request: S3Request) -> None:
        """Refuse a write to a bucket of another owner than it expects, whatever the write then asks of the store.

        A delete that finds nothing asks it for nothing, and a tombstone is no copy of the request.
        """
        expected = [pair for pair in request.headers if pair[0] == _EXPECTED_OWNER]
        if not expected or request.operation.kind not in (OperationKind.WRITE, OperationKind.STAGING):
            return
        if await self._upstream.look_at_bucket(request.bucket, expected) not in (200, 404):
            reason = "The bucket has another owner, or the store does not let the gateway ask for it."
            raise StoreError.known("AccessDenied", reason=reason)

    async def bucket_exists(self, bucket: str) -> bool:
        """Return whether the store has a bucket that is the gateway's. Raises ``Unavailable``."""
        return await self._upstream.look_at_bucket(bucket) == 200

    async def _owner(self, path: str, request: S3Request) -> str | None:
        """Return the id of the owner of a bucket or object, ``UNNAMED`` if its own ACL shows none; None if unknown."""
        query = query_of({"acl": "", "versionId": request.parameter("versionId")})
        async with await self._upstream.send("GET", path, query) as response:
            document = await response.read()
        owner, _ = xml.read_acl(document)
        return owner or (access_control.UNNAMED if access_control.names_no_owner(document) else None)


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


class ObjectAuthorisation(Authorisation):
    """The checks of requests to buckets and objects."""

    def __init__(self, resources: Resources, profiles: Profiles, denials: Denials, rights: StoreRights) -> None:
        super().__init__(denials.refuse)
        self._resources, self._profiles = resources, profiles
        self._store_rights, self._scope = rights, ReadScope(resources, profiles)

    async def check(self, exchange: Exchange) -> Exchange:
        """Check a request by what its head tells, and return it. A write is authorised for its key then.

        The keys in a document or a form are checked one by one, later. Reads by fenced credentials are also held
        against their scope.
        """
        lacking = await self._check_grants(exchange)
        scope = exchange.principal.scope
        if scope is not None:
            await self._scope.check(exchange.request, scope)
        if scope is None or self._scope.writes_in(scope, exchange.request.bucket):  # others do not hear of the bucket
            await self._store_rights.check_owner(exchange.request)
        operation = exchange.request.operation
        if operation.level is not Level.OBJECT or operation.kind is OperationKind.READ:
            return exchange
        return replace(exchange, authorised=(exchange.request.key, lacking))

    async def _check_grants(self, exchange: Exchange) -> MissingGrant | None:
        request, rights = exchange.request, exchange.principal.rights
        operation, bucket = request.operation, request.bucket
        if request.source is not None:
            await self.reads(exchange, request.source.bucket, request.source.key)
        if operation.kind is OperationKind.ADMINISTRATION:
            await self._check_administration(exchange)
            await self._store_rights.check_headers(request)
        elif operation.level is Level.OBJECT and operation.kind is OperationKind.READ:
            await self.reads(exchange, bucket, request.key)
        elif operation.level is Level.OBJECT:
            return await self.writes(exchange, bucket, request.key)
        elif operation.kind is not OperationKind.READ:
            granted = rights.inside(bucket, Action.WRITE)
            await self._require(exchange, Action.WRITE, f"bucket {bucket}", granted=granted)
        elif operation is Operation.LIST_BUCKETS:
            await self._require(exchange, Action.READ, "any bucket", granted=rights.inside(None, *IN_A_BUCKET))
        elif actions := ABOUT_A_BUCKET.get(operation):
            granted = rights.inside(bucket, *actions) or rights.bucket(Action.READ, bucket)
            await self._require(exchange, Action.READ, f"bucket {bucket}", granted=granted)
        elif operation in LISTINGS:
            await self._lists(exchange, bucket, request.parameter("prefix") or "")
        else:
            await self._require(exchange, Action.READ, f"bucket {bucket}", granted=rights.bucket(Action.READ, bucket))
        return None

    async def _check_administration(self, exchange: Exchange) -> None:
        """Check a request that administers a bucket. Fenced credentials are good for objects alone.

        Some clients ask for the creation of a bucket before each upload. A caller that may write there hears that the
        bucket exists, as it does from HeadBucket. The store is never asked to create it then.
        """
        bucket, scope, rights = exchange.request.bucket, exchange.principal.scope, exchange.principal.rights
        granted = rights.bucket(Action.ADMINISTER, bucket)
        writes = rights.inside(bucket, Action.WRITE) and (scope is None or self._scope.writes_in(scope, bucket))
        creates = exchange.request.operation is Operation.CREATE_BUCKET
        if creates and writes and not granted and await self._store_rights.bucket_exists(bucket):
            raise StoreError.known("BucketAlreadyOwnedByYou")
        if scope is not None:
            advice = "Fenced credentials administer no bucket. Use the keys of a caller with the grant administer."
            raise StoreError.known("AccessDenied", advice)
        await self._require(exchange, Action.ADMINISTER, f"bucket {bucket}", granted=granted)

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
        not its resource (docs/decisions/077).
        """
        target, place = self._target(bucket, key), _object(bucket, key)
        limits, resource = place.limits(exchange.principal.rights, Action.WRITE), self._resource(target)
        mode = Enforcement.ENFORCE if target is None else target.mode
        covered = self.covered(limits, None if resource is None else (resource,), mode, exchange.principal.name)
        lacking = None
        if covered is None or (resource is not None and resource not in covered):
            missing = _missing(exchange, Action.WRITE, place, resource)
            if covered is None:
                raise await self._denied(exchange, missing)
            # Without a resource, an enforcing rule does not come to grants.
            lacking = MissingGrant(missing.action.value, missing.on)
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
        try:
            return not await self._profiles.confuses(bucket, key)
        except StoreError:
            return False

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
        return await self._refuse(replace(missing, on=missing.on[:_SHOWN]), exchange.attempt())


def _object(bucket: str, key: str) -> Place:
    return Place(PlaceKind.BUCKET, f"{bucket}/{key}")


def _missing(exchange: Exchange, action: Action, place: Place, resource: str | None) -> Missing:
    resources = None if resource is None else (resource,)
    return Missing.at(exchange.principal.rights, action, place, resources, _filed(exchange.request.bucket))


def _filed(bucket: str) -> str:
    """Return the resource under which the record files a denial of a whole bucket."""
    return f"s3/{escape(bucket)}"


class ReadScope:
    """Holds reads by fenced credentials against their scope."""

    def __init__(self, resources: Resources, profiles: Profiles) -> None:
        self._resources = resources
        self._profiles = profiles

    async def check(self, request: S3Request, scope: FencedScope) -> None:
        """Raise ``StoreError`` AccessDenied for a read beyond the scope, or for a copy from beyond it."""
        if scope.reads_everything:
            return
        if request.source is not None:
            await self._check_key(scope, request.source.bucket, request.source.key)
        operation = request.operation
        if operation.kind is not OperationKind.READ:
            return
        if operation.level is Level.OBJECT:
            await self._check_key(scope, request.bucket, request.key)
        elif operation in LISTINGS:
            await self._check_listing(scope, request.bucket, request.parameter("prefix") or "")
        elif not self._asks_about(operation, scope, request.bucket):
            raise _beyond(scope, f"{operation} is about more than that")

    async def _check_key(self, scope: FencedScope, bucket: str, key: str) -> None:
        resource = self._resources.of_any(bucket, key).resource
        if not any(covers(pattern, resource) for pattern in scope.readable):
            raise _beyond(scope, f"this key belongs to {resource}")
        await self._check_spelling(scope, bucket, key)

    async def _check_listing(self, scope: FencedScope, bucket: str, prefix: str) -> None:
        for pattern in self._resources.below(bucket, prefix):
            if not any(includes(readable, pattern) for readable in scope.readable):
                raise _beyond(
                    scope,
                    f"the prefix {prefix[:200]!a} may show keys of {pattern}. List with a longer prefix that ends in a "
                    "slash",
                )
        if prefix:
            await self._check_spelling(scope, bucket, prefix.removesuffix("/"))

    async def _check_spelling(self, scope: FencedScope, bucket: str, key: str) -> None:
        """Refuse a key that the store may take for another one, whose resource is not checked here."""
        try:
            confused = await self._profiles.confuses(bucket, key)
        except StoreError as error:
            reason = f"whether the store of bucket {bucket} keeps {key[:200]!a} apart from others cannot be tried"
            raise _beyond(scope, reason) from error
        if confused:
            raise _beyond(scope, f"the store of bucket {bucket} may take {key[:200]!a} for another key")

    def _asks_about(self, operation: Operation, scope: FencedScope, bucket: str) -> bool:
        if operation not in ABOUT_A_BUCKET:
            return False
        if ABOUT_A_BUCKET[operation] == _BEFORE_A_WRITE:
            return self.writes_in(scope, bucket)
        return self._has_a_key_in(scope.readable, bucket)

    def writes_in(self, scope: FencedScope, bucket: str) -> bool:
        """Return whether a bucket can have a key that fenced credentials write."""
        return self._has_a_key_in((scope.pattern,), bucket)

    def _has_a_key_in(self, patterns: Sequence[str], bucket: str) -> bool:
        below = list(self._resources.below(bucket, ""))
        return any(overlap(one, pattern) for one in patterns for pattern in below)


def _beyond(scope: FencedScope, reason: str) -> StoreError:
    return StoreError.known(
        "AccessDenied",
        f"These fenced credentials read what {', '.join(scope.readable)} covers, and {reason}. Ask for credentials "
        'with a wider "read" where their user needs more.',
    )
