"""The reads of fenced credentials: keys whose resources their grant covers, and listings that show no other key.

Every request is checked before anything is asked of the store. The check refuses each read that no rule here allows.
A caller without a grant reads what the gateway's own keys can.
"""

from gateway.auth.principal import Grant
from gateway.errors import StoreError
from gateway.fencing.resource import covers, includes, overlap
from gateway.objects.probe.probe import Profiles
from gateway.objects.resource_rules import Resources
from gateway.objects.s3 import key_spellings
from gateway.objects.s3.bucket_profile import KEYS
from gateway.objects.s3.operations import Kind, Level, Operation
from gateway.objects.s3.request import S3Request

_LISTINGS = frozenset(
    {
        Operation.LIST_MULTIPART_UPLOADS,
        Operation.LIST_OBJECTS,
        Operation.LIST_OBJECTS_V2,
        Operation.LIST_OBJECT_VERSIONS,
    }
)
# Clients ask for these before they write; they tell no more than that the bucket is there, and where.
_OF_A_BUCKET = frozenset({Operation.HEAD_BUCKET, Operation.GET_BUCKET_LOCATION})


class ReadScope:
    """Holds reads by fenced credentials against their grant."""

    def __init__(self, resources: Resources, profiles: Profiles) -> None:
        self._resources = resources
        self._profiles = profiles

    async def check(self, request: S3Request, grant: Grant | None) -> None:
        """Raise ``StoreError`` AccessDenied for a read beyond the grant, or for a copy from beyond it."""
        if grant is None or grant.reads_everything:
            return
        if request.source is not None:
            await self._check_key(grant, request.source.bucket, request.source.key)
        operation = request.operation
        if operation.kind is not Kind.READ:
            return
        if operation.level is Level.OBJECT:
            await self._check_key(grant, request.bucket, request.key)
        elif operation in _LISTINGS:
            await self._check_listing(grant, request.bucket, request.parameter("prefix") or "")
        elif operation not in _OF_A_BUCKET or not self._has_a_key_in(grant, request.bucket):
            raise _denied(grant, f"{operation} is about more than that")

    async def _check_key(self, grant: Grant, bucket: str, key: str) -> None:
        resource = self._resources.target(bucket, key).resource
        if not any(covers(pattern, resource) for pattern in grant.readable):
            raise _denied(grant, f"this key belongs to {resource}")
        await self._check_spelling(grant, bucket, key)

    async def _check_listing(self, grant: Grant, bucket: str, prefix: str) -> None:
        for pattern in self._resources.below(bucket, prefix):
            if not any(includes(readable, pattern) for readable in grant.readable):
                raise _denied(
                    grant,
                    f"the prefix {prefix[:200]!a} may show keys of {pattern}. List with a longer prefix that ends in a "
                    "slash",
                )
        if prefix:
            await self._check_spelling(grant, bucket, prefix.removesuffix("/"))

    async def _check_spelling(self, grant: Grant, bucket: str, key: str) -> None:
        """Refuse what the store may take for another key, of which nobody has looked up the resource."""
        if key_spellings.mistakable(key, KEYS) is None:
            return
        try:
            profile = await self._profiles.of(bucket)
        except StoreError as error:
            reason = f"whether the store of bucket {bucket} keeps {key[:200]!a} apart from others cannot be tried"
            raise _denied(grant, reason) from error
        if key_spellings.mistakable(key, profile.confused) is not None:
            raise _denied(grant, f"the store of bucket {bucket} may take {key[:200]!a} for another key")

    def _has_a_key_in(self, grant: Grant, bucket: str) -> bool:
        below = list(self._resources.below(bucket, ""))
        return any(overlap(readable, pattern) for readable in grant.readable for pattern in below)


def _denied(grant: Grant, reason: str) -> StoreError:
    return StoreError(
        "AccessDenied",
        403,
        f"These fenced credentials read what {', '.join(grant.readable)} covers, and {reason}. Ask for credentials "
        'with a wider "read" where their user needs more.',
    )
