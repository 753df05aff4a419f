"""The naming of buckets that this gateway may write under: the configured one, where it is the one in force."""

from uuid import UUID

from gateway.db import naming as registry
from gateway.db.database import Database
from gateway.errors import SqlError, Unavailable
from gateway.fencing.naming import check
from gateway.objects.resource_rules import Resources

_CHANGED = "FN503"


class BucketNamings:
    """The proven namings, each read once and remembered until an announcement finds that it has changed."""

    def __init__(self, database: Database, resources: Resources) -> None:
        self._database, self._resources = database, resources
        self._proven: dict[str, UUID] = {}

    async def generation(self, bucket: str) -> UUID:
        """Return the generation that announcements prove. The first write to a bucket registers its naming.

        Raise ``NamingChanged`` if another naming is in force.
        """
        known = self._proven.get(bucket)
        if known is not None:
            return known
        naming = self._resources.naming(bucket)
        registered = await registry.bucket(self._database, bucket)
        if registered is None:
            await registry.register_bucket(self._database, bucket, naming)
            registered = await registry.bucket(self._database, bucket)
        if registered is None:
            raise Unavailable(f"The naming of the bucket {bucket} cannot be registered.")
        check(f"the bucket {bucket}", naming, registered)
        self._proven[bucket] = registered.generation
        return registered.generation

    def has_changed(self, bucket: str, error: SqlError) -> bool:
        """Return whether an announcement failed because the naming has changed. If so, it is read again."""
        changed = error.sqlstate == _CHANGED
        if changed:
            self._proven.pop(bucket, None)
        return changed
