"""The errors of a configuration, in words for its author: the line, the entry by its name, and what to do. Pure."""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

Location: TypeAlias = tuple[str | int, ...]

_ARRAY = re.compile(r"\s*\[\[\s*(.+?)\s*\]\]")
_TABLE = re.compile(r"\s*\[\s*([^\[].*?)\s*\]")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_MULTILINE = re.compile(r'"""|\'\'\'')
_ORDINALS = ("first", "second", "third")
_ALIKE = 0.6

_WORDS = {
    "missing": "is missing. Add it.",
    "int_type": "must be a whole number, without quotes.",
    "int_parsing": "must be a whole number, without quotes.",
    "int_from_float": "must be a whole number, without a point.",
    "float_type": "must be a number, without quotes.",
    "float_parsing": "must be a number, without quotes.",
    "finite_number": "must be a finite number.",
    "bool_type": "must be true or false, without quotes.",
    "bool_parsing": "must be true or false, without quotes.",
    "string_type": "must be a text in quotes.",
    "path_type": "must be a path in quotes.",
    "tuple_type": "must be a list in square brackets.",
    "list_type": "must be a list in square brackets.",
    "model_type": "must be a section with keys.",
    "model_attributes_type": "must be a section with keys.",
    "dict_type": "must be a section with keys.",
    "greater_than": "must be more than {gt}.",
    "greater_than_equal": "must be at least {ge}.",
    "less_than": "must be less than {lt}.",
    "less_than_equal": "must be at most {le}.",
    "enum": "must be one of {expected}.",
    "literal_error": "must be one of {expected}.",
    "string_too_short": "must have at least {min_length} characters.",
    "string_too_long": "must have at most {max_length} characters.",
    "too_short": "must have at least {min_length} in its list.",
    "too_long": "must have at most {max_length} in its list.",
}
_TOO_SHORT = "must have at least {min_length} characters. `openssl rand -hex 32` makes one that cannot be guessed."
_PATTERNS = {
    r"^[^.]+\.[^.]+$": "must be written schema.name, with one point.",
    r"^[A-Za-z0-9_-]{1,64}$": "must have 1 to 64 letters, digits, - or _.",
}


class Misconfigured(ValueError):
    """A problem between several entries. ``place`` is the entry to correct: its section, and its number from 0 on."""

    def __init__(self, place: Location, message: str) -> None:
        super().__init__(message)
        self.place = place


def describe(
    problems: Iterable[ErrorDetails], source: str, text: str, data: Mapping[str, Any], schema: type[BaseModel]
) -> str:
    """Return a line for each problem of ``data``, but no value, which may be a secret.

    ``source`` names the file. ``text`` is its content, empty if all comes from the environment.
    """
    lines = lines_of(text)
    described = []
    for problem in problems:
        place = _place(problem)
        line = next((lines[place[:end]] for end in range(len(place), 0, -1) if place[:end] in lines), None)
        where = source if line is None else f"{source}:{line}"
        label = _label(place, data)
        described.append(f"{where}: {label}{': ' if label else ''}{_words(problem, schema)}")
    return "\n".join(described)


def lines_of(text: str) -> dict[Location, int]:
    """Return the line of each section and key of a TOML text, from 1 on."""
    found: dict[Location, int] = {}
    section: Location = ()
    counts: dict[Location, int] = {}
    inside = False
    for number, line in enumerate(text.splitlines(), 1):
        was_inside, inside = inside, inside ^ (len(_MULTILINE.findall(line)) % 2 == 1)
        if was_inside:
            continue
        if match := _ARRAY.match(line):
            name = _parts(match[1])
            section = (*name, counts.setdefault(name, 0))
            counts[name] += 1
            found.setdefault(name, number)
            found[section] = number
        elif match := _TABLE.match(line):
            section = _parts(match[1])
            found.setdefault(section, number)
        elif match := _KEY.match(line):
            found.setdefault((*section, *_parts(match[1])), number)
    return found


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """Return a question with the nearest known name; an empty text if none is near."""
    near = get_close_matches(wrong, list(known), 1, _ALIKE)
    return f' Did you mean "{near[0]}"?' if near else ""


def entry_label(section: str, number: int, entry: object) -> str:
    """Return an entry of an array of sections by its name, or by its place if it has none."""
    named = entry if isinstance(entry, Mapping) else {}
    name = named.get("name") or named.get("match")
    if isinstance(name, str):
        return f'[[{section}]] "{name}"'
    return f"the {_ordinal(number)} [[{section}]]"


def _parts(dotted: str) -> Location:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _place(problem: ErrorDetails) -> Location:
    """Return where a problem is. A check of the whole configuration says it itself."""
    error = problem.get("ctx", {}).get("error")
    return error.place if isinstance(error, Misconfigured) else problem["loc"]


def _label(place: Location, data: Mapping[str, Any]) -> str:
    if not place:
        return ""
    section, *rest = place
    if rest and isinstance(rest[0], int):
        entries = data.get(str(section))
        entry = entries[rest[0]] if isinstance(entries, list | tuple) and rest[0] < len(entries) else None
        label, keys = entry_label(str(section), rest[0], entry), rest[1:]
    else:
        label, keys = f"[{section}]", rest
    for key in keys:
        label += f", {_ordinal(key)} item" if isinstance(key, int) else f" {key}"
    return label


def _ordinal(number: int) -> str:
    return _ORDINALS[number] if number < len(_ORDINALS) else f"{number + 1}th"


def _words(problem: ErrorDetails, schema: type[BaseModel]) -> str:
    kind, context = problem["type"], problem.get("ctx", {})
    if kind == "extra_forbidden":
        *place, wrong = problem["loc"]
        known = _model_at(schema, place)
        thing = "key" if place else "section"
        if known is None:
            return f"unknown {thing}. Remove it."
        near = suggestion(str(wrong), known.model_fields)
        return f"unknown {thing}." + (near or f" There are {', '.join(sorted(known.model_fields))}.")
    if kind == "too_short" and context["field_type"] == "Value":
        return _TOO_SHORT.format_map(context)
    if kind == "string_pattern_mismatch":
        return _PATTERNS[context["pattern"]]
    if kind in _WORDS:
        return _WORDS[kind].format_map(context)
    return problem["msg"].removeprefix("Value error, ")


def _model_at(schema: type[BaseModel], place: Iterable[str | int]) -> type[BaseModel] | None:
    """Return the model of a section; None if the place has none."""
    found: type[BaseModel] | None = schema
    for key in place:
        if isinstance(key, int):
            continue
        if found is None or key not in found.model_fields:
            return None
        found = next(iter(_models(found.model_fields[key].annotation)), None)
    return found


def _models(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)
