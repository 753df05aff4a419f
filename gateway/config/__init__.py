"""The configuration: one frozen value from a TOML file and the environment.

Each key can also come from the environment: ``GATEWAY_POSTGRES__DSN`` is ``dsn`` of ``[postgres]``, and lists are JSON
(``GATEWAY_CALLERS='[{"name": "worker", …}]'``). The environment overrides the file. Unknown keys are errors.

A module has one part of the file. ``Config.parts`` has a configuration for each database alone, also for the only one,
so that code about a database knows one only. Assembly, commands and the doctor import it; planes get values of it.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, PrivateAttr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings.exceptions import SettingsError

from gateway.config import former
from gateway.config.databases import DatabaseConfig, Shared, misplaced_databases, misplaced_rules, split
from gateway.config.sections import (
    GROUP,
    DatabaseEntry,
    Journal,
    Limits,
    Misplaced,
    ObjectStore,
    Postgres,
    StoreEntry,
)
from gateway.config.toml import Place, Places, explain, nearest
from gateway.errors import ConfigurationError
from gateway.fencing.ownership import Domain
from gateway.fencing.policy import TokenPolicy
from gateway.fencing.record import ANONYMOUS


class _Written(BaseModel):
    """The sections of databases and stores: one of each has a section of its own, several are lists."""

    postgres: Postgres | None = None
    databases: tuple[DatabaseEntry, ...] = ()
    s3: ObjectStore | None = None
    stores: tuple[StoreEntry, ...] = ()
    journal: Journal = Journal()

    @property
    def domains(self) -> list[Domain]:
        """Return the names that belong to each of several databases. The first one owns the rest."""
        return [one.domain(default=number == 0) for number, one in enumerate(self.databases)]


class Config(Shared, _Written, BaseSettings):
    """All settings of a gateway. ``load`` builds it; tests may build it from keyword arguments."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="GATEWAY_", env_nested_delimiter="__", hide_input_in_errors=True
    )

    _limits: Limits = PrivateAttr(default_factory=Limits)

    @property
    def parts(self) -> tuple[DatabaseConfig, ...]:
        """Return a configuration for each database alone, in their order."""
        return split(self, self._limits)

    @property
    def default(self) -> DatabaseConfig:
        """Return the configuration of the database that owns what no rule gives to another one."""
        return self.parts[0]

    @property
    def limits(self) -> Limits:
        return self._limits

    def with_limits(self, limits: Limits) -> "Config":
        """Return it with limits that no file sets."""
        changed = self.model_copy()
        changed._limits = limits  # noqa: SLF001 - it is of this class
        return changed

    @model_validator(mode="before")
    @classmethod
    def _former_keys(cls, given: Any) -> Any:
        return former.without_former(given) if isinstance(given, Mapping) else given

    @model_validator(mode="after")
    def _databases_own_names(self) -> "Config":
        if self.postgres is None and not self.databases:
            raise Misplaced(("postgres",), "the section is missing; add it")
        for place, problem in misplaced_databases(self):
            raise Misplaced(place, problem)
        return self

    @model_validator(mode="after")
    def _signed_tokens_need_a_key(self) -> "Config":
        for index, rule in enumerate(self.resources):
            if rule.tokens is TokenPolicy.SIGNED and not self.leases.signing_keys:
                problem = "'signed' needs signing keys; set signing_keys in [leases]"
                raise Misplaced(("resources", index, "tokens"), problem)
        return self

    @model_validator(mode="after")
    def _journal_in_a_bucket_needs_a_store(self) -> "Config":
        if self.journal.bucket is not None and self.s3 is None:
            raise Misplaced(("journal", "bucket"), "a bucket needs an object store; set endpoint and keys in [s3]")
        return self

    @model_validator(mode="after")
    def _alarms_name_webhooks(self) -> "Config":
        names = {webhook.name for webhook in self.webhooks}
        for index, alarm in enumerate(self.alarms):
            if unknown := set(alarm.webhooks) - names:
                name = min(unknown)
                advice = nearest(name, names) or " Add it to [[webhooks]], or remove it here."
                raise Misplaced(("alarms", index, "webhooks"), f"there is no webhook {name}.{advice}")
        return self

    @model_validator(mode="after")
    def _grants_name_callers(self) -> "Config":
        names = {caller.name for caller in self.callers} | {"*", ANONYMOUS}
        placed: list[tuple[Place, Postgres]] = [] if self.postgres is None else [(("postgres",), self.postgres)]
        placed += [(("databases", number), one) for number, one in enumerate(self.databases)]
        rules: list[tuple[Place, tuple[str, ...]]] = [
            *((("grants", index), rule.callers) for index, rule in enumerate(self.grants)),
            *(((*at, "roles", index), rule.callers) for at, one in placed for index, rule in enumerate(one.roles)),
        ]
        for place, callers in rules:
            if unknown := {one for one in callers if not (self.is_of_issuer(one) or one.startswith(GROUP))} - names:
                name = min(unknown)
                named = names | {f"{issuer.name}:*" for issuer in self.issuers}
                advice = nearest(name, named) or " Add it to [[callers]], or remove it here."
                raise Misplaced((*place, "callers"), f"there is no caller {name}.{advice}")
        return self

    @model_validator(mode="after")
    def _callers_of_issuers_are_theirs(self) -> "Config":
        for index, caller in enumerate(self.callers):
            if self.is_of_issuer(caller.name):
                problem = f"{caller.name} is how callers of an issuer are called; choose another name"
                raise Misplaced(("callers", index, "name"), problem)
        claims = [one.issuer for one in self.issuers]
        for index, claim in enumerate(claims):
            if claim in claims[:index]:
                said = "two issuers have none" if claim is None else f"{claim} is configured twice"
                raise Misplaced(("issuers", index, "issuer"), f"{said}; remove one")
        return self

    @model_validator(mode="after")
    def _logins_have_an_address_and_a_key(self) -> "Config":
        for index, one in enumerate(self.issuers):
            place = ("issuers", index, "login")
            if one.login is not None and self.server.public_address is None:
                raise Misplaced(place, "needs the address to come back to; set public_address in [server]")
            if one.login is not None and not self.identity.signing_keys:
                raise Misplaced(place, "needs a key that signs sessions; set signing_keys in [identity]")
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> "Config":
        for section, key, names in (
            # Names that differ only in case look like one name to the reader of the record.
            ("callers", "name", [caller.name.casefold() for caller in self.callers]),
            ("issuers", "name", [issuer.name for issuer in self.issuers]),
            ("databases", "name", [one.name for one in self.databases]),
            ("stores", "name", [one.name for one in self.stores]),
            ("tables", "name", [rule.name for rule in self.tables]),
            ("objects", "match", [rule.match for rule in self.objects]),
            ("resources", "match", [rule.match for rule in self.resources]),
            ("webhooks", "name", [webhook.name for webhook in self.webhooks]),
            ("alarms", "name", [alarm.name for alarm in self.alarms]),
        ):
            for index, name in enumerate(names):
                if name in names[:index]:
                    raise Misplaced((section, index, key), f"{name} is configured twice; remove or rename one")
        return self

    @model_validator(mode="after")
    def _each_key_has_one_owner(self) -> "Config":
        owners: dict[str, str] = {}
        named: dict[str, str] = {}
        ids: set[str] = set()
        for index, caller in enumerate(self.callers):
            for key in caller.api_key:
                if (other := owners.setdefault(key.get_secret_value(), caller.name)) != caller.name:
                    raise Misplaced(("callers", index), f"has the same api_key as {other}; give each its own")
            for name in caller.certificates:
                if name in named:
                    problem = f"{name} is there twice, the first time for {named[name]}; remove one of them"
                    raise Misplaced(("callers", index, "certificates"), problem)
                named[name] = caller.name
            if caller.certificates and self.server.client_authorities is None:
                problem = "needs client_authorities in [server], which sign client certificates; set it as well"
                raise Misplaced(("callers", index, "certificates"), problem)
            for pair in caller.pairs:
                if pair.access_key_id in ids:
                    problem = f"the access_key_id {pair.access_key_id} is configured twice; give each pair its own"
                    raise Misplaced(("callers", index), problem)
                ids.add(pair.access_key_id)
        return self

    @model_validator(mode="after")
    def _rules_stay_in_their_database(self) -> "Config":
        for place, problem in misplaced_rules(self):
            raise Misplaced(place, problem)
        return self


