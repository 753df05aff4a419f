"""The rights that a request would give others at the store: none to write, and none to read beyond the grants.

The store does not ask the gateway about them. A right to write there would be an unfenced way in. A right to read would
show what no grant shows, or tell a client that an object is public which is not.
"""

from collections.abc import Sequence

from gateway.auth.grants import Action, Rights
from gateway.errors import ResourceMalformed, RightsAtTheStore, StoreError
from gateway.objects.key_rules import Resources
from gateway.objects.s3 import access_control, xml
from gateway.objects.s3.access_control import AclRight, PolicyRight
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import S3Request
from gateway.objects.store.client import query_of
from gateway.objects.store.operations import Upstream

_PUBLIC = "the caller anonymous lacks the grant read for all of it"


class StoreRights:
    """Checks ACLs and policies. ``public``: the rights of the caller ``anonymous``, and so of all the world.

    Each method raises ``RightsAtTheStore``, or ``StoreError`` for what cannot be read.
    """

    def __init__(self, upstream: Upstream, resources: Resources, public: Rights) -> None:
        self._upstream, self._resources, self._public = upstream, resources, public

    async def check_headers(self, request: S3Request) -> None:
        """Check the ACL in the headers of a request, or in the fields of a form."""
        await self._check_acl(request, access_control.acl_of_headers(request.headers), f"/{request.bucket}")

    async def check_document(self, request: S3Request, body: bytes) -> None:
        """Check the document of a request, which may be an ACL or a policy."""
        if request.operation is Operation.PUT_BUCKET_POLICY:
            for allowed in access_control.policy_rights(body, request.bucket):
                self._check_policy(request.bucket, allowed)
        elif request.operation in (Operation.PUT_OBJECT_ACL, Operation.PUT_BUCKET_ACL) and body:
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

    async def _owner(self, path: str, request: S3Request) -> str | None:
        """Return the id of the owner of a bucket or object; None where the store does not say."""
        query = query_of({"acl": "", "versionId": request.parameter("versionId")})
        async with await self._upstream.send("GET", path, query) as response:
            owner, _ = xml.read_acl(await response.read())
        return owner or None
