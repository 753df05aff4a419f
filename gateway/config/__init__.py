"""The configuration: one frozen value from a TOML file and the environment. The only reader of the environment.

Each key can also come from the environment: ``GATEWAY_POSTGRES__DSN`` is ``dsn`` of ``[postgres]``, and lists are JSON
(``GATEWAY_CALLERS='[{"name": "worker", …}]'``). The environment overrides the file. Unknown keys are errors.
"""

import os
import re
import tomllib
from pathlib import Path

from pydantic import SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource
from pydantic_settings.exceptions import SettingsError

from gateway.config import problems
from gateway.config.fencing import Fencing, Leases, ObjectRule, ResourceRule, TableRule
from gateway.config.observability import Alarm, Audit, Telemetry, Webhook
from gateway.config.problems import Location, Misconfigured
from gateway.config.section import is_sendable
from gateway.config.server import Auth, CallerKeys, Server
from gateway.config.stores import ObjectStore, Postgres
from gateway.errors import ConfigurationError
from gateway.fencing.policy import TokenPolicy

# The words of pydantic-settings for a value that is not JSON.
_OF_THE_ENVIRONMENT = re.compile(r'field "([a-z0-9_]+)"')


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
        places: list[Location] = [
            ("resources", number, "tokens")
            for number, rule in enumerate(self.resources)
            if rule.tokens is TokenPolicy.SIGNED
        ]
        if self.fencing.tokens is TokenPolicy.SIGNED:
            places.append(("fencing", "tokens"))
        if places and not self.leases.signing_keys:
            raise Misconfigured(places[0], "'signed' needs leases.signing_keys. Add them, the same in all gateways.")
        return self

    @model_validator(mode="after")
    def _alarms_name_webhooks(self) -> "Config":
        names = {webhook.name for webhook in self.webhooks}
        for number, alarm in enumerate(self.alarms):
            if unknown := set(alarm.webhooks) - names:
                wrong = min(unknown)
                near = problems.suggestion(wrong, names) or " Add it as [[webhooks]], or remove it here."
                raise Misconfigured(("alarms", number, "webhooks"), f'there is no webhook "{wrong}".{near}')
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> "Config":
        for section, names in (
            # Names that differ only in case look like one name to the reader of the record.
            ("callers", [caller.name.casefold() for caller in self.callers]),
            ("tables", [rule.name for rule in self.tables]),
            ("objects", [rule.match for rule in self.objects]),
            ("resources", [rule.match for rule in self.resources]),
            ("webhooks", [webhook.name for webhook in self.webhooks]),
            ("alarms", [alarm.name for alarm in self.alarms]),
        ):
            for number, name in enumerate(names):
                if name in names[:number]:
                    raise Misconfigured((section, number), "is configured twice. Remove one of them, or rename it.")
        return self

    @model_validator(mode="after")
    def _each_key_has_one_owner(self) -> "Config":
        owners: dict[tuple[str, str], int] = {}
        for number, caller in enumerate(self.callers):
            keys = [("api_key", key) for key in caller.bearer_keys]
            keys += [("access_key_id", pair.access_key_id) for pair in caller.pairs]
            for kind, key in keys:
                other = owners.setdefault((kind, key), number)
                if other != number:
                    name = self.callers[other].name
                    raise Misconfigured(("callers", number), f'has the same {kind} as "{name}". Give it its own.')
        return self


def load(path: Path | None) -> Config:
    """Read the configuration. Without ``path`` all of it comes from the environment.

    Raises ``ConfigurationError``, which names the file, the line and each offending key.
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
        found = _OF_THE_ENVIRONMENT.search(str(error))
        name = f"GATEWAY_{found[1].upper()}" if found else "a GATEWAY_… variable"
        raise ConfigurationError(f"the environment: {name} must be JSON, for example [] or {{}}") from None
    except ValidationError as error:
        text = "" if path is None else path.read_text(encoding="utf-8")
        listed = error.errors(include_input=False, include_url=False)
        raise ConfigurationError(problems.describe(listed, source, text, tomllib.loads(text), Config)) from None


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
