"""The version of a row that a request is meant for: the conditions of RFC 9110, compared with the row's ETag.

A fencing token stops a writer whose lock has passed to another holder. It does not stop two live writers that have both
read a row before either wrote it. An ETag does.
"""

import re
from dataclasses import dataclass

from gateway.errors import ConditionUnsupported, RequestMalformed, RowChanged
from gateway.tables.catalog import Table
from gateway.tables.dialect.query import Query, names_one_row

MOST_TAGS = 100

# RFC 9110, 8.8.3: an opaque tag stands in double quotes, and has neither quotes nor spaces in it. Possessive, because
# a head has room for so many spaces that going back takes half a minute.
_ITEM = re.compile(r'[ \t]*+(?:(W/)?"([\x21\x23-\x7e\x80-\xff]*+)")?[ \t]*+(?:,|$)')


GRAMMAR = r'(\*|(W/)?"[\x21\x23-\x7e\x80-\xff]*"([ \t]*,[ \t]*(W/)?"[\x21\x23-\x7e\x80-\xff]*")*)'
"""The form of such a header, as schemas say it. Empty items of the list are taken, too."""


@dataclass(frozen=True, slots=True)
class Tags:
    """A list of entity tags without their quotes, or ``*``, which stands for any there is."""

    strong: frozenset[str] = frozenset()
    weak: frozenset[str] = frozenset()
    anything: bool = False

    def match_strongly(self, current: str | None) -> bool:
        """RFC 9110, 8.8.3.2: a weak tag equals nothing, not even itself."""
        return current is not None and (self.anything or current in self.strong)

    def match_weakly(self, current: str | None) -> bool:
        return current is not None and (self.anything or current in self.strong or current in self.weak)


@dataclass(frozen=True, slots=True)
class Preconditions:
    """``If-Match`` and ``If-None-Match`` of one request, each None where it was not sent."""

    match: Tags | None = None
    none_match: Tags | None = None

    def met_by(self, current: str | None) -> bool:
        """Whether they hold for a row with this tag; None: there is no such row."""
        if self.match is not None and not self.match.match_strongly(current):
            return False
        return self.none_match is None or not self.none_match.match_weakly(current)


def parse_preconditions(match: str | None, none_match: str | None) -> Preconditions | None:
    """Read both headers; None without any. Raises ``RequestMalformed`` for what is neither ``*`` nor quoted tags."""
    if match is None and none_match is None:
        return None
    return Preconditions(_tags(match, "If-Match"), _tags(none_match, "If-None-Match"))


def check_preconditions(preconditions: Preconditions | None, method: str, query: Query, table: Table) -> None:
    """``ConditionUnsupported``, unless it is about one row that this condition can be held against."""
    if preconditions is None:
        return
    reads = method in ("GET", "HEAD")
    if reads and preconditions.match is None:
        return  # a row without an ETag has not been read before, so If-None-Match holds
    if method == "POST" or not names_one_row(query, table.primary_key):
        keys = ", ".join(table.primary_key)
        raise ConditionUnsupported(
            "A condition on an ETag is taken only where the request names one row.",
            advice=f"Filter by 'eq' on the whole primary key ({keys}), without embedding, or leave the condition out."
            if keys and method != "POST"
            else "Leave the condition out; a row of a table with a primary key can be written by PUT with it.",
        )
    if method in ("PATCH", "DELETE") and preconditions.none_match is not None and preconditions.none_match.anything:
        raise ConditionUnsupported(
            f"A {method} changes a row that is there, so with 'If-None-Match: *' it could never do anything.",
            advice="Send If-Match with the ETag you have read, or use PUT to create the row.",
        )


def row_changed(current: str | None) -> RowChanged:
    """Return the error for a row whose ETag is now ``current``; None: the row is gone."""
    if current is None:
        return RowChanged("There is no such row any more, or not yet.", facts={"etag": None})
    etag = f'"{current}"'
    return RowChanged(f"The row is another version now: its ETag is {etag}.", facts={"etag": etag})


def _tags(header: str | None, name: str) -> Tags | None:
    if header is None:
        return None
    if header.strip(" \t") == "*":
        return Tags(anything=True)
    strong: set[str] = set()
    weak: set[str] = set()
    position = 0
    while position < len(header):
        item = _ITEM.match(header, position)
        if item is None or item.end() == position:
            raise _malformed(name)
        if item[2] is not None:
            (weak if item[1] else strong).add(item[2])
        position = item.end()
    if not strong and not weak:
        raise _malformed(name)
    if len(strong) + len(weak) > MOST_TAGS:
        raise RequestMalformed(f"{name} has more than {MOST_TAGS} tags.", advice="Send the one you have read.")
    return Tags(frozenset(strong), frozenset(weak))


def _malformed(name: str) -> RequestMalformed:
    return RequestMalformed(
        f"{name} is neither * nor a list of ETags.",
        advice="Send an ETag as the gateway gave it, with its double quotes.",
    )
