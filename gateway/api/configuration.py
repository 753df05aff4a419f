"""The configuration in force: shown with its secrets redacted, and reloaded."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from gateway.api.requests import Authenticate, attempt
from gateway.auth.principal import Principal
from gateway.fencing.headers import FencingHeaders
from gateway.http.problems import Problem
from gateway.reloading import Reload


class ConfigurationView(BaseModel):
    toml: str = Field(
        description="The whole configuration with its defaults. Secrets and addresses of webhooks are out."
    )


class ReloadView(BaseModel):
    changes: list[str] = Field(description="The settings that have changed; empty if there was nothing to change.")


@dataclass(frozen=True, slots=True)
class ConfigurationAccess:
    """``shown`` is the redacted configuration as TOML."""

    shown: str
    reload: Reload


def configuration_routes(configuration: ConfigurationAccess, caller: Authenticate) -> APIRouter:
    """Build the routes below ``/v1/config``."""
    router = APIRouter()
    forbidden: dict[int | str, dict[str, Any]] = {403: {"model": Problem, "description": "The caller lacks the grant."}}

    @router.get(
        "/v1/config",
        summary="Show the configuration in force",
        description="Needs the grant `administer`. Every gateway answers for itself.",
        responses=forbidden,
    )
    async def show_configuration() -> ConfigurationView:
        return ConfigurationView(toml=configuration.shown)

    @router.post(
        "/v1/config/reload",
        summary="Put the configuration in force that stands in the file",
        description="Needs the grant `administer`. It takes effect as a whole, or not at all. "
        "Every gateway reloads its own.",
        responses={**forbidden, 409: {"model": Problem, "description": "It cannot be used, or it needs a restart."}},
    )
    async def reload_configuration(request: Request, principal: Annotated[Principal, Depends(caller)]) -> ReloadView:
        return ReloadView(changes=await configuration.reload(attempt(request, principal, FencingHeaders())))

    return router
