"""The conditions that clients set: on the object they write, and on the source of a copy.

The gateway evaluates the condition of a write itself and never forwards it, because S3 takes one condition. The
conditions of reads, and on the source of a copy, go to the store.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gateway.errors import StoreError
from gateway.objects.s3.operations import Operation, not_implemented

CONDITIONS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")
"""The names of the headers, in lower case."""

_ETAG = re.compile(r'"[^",\s]+"|[^",\s]+')
_CREATE = frozenset({Operation.PUT_OBJECT, Operation.COPY_OBJECT, Operation.COMPLETE_MULTIPART_UPLOAD})


class Expect(StrEnum):
    """The state of the object on which the client's write depends."""

    ABSENT = "absent"
    EXISTS = "exists"
    ETAG = "etag"


@dataclass(frozen=True, slots=True)
class WriteCondition:
    """A client's condition. ``etag`` (without quotes) is set for ``Expect.ETAG`` only."""

    expect: Expect
    etag: str | None = None

    def broken(self, current: str | None) -> StoreError | None:
        """Return S3's error for the object's ETag (None: no object); None where the condition holds."""
        if self.expect is not Expect.ABSENT and current is None:
            return StoreError.known("NoSuchKey")
        holds = {Expect.ABSENT: current is None, Expect.EXISTS: True, Expect.ETAG: current == self.etag}
        if holds[self.expect]:
            return None
        header = "If-None-Match" if self.expect is Expect.ABSENT else "If-Match"
        return StoreError.known("PreconditionFailed", facts={"condition": header})


def read_condition(operation: Operation, headers: Mapping[str, str]) -> WriteCondition | None:
    """Return the condition of a write, given its headers by lower-case name. Raises 501 for one that S3 does not have.

    On reads these headers go to the store.
    """
    if_match, if_none_match = headers.get("if-match"), headers.get("if-none-match")
    if "if-modified-since" in headers or "if-unmodified-since" in headers:
        raise not_implemented(f"{operation} with a condition on the time of modification")
    if if_match is not None and if_none_match is not None:
        raise not_implemented(f"{operation} with both If-Match and If-None-Match")
    if if_none_match is not None:
        if if_none_match != "*" or operation not in _CREATE:
            raise not_implemented(f"{operation} with this form of If-None-Match")
        return WriteCondition(Expect.ABSENT)
    if if_match is None:
        return None
    if operation not in _CREATE | {Operation.DELETE_OBJECT}:
        raise not_implemented(f"{operation} with If-Match")
    if if_match == "*" and operation is not Operation.DELETE_OBJECT:
        raise not_implemented(f"{operation} with If-Match: *")
    return _matching(if_match, f"{operation} with this form of If-Match")


def condition_of_entry(etag: str) -> WriteCondition:
    """Return the condition in the ``<ETag>`` of an object of a DeleteObjects: that of a DeleteObject."""
    return _matching(etag.strip(), f"{Operation.DELETE_OBJECTS} with this form of ETag")


def _matching(value: str, what: str) -> WriteCondition:
    if value == "*":
        return WriteCondition(Expect.EXISTS)
    if value.startswith("W/") or not _ETAG.fullmatch(value):
        raise not_implemented(what)
    return WriteCondition(Expect.ETAG, value.strip('"'))


def condition_on_source(name: str, value: str) -> str:
    """Return a condition on the source of a copy as every store reads it.

    S3 takes ETags without quotation marks too, and clients send such.
    """
    bare = name in ("if-match", "if-none-match") and value != "*" and '"' not in value
    return f'"{value}"' if bare else value
