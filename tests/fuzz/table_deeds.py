"""Requests to tables: fenced writes with their marks, reads, and nonsense."""

from __future__ import annotations

import json

from tests.fuzz.deeds import (
    ACCOUNTS,
    DRY,
    ELSEWHERE,
    JSON,
    LIMITED,
    PROVEN,
    SINGULAR,
    STALE_ACCOUNT,
    Choices,
    Deed,
    Effect,
)
from tests.fuzz.reading import Fields

_REPRESENTATION = ("Prefer", "return=representation")
_FORMS: dict[str, Fields] = {
    "plain": [],
    "other": [ELSEWHERE],
    "limited": [LIMITED],
    "dry": [DRY],
    "representation": [_REPRESENTATION],
    "singular": [SINGULAR, _REPRESENTATION],
    "minimal": [("Prefer", "return=minimal")],
    "other, representation": [ELSEWHERE, _REPRESENTATION],
}
_UNDONE = ("limited", "dry", "singular")
"""Of two rows, none of these changes any."""
_NAMES = "select order limit offset account_id and or mark entries.id on_conflict columns"
_FILTERS = ("id=eq.1", "mark=gt.5&order=id.desc", "select=id,account_id", "or=(id.eq.1,id.eq.2)", "id=in.(1,2,3)")


def update(name: str, choices: Choices) -> Deed:
    """Update both rows of an account."""
    mark, key, token = choices.mark(), choices.key(), choices.token()
    form = choices.one(*_FORMS)
    headers = [*choices.authorization(key), *choices.tokens(token), *_FORMS[form], JSON]
    allowed = key in PROVEN and token == "held" and form not in _UNDONE
    effect = Effect(mark, f"{_schema(form)}.entries", allowed, certain=allowed, rows=2)
    target = f"/v1/tables/entries?account_id=eq.{_account(token, choices)}"
    body = json.dumps({"mark": mark}).encode()
    return Deed(name, "PATCH", target, headers, body, choices.trailers(name), key in PROVEN, effect)


def insert(name: str, choices: Choices) -> Deed:
    """Insert a new row under a resource of its own: by POST, by PUT of the whole row, or by a function."""
    mark, key, token = choices.mark(), choices.key(), choices.token()
    form = choices.one("plain", "other", "representation", "dry", "minimal")
    schema = _schema(form)
    resource = f"{schema}.accounts/{mark}"
    headers = [*choices.authorization(key), *choices.tokens(token), *_FORMS[form]]
    method, target = choices.one(("POST", "accounts"), ("PUT", f"accounts?id=eq.{mark}"))
    calls = schema == "public" and choices.often(0.3)
    if calls:
        method, target = "POST", "rpc/add_account"
        headers.append(("Fencing-Resource", resource))
    body, kind = json.dumps({"id": mark, "mark": mark}).encode(), JSON
    if target == "accounts" and choices.often(0.3):
        body, kind = f"id,mark\n{mark},{mark}\n".encode(), ("Content-Type", "text/csv")
    # A new row has no newer holder.
    allowed = key in PROVEN and token in ("held", "stale") and form != "dry"
    effect = Effect(mark, f"{schema}.accounts", allowed, certain=allowed and not calls, name=resource)
    trailers = choices.trailers(name)
    return Deed(name, method, f"/v1/tables/{target}", [*headers, kind], body, trailers, key in PROVEN, effect)


def transaction(name: str, choices: Choices) -> Deed:
    """Send a list of one write, or a malformed list."""
    mark, key, token = choices.mark(), choices.key(), choices.token()
    query = f"account_id=eq.{_account(token, choices)}"
    write = {"method": "PATCH", "table": "entries", "query": query, "body": {"mark": mark}}
    document: object = {"writes": [write]}
    if choices.often(0.2):
        other: dict[str, object] = {
            choices.one("query", "table", "token", "schema", "method", "prefer"): choices.nasty()
        }
        document = choices.one({"writes": []}, {"writes": [write] * 101}, [], None, {"writes": [{**write, **other}]})
    headers = [*choices.authorization(key), *choices.tokens(token), JSON]
    # It may be for another account by now, whose fence the token may raise.
    effect = Effect(mark, "public.entries", key in PROVEN and token == "held", rows=2)
    body = json.dumps(document).encode()
    return Deed(name, "POST", "/v1/transaction", headers, body, choices.trailers(name), key in PROVEN, effect)


def read(name: str, choices: Choices) -> Deed:
    key = choices.key()
    table, query = choices.one("entries", "accounts"), choices.one(*_FILTERS)
    further: Fields = [
        choices.one(
            ("Accept-Profile", "other"), SINGULAR, ("Accept", "text/csv"), ("Prefer", "count=exact"), ("Range", "0-1")
        )
    ]
    headers = [*choices.authorization(key), *further[: choices.one(0, 1)]]
    return Deed(name, choices.one("GET", "GET", "HEAD"), f"/v1/tables/{table}?{query}", headers, known=key in PROVEN)


def nonsense(name: str, choices: Choices) -> Deed:
    """Send odd queries, tables and bodies, and deletes without a token."""
    key = choices.key()
    headers = choices.authorization(key)
    segment = choices.nasty_segment()
    table = choices.one("", "nothing", "rpc/", "rpc/nothing", "rpc/add_account", "pg_class", "a/b", segment)
    method, target = choices.one(
        (choices.one("GET", "HEAD", "POST", "PATCH", "DELETE", "PUT"), f"entries?{choices.nasty_query(_NAMES, 1)}"),
        (choices.one("GET", "POST", "OPTIONS", "PATCH"), table),
        ("DELETE", f"entries?account_id=eq.{choices.one(*ACCOUNTS)}"),
        ("OPTIONS", "entries"),
    )
    if method == "OPTIONS":
        headers += [("Access-Control-Request-Method", "PATCH"), ("Origin", "http://a")]
    elif "account_id=eq" not in target:  # with a token it would delete what others write to
        headers += choices.tokens(choices.token())
    return Deed(
        name, method, f"/v1/tables/{target}", headers, choices.nonsense(), choices.trailers(name), key in PROVEN
    )


def _schema(form: str) -> str:
    return "other" if "other" in form else "public"


def _account(token: str, choices: Choices) -> int:
    return STALE_ACCOUNT if token == "stale" else choices.one(*ACCOUNTS)
