"""Names with an encoded slash. Many clients send ``job/1`` as ``job%2F1``, which would silently be another resource.

A value of a row may have a slash: its name is ``public.files/a%2Fb``. So such a name is accepted if a table makes it,
and no table and no bucket makes its decoded form. All others are refused.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from time import monotonic
from urllib.parse import unquote, unquote_to_bytes

from gateway.bounded import Bounded
from gateway.db.database import Database
from gateway.db.naming import primary_keys
from gateway.errors import ResourceMalformed
from gateway.fencing.resource import Template, spelling

_SLASH = "%2F"
_REMEMBERED = 60.0
"""Seconds for which an accepted name is not looked up again: a holder raises its fence more than once."""
_MOST = 10_000


class Spellings:
    """The names that the rows and objects of one database can have.

    ``tables``: the templates of the rules of tables, by ``schema.table``. ``keys``: those of objects.
    """

    def __init__(self, database: Database, tables: Mapping[str, Template], keys: Sequence[Template]) -> None:
        self._database = database
        self._of_rows = {table: _form(template, "[^/]*") for table, template in tables.items()}
        # A slash in a key stays a slash.
        self._of_keys = [
            _form(template, "(?:(?!%2F)[^/])*", "(?:(?!%2F).)*" if "key" in template.fields else None)
            for template in keys
        ]
        self._accepted: Bounded[str, float] = Bounded(_MOST)

    async def check(self, names: Iterable[str]) -> None:
        """Raise ``ResourceMalformed``, with the spelling to use, for a name that may stand for another one.

        The names are in canonical form. A pattern of names is checked like a name.
        """
        unknown = [name for name in names if _SLASH in name and self._accepted.get(name, 0.0) < monotonic()]
        if not unknown:
            return
        meant = {name: _decoded(name) for name in unknown}
        made = await self._made({*unknown, *(name for name in meant.values() if name is not None)})
        for name, decoded in meant.items():
            _check(name, decoded, made)
        for name in unknown:
            self._accepted.remember(name, monotonic() + _REMEMBERED)

    async def _made(self, names: Collection[str]) -> set[str]:
        """Return the names that a table or a bucket makes."""
        tables = {name: unquote(name.partition("/")[0]) for name in names}
        keys = await primary_keys(self._database, {table for table in tables.values() if "\0" not in table})
        # A rule takes the place of the primary key.
        by_key = {(table, columns) for table, columns in keys if table not in self._of_rows}
        forms = (*self._of_rows.values(), *self._of_keys)
        return {
            name
            for name in names
            if (tables[name], name.count("/")) in by_key or any(form.fullmatch(name) for form in forms)
        }


def _decoded(name: str) -> str | None:
    """Return the name that a client meant if it encoded the whole of it; None where that can be none."""
    try:
        return spelling(unquote_to_bytes(name).decode())
    except UnicodeDecodeError:
        return None


def _check(name: str, decoded: str | None, made: Collection[str]) -> None:
    if name in made and decoded in made:
        raise ResourceMalformed(
            f"{name} is the name of a row, and may also stand for {decoded}.",
            advice=f"If you mean {decoded}, send it like that. If you mean the row, ask the operator for a rule "
            "that gives it a name of its own.",
        )
    if name not in made:
        usage = "A slash between two parts of a name is not encoded; %2F is a slash inside a value of a row."
        raise ResourceMalformed(
            f"No row has the name {name}.",
            advice=usage if decoded is None else f"The right spelling is {decoded}. {usage}",
        )


def _form(template: Template, value: str, last: str | None = None) -> re.Pattern[str]:
    """Return an expression for the names that a template makes of such values. ``last``: the form of the last one."""
    *parts, end = map(re.escape, template.literals)
    values = [*[value] * (len(parts) - 1), last or value] if parts else []
    return re.compile("".join(literal + one for literal, one in zip(parts, values, strict=True)) + end, re.DOTALL)
