"""A configuration as TOML: entries and sections to paste, the whole text without secrets, and a file with other modes.

The package itself reads a file. ``sections.py`` refuses keys that are not known.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, SecretStr

from gateway.config.explanations import NAMING_KEYS, Place, Places
from gateway.errors import ConfigurationError
from gateway.fencing.decision import Enforcement

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


_MODE = re.compile(rf"""(\bmode["']?\s*=\s*)(["']){Enforcement.OBSERVE}\2""")


def enforcing(known: Places, sections: Iterable[Place]) -> str:
    """Return the text of a file in which these sections, or entries, have the mode enforce. All else stays as it is.

    Raises ``ConfigurationError`` if the text is written so that a line cannot be changed alone.
    """
    lines, expected = known.text.splitlines(keepends=True), tomllib.loads(known.text)
    for section in sorted(sections, key=lambda one: known.line(one) or 0, reverse=True):
        _enforce(known, section, lines)
        values: Any = expected
        for part in section:
            values = values[part]
        values["mode"] = Enforcement.ENFORCE.value
    text = "".join(lines)
    try:
        changed = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        changed = {}
    if changed != expected:
        raise ConfigurationError(
            "The file is not written in lines that can be changed one by one.",
            advice=f'Write mode = "{Enforcement.ENFORCE}" into it yourself: '
            + "; ".join(known.describe((*section, "mode")) for section in sections),
        )
    return text


def _enforce(known: Places, section: Place, lines: list[str]) -> None:
    """Change the mode in the lines of a section, or add it. ``enforcing`` compares the result."""
    whole = known.line(section)
    if (at := known.line((*section, "mode")) or whole) is None:
        return
    lines[at - 1], changed = _MODE.subn(rf'\1"{Enforcement.ENFORCE}"', lines[at - 1], count=1)
    if not changed and whole is not None:
        named = [line for key in NAMING_KEYS if (line := known.line((*section, key))) is not None]
        at = max([whole, *named])
        ending = lines[at - 1][len(lines[at - 1].rstrip("\r\n")) :] or "\n"
        lines[at - 1] = lines[at - 1].rstrip("\r\n") + ending
        lines.insert(at, f'mode = "{Enforcement.ENFORCE}"{ending}')


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
