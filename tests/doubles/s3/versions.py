"""A bucket: its objects, and behind each the versions of its key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.objects import NULL_VERSION, DeleteMarker, StoredObject, Version
from tests.doubles.s3.uploads import Uploads

Versioning = Literal["", "Enabled", "Suspended"]
_VERSION_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(slots=True)
class Bucket:
    """One bucket. `objects` are the current ones; `changed` holds for each key the sequence of its last change.

    `history` holds every key's versions, the newest first; without versioning that is the object alone.
    """

    name: str
    created: datetime
    objects: dict[str, StoredObject] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    uploads: Uploads = field(default_factory=Uploads)
    versioning: Versioning = ""
    history: dict[str, list[Version]] = field(default_factory=dict)

    def find(self, key: str, version_id: str | None) -> StoredObject:
        """The object, or one version of it. Raises NoSuchKey, NoSuchVersion, MethodNotAllowed, InvalidArgument."""
        current = self.objects.get(key)
        if version_id is None:
            if current is None:
                raise S3Error("NoSuchKey", Key=key, headers=self._marker_headers(key))
            return current
        found = self.version(key, version_id)
        if found is None:
            raise S3Error("NoSuchVersion", Key=key, VersionId=version_id)
        if isinstance(found, DeleteMarker):
            headers = {"x-amz-delete-marker": "true", "x-amz-version-id": version_id, "allow": "DELETE"}
            raise S3Error("MethodNotAllowed", "The version is a delete marker.", headers=headers)
        return found

    def version(self, key: str, version_id: str) -> Version | None:
        """Raises InvalidArgument for what can be no version id."""
        if version_id != NULL_VERSION and not _VERSION_ID.fullmatch(version_id):
            raise S3Error("InvalidArgument", "Invalid version id specified", ArgumentName="versionId")
        return next((each for each in self.history.get(key, []) if each.version_id == version_id), None)

    def add(self, version: Version) -> None:
        """Make it the current version; there is only one null version of a key."""
        others = [each for each in self.history.get(version.key, []) if each.version_id != version.version_id]
        self.history[version.key] = [version, *others]
        self._settle(version.key)

    def remove(self, version: Version) -> None:
        """Remove a version for good; the newest of the others is current again."""
        self.history[version.key] = [each for each in self.history[version.key] if each is not version]
        self._settle(version.key)

    def amend(self, old: StoredObject, new: StoredObject) -> None:
        """Put the amended version into the place of the old one."""
        self.history[old.key] = [new if each is old else each for each in self.history[old.key]]
        self._settle(old.key)

    def versions(self) -> Iterator[tuple[Version, bool]]:
        """Every version and whether it is its key's latest, by key and then by age, the newest first."""
        for key in sorted(self.history, key=str.encode):
            for position, version in enumerate(self.history[key]):
                yield version, position == 0

    def _settle(self, key: str) -> None:
        history = self.history[key]
        if not history:
            del self.history[key]
        if history and isinstance(history[0], StoredObject):
            self.objects[key] = history[0]
        else:
            self.objects.pop(key, None)

    def _marker_headers(self, key: str) -> dict[str, str]:
        history = self.history.get(key, [])
        if history and isinstance(history[0], DeleteMarker):
            return {"x-amz-delete-marker": "true", "x-amz-version-id": history[0].version_id}
        return {}
