"""The configuration in force, with its secrets redacted, so that it can be compared with a file."""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from gateway.api.requests import Authenticate, check_administrator
from gateway.auth.principal import Principal
from gateway.http.problems import Problem


class ConfigurationView(BaseModel):
    toml: str = Field(
        description="The whole configuration with its defaults. Secrets and addresses of webhooks are out."
    )


def routes(shown: str, caller: Authenticate) -> APIRouter:
    """Build the route ``/v1/config``. ``shown`` is the redacted configuration as TOML."""
    router = APIRouter()

    @router.get(
        "/v1/config",
        summary="Show the configuration in force",
        description="For administrators. Every gateway answers for itself.",
        responses={403: {"model": Problem, "description": "The caller is no administrator."}},
    )
    async def show_configuration(principal: Annotated[Principal, Depends(caller)]) -> ConfigurationView:
        check_administrator(principal)
        return ConfigurationView(toml=shown)

    return router
