"""A configuration as TOML: entries and sections to paste, and the whole text, without secrets.

The package itself reads a file. ``sections.py`` refuses keys that are not known.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, SecretStr

from gateway.config.explanations import NAMING_KEYS

REDACTED = "(redacted)"


def entry(section: str, values: BaseModel, **changed: Any) -> str:
    """Return one entry of ``[[section]]`` with every key that was set, ``changed`` ones with their new value.

    A suggestion that left a key out would silently change what it means.
    """
    return _table(f"[[{section}]]", _set_keys(values) | changed)


def table(section: str, values: BaseModel, **changed: Any) -> str:
    """Return the section ``[section]`` with every key that was set, ``changed`` ones with their new value."""
    return _table(f"[{section}]", _set_keys(values) | changed)


def document(config: BaseModel) -> str:
    """Return a whole configuration with its defaults. Secrets are redacted; keys without a value are left out."""
    parts = []
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            parts.append(_table(f"[{name}]", _keys(value)))
        elif value is not None:
            # The address of a webhook often has a key in it.
            hidden = {"url": REDACTED} if name == "webhooks" else {}
            parts += [_table(f"[[{name}]]", _keys(one) | hidden) for one in value]
    return "\n\n".join(parts) + "\n"


def _set_keys(section: BaseModel) -> dict[str, Any]:
    return {name: value for name, value in _keys(section).items() if name in section.model_fields_set}


def _keys(section: BaseModel) -> dict[str, Any]:
    return {name: getattr(section, name) for name in type(section).model_fields if getattr(section, name) is not None}


def _table(header: str, values: Mapping[str, Any]) -> str:
    names = sorted(values, key=lambda name: name not in NAMING_KEYS)
    return "\n".join([header, *(f"{name} = {value_text(values[name])}" for name in names)])


def value_text(value: Any) -> str:
    if isinstance(value, SecretStr):
        return json.dumps(REDACTED)
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, BaseModel):
        return "{ " + ", ".join(f"{name} = {value_text(one)}" for name, one in _keys(value).items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(value_text(one) for one in value) + "]"
    # TOML reads the escapes of JSON, except that it wants characters beyond the first plane as they are, and no DEL.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
