"""Problems of a configuration in plain words, each with its place: the line of the file, or the variable.

Words have no values, which may be secrets.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias, get_args

from pydantic import BaseModel, ValidationError

from gateway.config.sections import FROM_FILE, Misplaced, Section

Place: TypeAlias = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*("[^"]*"|'[^']*'|[A-Za-z0-9_-]+)\s*(\.|=)""")
_ALIKE = 0.6
NAMING_KEYS = ("name", "match")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean …?`` with the nearest known name, or nothing if none is near."""
    near = get_close_matches(name, list(known), 1, _ALIKE)
    return f" Did you mean {near[0]}?" if near else ""


class Places:
    """The places of one configuration: ``text`` of the file ``source``, with its ``values``, under the environment."""

    def __init__(self, source: str, text: str, values: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._source, self.text, self.values = source, text, values
        self._lines = _lines(text)
        self._environment = {name.upper(): value for name, value in environment.items()}

    def describe(self, place: Place) -> str:
        """Return the file and line, or the variable, and then the section, the entry by its name, and the key."""
        return ": ".join(part for part in (self._origin(place), self._words(place)) if part)

    def variable(self, place: Place) -> str | None:
        """Return the variable of the environment that overrides the file at a place; None if there is none."""
        names = [str(part).upper() for part in place if not isinstance(part, int)]
        variables = ["GATEWAY_" + "__".join(names[:count]) for count in (len(names), 2, 1) if names]
        return next((one for one in variables if one in self._environment), None)

    def line(self, place: Place) -> int | None:
        """Return the line of the file on which a section, an entry or a key begins, from 1; None if it has none."""
        return self._lines.get(place)

    def _origin(self, place: Place) -> str:
        if (variable := self.variable(place)) is not None:
            return f"the environment, {variable}"
        for length in range(len(place), 0, -1):
            if (line := self.line(place[:length])) is not None:
                return f"{self._source}, line {line}"
        return self._source

    def _words(self, place: Place) -> str:
        if not place:
            return ""
        section, *rest = place
        if rest and isinstance(rest[0], int):
            words = f"[[{section}]] {self._entry(str(section), rest.pop(0))}"
        else:
            words = f"[{section}]"
        keys = [str(part) for part in rest if not isinstance(part, int)]
        return f"{words}, {', '.join(keys)}" if keys else words

    def _entry(self, section: str, index: Any) -> str:
        entries = self.values.get(section)
        if overriding := self._environment.get(f"GATEWAY_{section.upper()}"):
            try:
                entries = json.loads(overriding)
            except ValueError:
                entries = None
        if isinstance(entries, Sequence) and index < len(entries) and isinstance(entries[index], Mapping):
            for key in NAMING_KEYS:
                if isinstance(name := entries[index].get(key), str) and name:
                    return f'"{name}"'
        return f"without a name (entry {index + 1})"


def _lines(text: str) -> dict[Place, int]:
    """Return the first line of each section, entry and key. A line inside a long text is no key."""
    found: dict[Place, int] = {}
    counts: dict[Place, int] = {}
    at: Place = ()
    quoted = False
    for number, line in enumerate(text.splitlines(), 1):
        begun_inside = quoted
        quoted ^= (line.count('"""') + line.count("'''")) % 2 == 1
        if begun_inside:
            continue
        if header := _HEADER.match(line):
            at = ()
            names = [name.strip().strip("\"'") for name in header[2].split(".")]
            for position, name in enumerate(names):
                at = (*at, name)
                if position == len(names) - 1 and header[1] == "[[":
                    counts[at] = counts.get(at, -1) + 1
                    found.setdefault(at, number)
                if at in counts:
                    at = (*at, counts[at])
            found.setdefault(at, number)
        elif key := _KEY.match(line):
            found.setdefault((*at, key[1].strip("\"'")), number)
    return found


def explain(error: ValidationError, config: type[BaseModel], places: Places) -> str:
    """Return each problem with its place, in plain words, but without values, which may be secrets."""
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        place: Place = tuple(problem["loc"])
        context = problem.get("ctx", {})
        if isinstance(found := context.get("error"), Misplaced):
            place += found.place
        lines.append(f"{places.describe(place)}: {_problem(problem['type'], problem['msg'], context, place, config)}")
    return "\n".join(lines)


# The words for each kind of problem that pydantic finds. A kind that is not here gets words without detail.
_WORDS = {
    "bool": "must be true or false",
    "date": "must be a date",
    "enum": "must be one of {expected}",
    "finite_number": "must be a number that is not infinite",
    "float": "must be a number",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be {ge} or more",
    "int": "must be a whole number",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be {le} or less",
    "literal_error": "must be one of {expected}",
    "path": "must be a path in quotes",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_short": "must have at least {min_length} characters",
    "string": "must be a text in quotes",
}
_OTHERWISE = "has a value that is not allowed; see docs/reference/configuration.md"
_PATTERNS = {
    r"^[^.]+\.[^.]+$": "must be schema.name, such as public.orders",
    r"^[A-Za-z0-9_-]{1,64}$": "must have 1 to 64 letters, digits, _ or -",
}


def _problem(kind: str, message: str, context: Mapping[str, Any], place: Place, config: type[BaseModel]) -> str:
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    if kind == "missing":
        return _missing(place, config)
    if kind == "extra_forbidden":
        known = _known(place[:-1], config)
        what = "unknown section" if len(place) == 1 else "unknown key"
        return f"{what}.{nearest(str(place[-1]), known) or ' Known here: ' + ', '.join(known) + '.'}"
    if kind in ("too_short", "string_too_short") and context.get("min_length") == 1:
        return "must not be empty; set it, or remove the key"
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(context.get("pattern", ""), _OTHERWISE)
    if kind in ("tuple_type", "list_type"):
        section = len(place) == 1
        return f"must be written [[{place[0]}]], with two brackets" if section else 'must be a list, such as ["a", "b"]'
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        entry = any(isinstance(part, int) for part in place)
        return "must be a section with keys" if entry else f"must be written [{place[0]}], with one bracket, and keys"
    known_kinds = (kind, kind.rpartition("_")[0], kind.partition("_")[0])
    words = next((_WORDS[name] for name in known_kinds if name in _WORDS), _OTHERWISE)
    return words.format(**{key: _plain(value) for key, value in context.items()})


def _missing(place: Place, config: type[BaseModel]) -> str:
    if len(place) == 1:
        return "the section is missing; add it"
    file = f", or {place[-1]}{FROM_FILE} with the path of a file" if _is_secret(place, config) else ""
    return f"it is missing; set it{file}"


def _plain(value: Any) -> Any:
    """Return a limit as a reader writes it: without a fraction that is nought."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _model(place: Place, config: type[BaseModel]) -> type[BaseModel] | None:
    """Return the section at a place; None if there is none."""
    model: type[BaseModel] | None = config
    for part in place:
        if isinstance(part, int):
            continue
        field = None if model is None else model.model_fields.get(part)
        model = None if field is None else _model_in(field.annotation)
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)


def _known(place: Place, config: type[BaseModel]) -> list[str]:
    model = _model(place, config)
    if model is None:
        return []
    files = [key + FROM_FILE for key in model.secret_keys()] if issubclass(model, Section) else []
    return [*model.model_fields, *files]


def _is_secret(place: Place, config: type[BaseModel]) -> bool:
    model = _model(place[:-1], config)
    return model is not None and issubclass(model, Section) and place[-1] in model.secret_keys()
