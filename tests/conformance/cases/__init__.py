"""All cases: importing the modules puts them on the list."""

from tests.conformance.cases import (
    addresses,
    amendments,
    buckets,
    conditions,
    copies,
    deletes,
    listings,
    multipart,
    objects,
    reads,
    versions,
)

__all__ = [
    "addresses",
    "amendments",
    "buckets",
    "conditions",
    "copies",
    "deletes",
    "listings",
    "multipart",
    "objects",
    "reads",
    "versions",
]
