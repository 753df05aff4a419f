"""The configuration: one frozen value from a TOML file and the environment.

Each key can also come from the environment: ``GATEWAY_POSTGRES__DSN`` is ``dsn`` of ``[postgres]``, and lists are JSON
(``GATEWAY_CALLERS='[{"name": "worker", …}]'``). The environment overrides the file. Unknown keys are errors.

A module has one part of the file. ``Config.parts`` has a configuration for each database alone, also for the only one,
so that code about a database knows one only. Assembly, commands and the doctor import it; planes get values of it.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from pydantic import BaseModel, PrivateAttr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings.exceptions import SettingsError

from gateway.config import former
from gateway.config.consistency import problems
from gateway.config.databases import DatabaseConfig, Shared, split
from gateway.config.explanations import Places, explain, nearest
from gateway.config.sections import (
    FROM_FILE,
    DatabaseEntry,
    Journal,
    Limits,
    Misplaced,
    ObjectStore,
    Postgres,
    StoreEntry,
)
from gateway.errors import ConfigurationError
from gateway.fencing.ownership import Domain

V = TypeVar("V", bound=str | None)

_ADDRESS: Final = "GATEWAY_POSTGRES"
"""The variable of the section [postgres], as JSON. ``gateway run`` has the address of a database in it."""


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
    _has_gateway: bool = PrivateAttr(default=True)

    @property
    def parts(self) -> tuple[DatabaseConfig, ...]:
        """Return a configuration for each database alone, in their order."""
        return split(self, self._limits, has_gateway=self._has_gateway)

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
    def _consistent(self) -> "Config":
        for place, problem in problems(self):
            raise Misplaced(place, problem)
        return self


USUAL_FILE = "gateway.toml"
"""The file that ``gateway init`` writes if no other is named. No command reads it unasked."""

SHORTEST = 8
"""Characters of the shortest secret of a caller. A shorter one can be found by trying."""


def places(path: Path | None) -> Places:
    """Return the places of a configuration, for messages. Raises ``ConfigurationError`` if the file is not TOML."""
    if path is None:
        return Places("the environment", "", {}, _variables())
    try:
        # With the ends of its lines as they are, so that a changed file keeps them.
        text = path.read_bytes().decode()
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
    return Places(str(path), text, values, _variables())


def _not_toml(path: Path, said: str) -> str:
    what, _, where = said.partition(" (at ")
    line = re.match(r"line (\d+)", where)
    if twice := re.match(r"Cannot declare \((.*?),?\) twice", what):
        what = f"the section [{twice[1].replace(chr(39), '').replace(', ', '.')}] is there twice"
    return f"{path}, {f'line {line[1]}' if line else 'at its end'}: not TOML: {what}."


_Source: TypeAlias = PydanticBaseSettingsSource


def _reading(sources: Callable[[type[BaseSettings], _Source], tuple[_Source, ...]]) -> type[Config]:
    """Return a class whose values come from sources alone: of the model and its arguments."""

    class FromSources(Config):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: _Source,
            env_settings: _Source,
            dotenv_settings: _Source,
            file_secret_settings: _Source,
        ) -> tuple[_Source, ...]:
            return sources(settings_cls, init_settings)

    return FromSources


def load(path: Path | None, dsn: str | None = None) -> Config:
    """Read the configuration. Without ``path`` all of it comes from the environment.

    ``dsn``: an operator's, of the database where no gateway has one. The result has no gateway then.

    Raises ``ConfigurationError``, which names the file, the line and the entry of each problem.
    """
    known, alone = places(path), False

    def sources(model: type[BaseSettings], _: _Source) -> tuple[_Source, ...]:
        environment = _environment(model)
        given = (environment,) if path is None else (environment, TomlConfigSettingsSource(model, path))
        return (*given, InitSettingsSource(model, {"postgres": {"dsn": dsn}})) if alone else given

    _check_variables()
    try:
        alone = dsn is not None and not _has_database(known)
        config = _reading(sources)()
    except SettingsError as error:
        field = re.search(r'field "(\w+)"', str(error))
        variable = f"GATEWAY_{field[1].upper()}" if field else "a GATEWAY_ variable"
        raise ConfigurationError(
            f"the environment, {variable}: must be JSON.", advice="Correct the variable."
        ) from None
    except ValidationError as error:
        problem, advice = explain(error, Config, known), None
        if path is None and Path(USUAL_FILE).is_file():
            # A forgotten --config is more likely than a configuration in the environment.
            problem, advice = f"{problem}.", f"Or name the file that is here: --config {USUAL_FILE}."
        elif path is None:
            problem += "; or name a file with --config"
        if error.errors()[0]["loc"] == () and _is_address(os.environ.get(_ADDRESS)):  # noqa: TID251 - this package reads it
            problem = f"{problem.removesuffix('.')}; {_ADDRESS} is for gateway run{'.' if advice else ''}"
        raise ConfigurationError(problem, advice=advice) from None
    _check_secrets(config, known)
    # Two configurations are equal only if they are of one class, and only those of a known class travel to workers.
    made = Config.model_construct(config.model_fields_set, **dict(config))
    made._has_gateway = not alone  # noqa: SLF001 - it is of this module
    return made


def of(values: Mapping[str, Any], source: str) -> Config:
    """Return the configuration of these values alone. Raises ``ConfigurationError``, which names the ``source``."""
    try:
        config = _reading(lambda _, given: (given,))(**values)
    except ValidationError as error:
        raise ConfigurationError(explain(error, Config, Places(source, "", values, {})), advice="") from None
    return Config.model_construct(config.model_fields_set, **dict(config))


def former_keys(path: Path | None) -> list[str]:
    """Return a line for each former key that a configuration has: its place, and what to write instead."""
    known = places(path)
    values, variables = dict(known.values), _environment(Config)()
    for variable, value in os.environ.items():  # noqa: TID251 - this package reads it
        section, _, key = variable.lower().removeprefix("gateway_").partition("__")
        if section in former.SECTIONS and (section, key) in former.FORMER:
            variables.setdefault(section, {})[key] = value
    for section, given in variables.items():
        inside = values.get(section)
        values[section] = {**inside, **given} if isinstance(inside, Mapping) and isinstance(given, Mapping) else given
    return [f"{known.describe(place)}: is a former key. {one.told}" for place, one, _ in former.found(values)]


def _environment(settings: type[BaseSettings]) -> EnvSettingsSource:
    """Return the source of the environment. ``GATEWAY_POSTGRES`` of ``gateway run`` is an address, and no section."""
    source = EnvSettingsSource(settings)
    source.env_vars = _without_address(source.env_vars)
    return source


def _variables() -> dict[str, str]:
    return _without_address(os.environ)  # noqa: TID251 - this package reads it


def _without_address(variables: Mapping[str, V]) -> dict[str, V]:
    return {name: value for name, value in variables.items() if name.upper() != _ADDRESS or not _is_address(value)}


def _is_address(value: str | None) -> bool:
    return value is not None and not value.lstrip().startswith("{")


def _has_database(known: Places) -> bool:
    """Return whether a configuration says where its database is, or its databases are."""
    for values in (known.values, _environment(Config)()):
        section = values.get("postgres")
        if "databases" in values or (isinstance(section, Mapping) and {"dsn", "dsn" + FROM_FILE} & section.keys()):
            return True
    return False


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
