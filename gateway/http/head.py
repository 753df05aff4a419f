"""The head of a request as one frozen value that authentication, planning and recipes all read."""

from collections.abc import MutableMapping
from typing import Any, NamedTuple, TypeAlias

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


class Head(NamedTuple):
    """A request without its body. ``path`` is decoded, ``raw_path`` as sent; names of headers are in lower case."""

    method: str
    path: str
    raw_path: bytes
    query_string: bytes
    headers: Headers

    @classmethod
    def of(cls, scope: MutableMapping[str, Any]) -> "Head":
        """Return the head of the request of an ASGI scope. The first call makes it, later calls return the same one.

        A server may append trailers to the list of headers while a body arrives; this copy does not see them.
        """
        state: dict[str, Any] = scope.setdefault("state", {})
        head: Head | None = state.get("head")
        if head is None:
            path = scope["path"]
            raw_path = scope.get("raw_path") or path.encode()
            head = state["head"] = cls(scope["method"], path, raw_path, scope["query_string"], tuple(scope["headers"]))
        return head

    def value(self, name: bytes) -> bytes | None:
        """Return the first value of a header; None if the header is absent."""
        return next((value for found, value in self.headers if found == name), None)
