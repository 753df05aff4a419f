"""The page of the configuration: each section and key, from the models and the docstrings of their fields."""

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from docs.generator import attributes, markdown, page
from gateway.config import Config
from gateway.config.former import FORMER
from gateway.config.sections import FROM_FILE, Section
from gateway.doctor.proposal import Need, Surroundings, document
from gateway.doctor.proposal import sections as sections_of

INTRODUCTION = """\
A gateway reads one TOML file, `gateway serve --config gateway.toml`, and the environment. `gateway init` writes a first
one, `gateway config check` finds mistakes, and [Operations](../operations.md#checking-the-configuration) explains
checks and reloads.

- The environment overrides the file. `listen` of `[server]` is `GATEWAY_SERVER__LISTEN`. A variable for a list is
  JSON, also for a section that repeats: `GATEWAY_CALLERS='[{"name": "worker", …}]'`.
- Each secret can be in a file: `dsn_file` is the path of a file with the `dsn`. A list of secrets has one on each line.
- Unknown keys and sections are errors.
- A key has its type in parentheses, and its default, or *required*."""


EXAMPLE = "`gateway init` has written this file for a shop:"
SHOP = Surroundings(
    schemas=["public"],
    keyed=["public.customers", "public.products"],
    needs=[
        Need("public.visits", "key", "needs a rule: it has no primary key, so other columns have to name its rows"),
        Need(
            "public.orders",
            "reach",
            "needs a rule: writes reach rows of public.lines by lines_order_id_fkey (ON DELETE CASCADE), "
            "so such writes are refused",
        ),
    ],
    buckets=["invoices", "photos"],
)
STORE = {"endpoint": "https://s3.example.com", "region": "eu-central-1", "access_key_id": "gateway"}

FORMER_KEYS = """\
A configuration that has one of these still starts, until the next minor version. The log and `gateway config check`
warn of it, and say what it means now and what to write. `[[databases]]` and `[[stores]]` have the former keys of
`[postgres]`, `[journal]` and `[s3]`."""


def make() -> str:
    """Return the page."""
    return page(
        "Configuration", INTRODUCTION, EXAMPLE, _example(), *_sections(), "## Former keys", FORMER_KEYS, _former()
    )


def _example() -> str:
    values = sections_of("postgresql://gateway:…@db.example.com/shop", {**STORE, "secret_access_key": "…"}, lambda: "…")
    return f"```toml\n{document(values, SHOP)}```"


def _former() -> str:
    sections: dict[str, list[str]] = {}
    for section, key in FORMER:
        sections.setdefault(section, []).append(f"`{key}`")
    return "\n".join(f"- `[{section}]` {', '.join(keys)}" for section, keys in sections.items())


def _sections() -> Iterator[str]:
    for name, field in Config.model_fields.items():
        model, many = _model(field.annotation)
        assert model is not None
        yield from _section(model, (name,), many=many, required=field.is_required())


def _section(model: type[BaseModel], place: tuple[str, ...], *, many: bool, required: bool) -> Iterator[str]:
    name = ".".join(place)
    yield f"{'#' * (len(place) + 1)} `{f'[[{name}]]' if many else f'[{name}]'}`"
    use = "It may be repeated. " if many and len(place) == 1 else ""
    yield f"{markdown(model.__doc__ or '')} {use}{'It is required.' if required else ''}".strip()
    former = {
        row for section in sections() if section is not model and issubclass(model, section) for row in _rows(section)
    }
    yield "\n".join(row for row in _rows(model) if row not in former)
    for key, field in model.model_fields.items():
        part, several = _model(field.annotation)
        # A part that another section has, too, is described there.
        if part is not None and part not in sections() and not _inherited(model, key):
            yield from _section(part, (*place, key), many=several, required=False)


def sections() -> dict[type[BaseModel], str]:
    """Return the models of the sections, and the name of each."""
    models = ((_model(field.annotation)[0], name) for name, field in Config.model_fields.items())
    return {model: name for model, name in models if model is not None}


def _inherited(model: type[BaseModel], key: str) -> bool:
    return any(
        section is not model and issubclass(model, section) and key in section.model_fields for section in sections()
    )


def _rows(model: type[BaseModel]) -> list[str]:
    return [_row(model, key, field) for key, field in model.model_fields.items()]


