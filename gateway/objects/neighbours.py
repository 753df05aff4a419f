"""The object planes of several databases. In a bucket that they share, each fences the keys that it owns.

A request about one key reaches the plane of that key at once. Lists of keys, forms and listings reach the plane of
their bucket, which finds the others here. So each key is fenced by its own plane, whatever the request names it in.
"""

from typing import TYPE_CHECKING

from gateway.errors import StoreError
from gateway.fencing.ownership import Ownership

if TYPE_CHECKING:
    from gateway.objects.pipeline import ObjectPlane
    from gateway.objects.s3.request import S3Request


class Neighbours:
    """The planes of all databases. Without rules of ownership there is only one."""

    def __init__(self, ownership: Ownership | None = None) -> None:
        self._ownership = ownership
        self._planes: dict[str, ObjectPlane] = {}

    def join(self, database: str | None, plane: "ObjectPlane") -> None:
        """Add the plane of a database. Its requests come later."""
        self._planes[database or ""] = plane

    def of_key(self, bucket: str, key: str) -> "ObjectPlane":
        """Return the plane that fences a key of a bucket in this store."""
        return self._planes["" if self._ownership is None else self._ownership.of_key(bucket, key)]

    def of_keys(self, bucket: str, prefix: str) -> "list[ObjectPlane]":
        """Return the planes that fence keys with a prefix."""
        names = [""] if self._ownership is None else self._ownership.of_keys(bucket, prefix)
        return [self._planes[name] for name in names]

    def is_shared(self, bucket: str) -> bool:
        """Return whether several databases have keys in a bucket."""
        return len(self.of_keys(bucket, "")) > 1

    def check_source(self, request: "S3Request", plane: "ObjectPlane") -> None:
        """Raise ``StoreError`` if a copy that reaches a plane reads a bucket in another store."""
        if request.source is None or self._ownership is None:
            return
        other = self._planes.get(self._ownership.of_bucket(request.source.bucket))
        if other is None or other.upstream is not plane.upstream:
            raise StoreError("NotImplemented", 501, "A copy cannot have its source in another store. Upload it.")
