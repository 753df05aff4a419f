"""The exposed functions: parameters and results of each form, and which form a call means."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import DialectError
from gateway.tables.catalog import Column, Table
from gateway.tables.dialect.request import BodyType

# Bodies that can be one argument, and the types of a single unnamed parameter that take them.
_WHOLE: Mapping[BodyType, frozenset[str]] = {
    "json": frozenset(("json", "jsonb")),
    "text": frozenset(("text",)),
    "binary": frozenset(("bytea",)),
}
_UNNAMED = frozenset[str]().union(*_WHOLE.values())


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter. ``type`` is its SQL type. If it is not ``required`` it has a default."""

    name: str
    type: str
    required: bool = True
    variadic: bool = False


@dataclass(frozen=True, slots=True)
class Function:
    """One form of a function. ``volatility`` is PostgreSQL's: i immutable, s stable, v volatile.

    ``composite``: it returns rows with ``columns``. Otherwise it returns values of ``type``.
    """

    schema: str
    name: str
    volatility: str
    returns_set: bool
    type: str
    composite: bool
    parameters: tuple[Parameter, ...] = ()
    columns: tuple[Column, ...] = ()
    description: str | None = None

    @property
    def writes(self) -> bool:
        """Return whether it may write. PostgreSQL runs a function that is not volatile as one that only reads."""
        return self.volatility == "v"

    @property
    def returns_nothing(self) -> bool:
        return self.type == "void"

    @property
    def result(self) -> Table:
        columns = self.columns if self.composite else (Column(self.name, self.type, self.type, self.type),)
        return Table(self.schema, self.name, "function", {column.name: column for column in columns}, ())

    @property
    def shown(self) -> str:
        parameters = ", ".join(f"{one.name} => {one.type}" for one in self.parameters)
        return f"{self.schema}.{self.name}({parameters})"

    @property
    def callable(self) -> bool:
        """Return whether a request can give all of its arguments: by name, or a body as the only one."""
        return all(one.name for one in self.parameters) or (
            len(self.parameters) == 1 and self.parameters[0].type in _UNNAMED
        )

    def takes(self, names: Collection[str]) -> bool:
        known = {one.name for one in self.parameters}
        return set(names) <= known and {one.name for one in self.parameters if one.required} <= set(names)

    def takes_whole(self, kind: BodyType) -> bool:
        """Return whether its only parameter has no name and takes a body of this type."""
        if len(self.parameters) != 1 or self.parameters[0].name:
            return False
        return self.parameters[0].type in _WHOLE.get(kind, frozenset())


@dataclass(frozen=True, slots=True)
class Choice:
    """The function that a call means. ``whole``: the body is its one argument."""

    function: Function
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Functions:
    forms: Mapping[tuple[str, str], Sequence[Function]]

    @classmethod
    def from_rows(cls, rows: Iterable[Any]) -> "Functions":
        """Build it from the rows of ``gateway.db.catalog.functions``."""
        forms: dict[tuple[str, str], list[Function]] = {}
        for row in rows:
            function = _function(row)
            if function.callable:
                forms.setdefault((function.schema, function.name), []).append(function)
        return cls(forms)

    def choose(self, schema: str, name: str, names: Collection[str] | None, kind: BodyType | None) -> Choice:
        """Return the one form that takes arguments of these names, or the body as a whole.

        ``names`` None: the arguments have no names. ``kind``: the type of the body; None: there is no body.

        Raises PGRST202 if no form does, PGRST203 if several do.
        """
        forms = self.forms.get((schema, name), ())
        by_name = [] if names is None else [one for one in forms if one.takes(names)]
        whole = [one for one in forms if kind is not None and one.takes_whole(kind)]
        if names and "" in names:
            # The key of an argument without a name, in a document that becomes that argument.
            named = [one for one in by_name if kind == "json" and one.parameters[0].type != "bytea"]
            by_name, whole = [], named or whole
        found = by_name or whole
        if not found:
            raise self._missing(schema, name, names or (), kind)
        if len(found) > 1:
            found.sort(key=lambda one: [(parameter.name, parameter.type) for parameter in one.parameters])
            raise DialectError(
                "PGRST203", 300,
                f"Could not choose the best candidate function between: {', '.join(one.shown for one in found)}",
                hint="Try renaming the parameters or the function itself in the database "
                "so function overloading can be resolved",
            )  # fmt: skip
        return Choice(found[0], whole=not by_name)

    def _missing(self, schema: str, name: str, names: Collection[str], kind: BodyType | None) -> DialectError:
        shown = f"{schema}.{name}"
        listed = ", ".join(sorted(names))
        if kind in ("text", "binary"):
            called, searched = shown, f"{shown} with a single unnamed {'text' if kind == 'text' else 'bytea'} parameter"
        else:
            called = f"{shown}({listed})" if names else f"{shown} without parameters"
            searched = f"{shown} with parameter{'s' if len(names) > 1 else ''} {listed}" if names else called
            searched += " or with a single unnamed json/jsonb parameter" if kind == "json" else ""
        forms: Sequence[Function] = self.forms.get((schema, name), ())
        return DialectError(
            "PGRST202", 404, f"Could not find the function {called} in the schema cache",
            details=f"Searched for the function {searched}, but no matches were found in the schema cache.",
            hint=f"Perhaps you meant to call the function {_named(forms[0])}" if forms else None,
        )  # fmt: skip


def _named(function: Function) -> str:
    return f"{function.schema}.{function.name}({', '.join(sorted(one.name for one in function.parameters))})"


def _function(row: Mapping[str, Any]) -> Function:
    """Return the function of a row, whose names are those of the fields. Values that are lists come as JSON."""
    parameters = tuple(Parameter(**one) for one in json.loads(row["parameters"]))
    columns = tuple(Column(**one) for one in json.loads(row["columns"]))
    return Function(**{**row, "parameters": parameters, "columns": columns})
