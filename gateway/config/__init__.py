"""The configuration: one frozen value from a TOML file and the environment. The only reader of the environment.

Each key can also come from the environment: ``GATEWAY_POSTGRES__DSN`` is ``dsn`` of ``[postgres]``, and lists are JSON
(``GATEWAY_CALLERS='[{"name": "worker", …}]'``). The environment overrides the file. Unknown keys are errors.
"""

import os
import tomllib
from pathlib import Path

from pydantic import SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource
from pydantic_settings.exceptions import SettingsError

from gateway.config.fencing import Fencing, Leases, ObjectRule, ResourceRule, TableRule
from gateway.config.observability import Alarm, Audit, Telemetry, Webhook
from gateway.config.section import is_sendable
from gateway.config.server import Auth, CallerKeys, Server
from gateway.config.stores import ObjectStore, Postgres
from gateway.errors import ConfigurationError
from gateway.fencing.policy import TokenPolicy


class Config(BaseSettings):
    """All settings of a gateway. ``load`` builds it; tests may build it from keyword arguments."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="GATEWAY_", env_nested_delimiter="__", hide_input_in_errors=True
    )

    server: Server = Server()
    postgres: Postgres
    s3: ObjectStore | None = None
    auth: Auth = Auth()
    fencing: Fencing = Fencing()
    leases: Leases = Leases()
    callers: tuple[CallerKeys, ...] = ()
    tables: tuple[TableRule, ...] = ()
    objects: tuple[ObjectRule, ...] = ()
    resources: tuple[ResourceRule, ...] = ()
    audit: Audit = Audit()
    webhooks: tuple[Webhook, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    telemetry: Telemetry = Telemetry()

    @model_validator(mode="after")
    def _signed_tokens_need_a_key(self) -> "Config":
        signed = [rule.match for rule in self.resources if rule.tokens is TokenPolicy.SIGNED]
        if self.fencing.tokens is TokenPolicy.SIGNED:
            signed.append("[fencing]")
        if signed and not self.leases.signing_keys:
            raise ValueError(f"{signed[0]}: tokens = 'signed' needs leases.signing_keys")
        return self

    @model_validator(mode="after")
    def _alarms_name_webhooks(self) -> "Config":
        names = {webhook.name for webhook in self.webhooks}
        for alarm in self.alarms:
            if unknown := set(alarm.webhooks) - names:
                raise ValueError(f"[[alarms]]: {alarm.name}: there is no webhook {min(unknown)}")
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> "Config":
        for section, names in (
            # Names that differ only in case look like one name to the reader of the record.
            ("callers", [caller.name.casefold() for caller in self.callers]),
            ("callers", [caller.access_key_id for caller in self.callers if caller.access_key_id]),
            ("tables", [rule.name for rule in self.tables]),
            ("objects", [rule.match for rule in self.objects]),
            ("resources", [rule.match for rule in self.resources]),
            ("webhooks", [webhook.name for webhook in self.webhooks]),
            ("alarms", [alarm.name for alarm in self.alarms]),
        ):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"[[{section}]]: {name} is configured twice")
        return self

    @model_validator(mode="after")
    def _each_key_has_one_owner(self) -> "Config":
        owners: dict[str, str] = {}
        for caller in self.callers:
            key = "" if caller.api_key is None else caller.api_key.get_secret_value()
            if key and (other := owners.setdefault(key, caller.name)) != caller.name:
                raise ValueError(f"[[callers]]: {other} and {caller.name} have the same api_key")
        return self


def load(path: Path | None) -> Config:
    """Read the configuration. Without ``path`` all of it comes from the environment.

    Raises ``ConfigurationError``, which names the file and each offending key.
    """
    source = str(path) if path is not None else "the environment"

    class FromFile(Config):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            if path is None:
                return (env_settings,)
            return env_settings, TomlConfigSettingsSource(settings_cls, path)

    if path is not None and not path.is_file():
        raise ConfigurationError(f"{path}: there is no such file")
    try:
        return FromFile()
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source}: not TOML: {error}") from error
    except SettingsError as error:
        raise ConfigurationError(f"{source}: {error}") from error
    except ValidationError as error:
        raise ConfigurationError(f"{source}: {_problems(error)}") from error


class _OwnKey(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="GATEWAY_", hide_input_in_errors=True)

    api_key: SecretStr = SecretStr("")


def api_key(path: Path | None) -> SecretStr:
    """Return the API key of a command that calls a gateway: from the file, or else from ``GATEWAY_API_KEY``.

    It is never an argument, because every user of a machine can see arguments. Raises ``ConfigurationError``.
    """
    if path is None:
        key, source = _OwnKey().api_key.get_secret_value(), "GATEWAY_API_KEY"
    else:
        source = str(path)
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path}: the API key cannot be read", advice="") from error
    if not key or not is_sendable(key):
        raise ConfigurationError(
            f"{source}: there is no API key", advice="Set GATEWAY_API_KEY, or name a file with --api-key-file."
        )
    return SecretStr(key)


def api_key_if_any(path: Path | None) -> str | None:
    """Return the API key for a command that may do without; None if none is set. Raises ``ConfigurationError``."""
    if path is None and not _OwnKey().api_key.get_secret_value():
        return None
    return api_key(path).get_secret_value()


def environment() -> dict[str, str]:
    """Return the environment of this process, for the commands that it starts."""
    return dict(os.environ)  # noqa: TID251 - to be passed on, not to be read


def _problems(error: ValidationError) -> str:
    """Return each offending key with its problem, but without its value, which may be a secret."""
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        key = ".".join(str(part) for part in problem["loc"]) or "configuration"
        text = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"].removeprefix("Value error, ")
        lines.append(f"{key}: {text}")
    return "; ".join(lines)