SHORTEST = 8
"""Characters of the shortest secret of a caller. A shorter one can be found by trying."""


def places(path: Path | None) -> Places:
    """Return the places of a configuration, for messages. Raises ``ConfigurationError`` if the file is not TOML."""
    if path is None:
        return Places("the environment", "", {}, os.environ)  # noqa: TID251 - this package reads it
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text)
    except FileNotFoundError as error:
        raise ConfigurationError(
            f"{path}: there is no such file.", advice="Correct the path after --config."
        ) from error
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot be read: {error.strerror}.", advice="Correct path or rights."
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not text in UTF-8.", advice="Save it as UTF-8.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(_not_toml(path, str(error)), advice="Correct this line.") from error
    return Places(str(path), text, values, os.environ)  # noqa: TID251 - the same


def _not_toml(path: Path, said: str) -> str:
    what, _, where = said.partition(" (at ")
    line = re.match(r"line (\d+)", where)
    if twice := re.match(r"Cannot declare \((.*?),?\) twice", what):
        what = f"the section [{twice[1].replace(chr(39), '').replace(', ', '.')}] is there twice"
    return f"{path}, {f'line {line[1]}' if line else 'at its end'}: not TOML: {what}."


def load(path: Path | None) -> Config:
    """Read the configuration. Without ``path`` all of it comes from the environment.

    Raises ``ConfigurationError``, which names the file, the line and the entry of each problem.
    """
    known = places(path)

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

    _check_variables()
    try:
        config = FromFile()
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        variable = f"GATEWAY_{field[1].upper()}" if field else "a GATEWAY_ variable"
        raise ConfigurationError(
            f"the environment, {variable}: must be JSON.", advice="Correct the variable."
        ) from None
    except ValidationError as error:
        # A forgotten --config is more likely than a configuration in the environment.
        more = "; or name a file with --config" if path is None else ""
        raise ConfigurationError(explain(error, Config, known) + more) from None
    _check_secrets(config, known)
    # Two configurations are equal only if they are of one class, and only those of a known class travel to workers.
    return Config.model_construct(config.model_fields_set, **dict(config))


