"""Naming: what the rows of a table and the keys of a bucket are called, and whether a gateway may use its names.

A fence protects a row only under the one name that all writers give it. The database holds the naming in force for each
table and each bucket. A gateway whose configuration says otherwise refuses its own writes.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar
from uuid import UUID

from gateway.errors import NamingChanged

# Types whose values have the same texts, so that a column may change between them and keep its names.
_ALIKE = {
    "smallint": "integer",
    "bigint": "integer",
    "character varying": "text",
    "name": "text",
}


@dataclass(frozen=True, slots=True)
class NameColumn:
    """A column whose values are part of names. A rename of the column changes no name.

    ``number``: its position in the catalog, which no other column of the table ever gets.
    """

    name: str = field(compare=False)
    type: str
    number: int

    @classmethod
    def of(cls, name: str, exact_type: str, number: int) -> Self:
        """Return a column of this type. Types with the same texts become one."""
        family = exact_type.partition("(")[0] if exact_type.startswith("character varying") else exact_type
        return cls(name, _ALIKE.get(family, exact_type), number)


@dataclass(frozen=True, slots=True)
class TableNaming:
    """The names of a table's rows: ``literals`` with the values of ``columns`` between them."""

    literals: tuple[str, ...]
    columns: tuple[NameColumn, ...]

    def __str__(self) -> str:
        fields = (f"{{{column.name} {column.type}}}" for column in self.columns)
        return "".join(part for pair in zip(self.literals, (*fields, ""), strict=True) for part in pair)

    def to_json(self) -> str:
        """Return it as the database keeps it."""
        columns = [{"name": one.name, "type": one.type, "number": one.number} for one in self.columns]
        return json.dumps({"literals": self.literals, "columns": columns})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what ``to_json`` wrote."""
        kept = json.loads(text)
        return cls(tuple(kept["literals"]), tuple(NameColumn(**column) for column in kept["columns"]))


@dataclass(frozen=True, slots=True)
class BucketNaming:
    """The names of a bucket's keys: the rules that may concern it, each a pattern and a template, in their order."""

    rules: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "; ".join(f"{pattern} is {template}" for pattern, template in self.rules)

    def to_json(self) -> str:
        """Return it as the database keeps it."""
        return json.dumps([{"match": pattern, "resource": template} for pattern, template in self.rules])

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what ``to_json`` wrote."""
        return cls(tuple((rule["match"], rule["resource"]) for rule in json.loads(text)))


NamingT = TypeVar("NamingT", TableNaming, BucketNaming)


@dataclass(frozen=True, slots=True)
class RegisteredNaming(Generic[NamingT]):
    """The naming in force for one target, ``schema.table`` or a bucket. ``relation``: the oid of the table.

    ``change``: the naming that is being applied. The target takes no write meanwhile.
    """

    name: str
    naming: NamingT
    generation: UUID
    change: NamingT | None = None
    relation: int = 0


def check(target: str, naming: NamingT, registered: RegisteredNaming[NamingT]) -> None:
    """Raise ``NamingChanged`` unless the configured naming of a target is the one in force. ``target`` for people."""
    if registered.change is not None:
        raise NamingChanged.in_progress(target, str(registered.naming), str(registered.change))
    if registered.naming != naming:
        was, configured = str(registered.naming), str(naming)
        if was == configured:
            configured = f"{configured}, over other columns"
        raise NamingChanged(
            f"In force for {target} is the naming {was}. This gateway is configured with {configured}.",
            facts={"target": target, "in-force": was, "configured": configured},
        )


def concerning(
    name: str, relation: int, registry: Iterable[RegisteredNaming[TableNaming]]
) -> list[RegisteredNaming[TableNaming]]:
    """Return the namings that a table has by its name, ``schema.table``, or by the relation itself.

    Rows of a renamed table keep the fences that they have. A table that was made anew gets the fences of the rows of
    its predecessor.
    """
    return [one for one in registry if name == one.name or relation == one.relation]


def check_table(
    name: str, relation: int, naming: TableNaming, registry: Iterable[RegisteredNaming[TableNaming]]
) -> UUID | None:
    """Return the generation that proves the naming of a table; None if it is to be registered first.

    Raise ``NamingChanged`` if another naming concerns the table.
    """
    exact = None
    for one in concerning(name, relation, registry):
        check(f"the table {name}", naming, one)
        if (one.name, one.relation) == (name, relation):
            exact = one.generation
    return exact
