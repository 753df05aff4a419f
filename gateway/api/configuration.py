"""The configuration in force, with its secrets redacted, and its reload."""

from pydantic import BaseModel, Field

from gateway.api.authorisation import ADMINISTER
from gateway.api.description import Subject
from gateway.api.routes import Call, Routes

routes = Routes(Subject.OPERATION)


class ConfigurationView(BaseModel):
    toml: str = Field(
        description="The whole configuration with its defaults. Secrets and addresses of webhooks are out."
    )


class ReloadView(BaseModel):
    changes: list[str] = Field(description="The settings that have changed; empty if there was nothing to change.")


@routes.add(
    "GET /v1/config",
    ADMINISTER,
    "Show the configuration in force",
    description="Needs the grant `administer`. Every gateway answers for itself.",
)
async def show_configuration(call: Call) -> ConfigurationView:
    return ConfigurationView(toml=call.services.configuration.shown)


@routes.add(
    "POST /v1/config/reload",
    ADMINISTER,
    "Put the configuration in force that stands in the file",
    description="Needs the grant `administer`. It takes effect as a whole, or not at all. "
    "Every gateway reloads its own.",
    answers={409: "It cannot be used, or it needs a restart."},
)
async def reload_configuration(call: Call) -> ReloadView:
    return ReloadView(changes=await call.services.configuration.reload(call.attempt()))
