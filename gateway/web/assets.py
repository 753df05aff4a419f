"""Styles, scripts and vendored files: read once, served under addresses that change with their bytes."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PREFIX = "/ui/static/"

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_FOR_EVER = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """A static file. ``fingerprint`` is the beginning of the SHA-256 of its bytes, in hex."""

    content: bytes
    media_type: str
    fingerprint: str


class Assets:
    """The static files of the pages, by their path below ``static/``."""

    def __init__(self) -> None:
        self._assets = dict(_read(files("gateway.web").joinpath("static")))

    def address(self, path: str) -> str:
        """Return the address of a file, which changes with its content. Raises ``KeyError`` for an unknown path."""
        return f"{PREFIX}{path}?v={self._assets[path].fingerprint}"

    def text(self, path: str) -> str:
        """Return the content of a file, for pages that embed it."""
        return self._assets[path].content.decode()

    def route(self) -> Route:
        return Route(PREFIX + "{path:path}", self._serve, methods=["GET"])

    async def _serve(self, request: Request) -> Response:
        asset = self._assets.get(request.path_params["path"])
        if asset is None:
            return Response("There is nothing at this path.\n", 404, media_type="text/plain")
        tag = f'"{asset.fingerprint}"'
        current = request.query_params.get("v") == asset.fingerprint
        headers: Mapping[str, str] = {"ETag": tag, "Cache-Control": _FOR_EVER if current else "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(asset.content, headers=headers, media_type=asset.media_type)


def _read(directory: Traversable, path: str = "") -> list[tuple[str, Asset]]:
    found = []
    for entry in directory.iterdir():
        media_type = _TYPES.get(entry.name.rpartition(".")[2])
        if entry.is_dir():
            found += _read(entry, f"{path}{entry.name}/")
        elif media_type is not None:
            content = entry.read_bytes()
            found.append((path + entry.name, Asset(content, media_type, hashlib.sha256(content).hexdigest()[:16])))
    return found
