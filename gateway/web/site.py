"""What every page is made with: the database, templates, and how it says what went wrong."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeAlias

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.config import Config
from gateway.errors import GatewayError
from gateway.record.following import Follower
from gateway.store.database import Database
from gateway.web.assets import Assets
from gateway.web.rendering import Pages

Health: TypeAlias = Callable[[], Awaitable[dict[str, str]]]
"""Names each service behind the gateway, with ``ok`` or what is wrong."""


class Bucket(Protocol):
    """What is known of a bucket that has been probed."""

    @property
    def writable(self) -> bool:
        """Whether fenced writes to it are taken."""

    @property
    def missing(self) -> Mapping[str, str]:
        """The probes its store did not pass, each with what follows from it."""


Buckets: TypeAlias = Callable[[], Mapping[str, Bucket]]


class Site:
    """``config`` is shown from, never its secrets: modes of rules, names of webhooks and alarms.

    ``api`` is the fencing API, which takes the viewer in ``scope["state"]`` for its caller.
    """

    def __init__(
        self, database: Database, follower: Follower, config: Config, health: Health, buckets: Buckets, api: ASGIApp
    ) -> None:
        self.database = database
        self.follower = follower
        self.config = config
        self.health = health
        self.buckets = buckets
        self.api = api
        self.assets = Assets()
        self.pages = Pages(self.assets)

    async def answer_error(self, request: Request, error: Exception) -> Response:
        """An error of ours, as a page."""
        assert isinstance(error, GatewayError)
        return self.pages.render(
            request, "error.html", error.status, title=error.title, message=error.message, advice=error.advice
        )

    async def answer_http(self, request: Request, error: Exception) -> Response:
        """What the router has to say: nothing is there, or not by this method."""
        assert isinstance(error, HTTPException)
        message = "There is no page at this address." if error.status_code == 404 else f"{error.detail}."
        advice = "Start from the overview."
        return self.pages.render(
            request, "error.html", error.status_code, title="No such page", message=message, advice=advice
        )