def _row(model: type[BaseModel], key: str, field: FieldInfo) -> str:
    meaning = meaning_of(model, key)
    kind = _kind(field.annotation, _limits(field), unit_of(field.annotation, meaning))
    if issubclass(model, Section) and key in model.secret_keys():
        kind += f", or `{key}{FROM_FILE}`"
    return f"- `{key}` ({'; '.join(filter(None, (kind, _default(field))))}). {markdown(meaning)}"


def meaning_of(model: type[BaseModel], key: str) -> str:
    """Return the docstring of a field, which a base class may have."""
    for kind in (one for one in model.__mro__ if not one.__module__.startswith(("builtins", "pydantic"))):
        if text := attributes(sys.modules[kind.__module__]).get(kind.__name__, {}).get(key):
            return text
    raise LookupError(f"{model.__name__}.{key} has no docstring; say below the field what it is for")


UNITS = ("seconds", "bytes", "days", "minutes")


def unit_of(annotation: Any, meaning: str) -> str:
    """Return the unit of a number, which its meaning names; empty for one that counts something."""
    if not {int, float} & _parts(annotation):
        return ""
    words = [word.strip(".,;:").lower() for word in meaning.split()]
    return next((word for word in words if word in UNITS), "")


def _parts(annotation: Any) -> set[Any]:
    return {annotation}.union(*(_parts(part) for part in get_args(annotation)))


def _limits(field: FieldInfo) -> list[Any]:
    return [*field.metadata, *_metadata(field.annotation)]


def _metadata(annotation: Any) -> Iterator[Any]:
    for extra in getattr(annotation, "__metadata__", ()):
        yield from extra.metadata if isinstance(extra, FieldInfo) else (extra,)
    if get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _metadata(part)


def _kind(annotation: Any, limits: list[Any], unit: str = "") -> str:
    """Return a type in plain words."""
    if hasattr(annotation, "__metadata__"):
        annotation = get_args(annotation)[0]
    arguments = [one for one in get_args(annotation) if one is not NoneType]
    if get_origin(annotation) in (Union, UnionType):
        return _kind(arguments[0], limits, unit)
    if get_origin(annotation) is tuple:
        some = "list, not empty, of " if any(isinstance(one, MinLen) for one in limits) else "list of "
        return some + _plural(_kind(arguments[0], list(_metadata(arguments[0])), unit))
    if get_origin(annotation) is Literal:
        return _one_of(arguments)
    if issubclass(annotation, Enum):
        return _one_of([one.value for one in annotation])
    if issubclass(annotation, BaseModel):
        return f"table, as `[{sections()[annotation]}]`" if annotation in sections() else "table, below"
    words = {bool: "boolean", str: "text", Path: "path", SecretStr: "secret"}
    if annotation in words:
        return words[annotation]
    number = "integer" if annotation is int else "number"
    return " ".join(filter(None, (f"{number} of {unit}" if unit else number, _range(limits))))


PLURALS = {"text": "texts", "secret": "secrets", "table, below": "tables, below"}


def _plural(kind: str) -> str:
    return PLURALS.get(kind, kind.replace("one of ", ""))


def _one_of(values: list[Any]) -> str:
    return "one of " + ", ".join(f"`{value}`" for value in values)


def _range(limits: list[Any]) -> str:
    said = []
    for limit in limits:
        match limit:
            case Gt(gt=bound):
                said.append(f"above {_number(bound)}")
            case Ge(ge=bound):
                said.append(f"from {_number(bound)}")
            case Lt(lt=bound):
                said.append(f"below {_number(bound)}")
            case Le(le=bound):
                said.append(f"to {_number(bound)}")
    return " ".join(said)


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) or not float(value).is_integer() else f"{int(value):,}"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "*required*"
    value = field.default
    match value:
        case None:
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case tuple():
            return f"`[{', '.join(_text(one) for one in value)}]`"
        case BaseModel():
            return "its own"
        case _:
            return f"`{_text(value)}`"


def _text(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _model(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return the section that a type holds, and whether it is a list of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for part in get_args(annotation):
        model, many = _model(part)
        if model is not None:
            return model, many or get_origin(annotation) is tuple
    return None, False