def former_keys(path: Path | None) -> list[str]:
    """Return a line for each former key that a configuration has: its place, and what to write instead."""
    known = places(path)
    values, variables = dict(known.values), EnvSettingsSource(Config)()
    for variable, value in os.environ.items():  # noqa: TID251 - this package reads it
        section, _, key = variable.lower().removeprefix("gateway_").partition("__")
        if section in former.SECTIONS and (section, key) in former.FORMER:
            variables.setdefault(section, {})[key] = value
    for section, given in variables.items():
        inside = values.get(section)
        values[section] = {**inside, **given} if isinstance(inside, Mapping) and isinstance(given, Mapping) else given
    return [f"{known.describe(place)}: is a former key. {one.told}" for place, one, _ in former.found(values)]


def _check_variables() -> None:
    """Raise ``ConfigurationError`` for a variable of a section that does not exist, which would have no effect."""
    for variable in os.environ:  # noqa: TID251 - this package reads it
        section, separator, _ = variable.upper().removeprefix("GATEWAY_").partition("__")
        known = {*Config.model_fields, *former.SECTIONS}
        if variable.upper().startswith("GATEWAY_") and separator and section.lower() not in known:
            advice = nearest(section, [name.upper() for name in Config.model_fields]) or " Unset it."
            raise ConfigurationError(f"the environment, {variable}: unknown section {section}.{advice}")


def _check_secrets(config: Config, known: Places) -> None:
    """Raise ``ConfigurationError`` for a secret of a caller that can be found by trying."""
    for index, caller in enumerate(config.callers):
        for key, secret in caller.secrets:
            if (length := len(secret)) < SHORTEST:
                problem = "is empty" if not length else f"has a secret of fewer than {SHORTEST} characters"
                raise ConfigurationError(
                    f"{known.describe(('callers', index, key))}: {problem}; make one with openssl rand -hex 32"
                )
