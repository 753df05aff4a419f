"""Names with an encoded slash. Many clients send ``job/1`` as ``job%2F1``, which would silently be another resource.

A value of a row may have a slash: its name is ``public.files/a%2Fb``. So such a name is accepted if a table makes it,
and no table and no bucket makes its decoded form. All others are refused.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from time import monotonic
from urllib.parse import unquote

from gateway.db import naming as registry
from gateway.db.database import Database
from gateway.errors import ResourceMalformed
from gateway.fencing.resource import Template, spelling

_SLASH = "%2F"
_REMEMBERED = 60.0
"""Seconds for which an accepted name is not looked up again: a holder renews its lease every few seconds."""
_MOST = 10_000


class Spellings:
    """The names that the rows and objects of one database can have.

    ``tables``: the templates of the rules of tables, by ``schema.table``. ``keys``: those of the rules of objects.
    """

    def __init__(self, database: Database, tables: Mapping[str, Template], keys: Sequence[Template]) -> None:
        self._database = database
        self._of_rows = {table: _form(template) for table, template in tables.items()}
        self._of_keys = [_form(template, open_ended="key" in template.fields) for template in keys]
        self._accepted: dict[str, float] = {}

    async def check(self, names: Iterable[str]) -> None:
        """Raise ``ResourceMalformed``, with the spelling to use, for a name that may stand for another one.

        The names are in canonical form. A pattern of names is checked like a name.
        """
        for name in names:
            if _SLASH in name and self._accepted.get(name, 0.0) < monotonic():
                await self._look_up(name)
                if len(self._accepted) >= _MOST:
                    self._accepted.clear()
                self._accepted[name] = monotonic() + _REMEMBERED

    async def _look_up(self, name: str) -> None:
        decoded = spelling(unquote(name))
        row = await self._is_of_a_row(name)
        other = decoded is not None and (
            any(form.fullmatch(decoded) for form in self._of_keys) or await self._is_of_a_row(decoded)
        )
        if row and other:
            raise ResourceMalformed(
                f"{name} is the name of a row, and may also stand for {decoded}.",
                advice=f"If you mean {decoded}, send it like that. If you mean the row, ask the operator for a rule "
                "that gives it a name of its own.",
            )
        if not row:
            usage = "A slash between two parts of a name is not encoded; %2F is a slash inside a value of a row."
            raise ResourceMalformed(
                f"No row has the name {name}.",
                advice=usage if decoded is None else f"The right spelling is {decoded}. {usage}",
            )

    async def _is_of_a_row(self, name: str) -> bool:
        if any(form.fullmatch(name) for form in self._of_rows.values()):
            return True
        if any(_pattern(one.naming.literals).fullmatch(name) for one in await registry.tables(self._database)):
            return True
        table, *values = name.split("/")
        primary_keys = await registry.primary_keys(self._database, unquote(table))
        return any(number == len(values) for known, number in primary_keys if known not in self._of_rows)


def _form(template: Template, *, open_ended: bool = False) -> re.Pattern[str]:
    """Return an expression for the names that a template makes. ``open_ended``: its last value may have slashes."""
    return _pattern(template.literals, ".*" if open_ended else "[^/]*")


def _pattern(literals: Sequence[str], last: str = "[^/]*") -> re.Pattern[str]:
    *parts, end = map(re.escape, literals)
    return re.compile(f"{'[^/]*'.join(parts)}{last if parts else ''}{end}")
