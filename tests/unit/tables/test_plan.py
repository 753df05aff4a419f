"""Which resources a write claims: never a guess, never more than it can verify."""

import pytest

from gateway.errors import ResourceMalformed, ResourceMismatch, ResourceUnderivable
from gateway.fencing.resource import Template
from gateway.tables import body
from gateway.tables.catalog import Table
from gateway.tables.plan import MAX_RESOURCES, Claim, Naming, Rule, derive, naming, questions, resources
from gateway.tables.request import Request, parse
from tests.unit.tables.samples import ACCOUNTS, column, table

PAIRS = table(column("a", "text"), column("b", "text"), name="pairs", key=("a", "b"))
ORDER = Rule(Template.parse("order/{owner}"))
CONSTANT = Rule(Template.parse("ledger"))


def claimed(
    method: str, query: bytes, content: bytes | None = None, *, of: Table = ACCOUNTS, rule: Rule | None = None,
    explicit: str | None = None, prefer: str = "",
) -> tuple[str, ...]:  # fmt: skip
    request: Request = parse(method, query, {b"prefer": prefer})
    named = naming(of, rule or Rule())
    payload = None if content is None else body.parse(content, request.query.columns)
    claim = derive(request, payload, named, explicit)
    assert questions(claim, named) == {}
    return resources(claim, named, {})


@pytest.mark.parametrize(
    ("method", "query", "content", "expected"),
    [
        ("PATCH", b"id=eq.5", b'{"note":"x"}', ("public.accounts/5",)),
        ("PATCH", b"id=eq.5&balance=gt.0", b'{"note":"x"}', ("public.accounts/5",)),
        ("PATCH", b"id=eq.5", b'{"id":5}', ("public.accounts/5",)),
        ("DELETE", b"id=eq.-5", None, ("public.accounts/-5",)),
        ("DELETE", b"id=in.(10,9,9)", None, ("public.accounts/10", "public.accounts/9")),
        ("DELETE", b"id=in.()", None, ()),
        ("POST", b"", b'{"id":5}', ("public.accounts/5",)),
        ("POST", b"", b'{"id":"5"}', ("public.accounts/5",)),
        ("POST", b"", b'[{"id":7},{"id":6},{"id":6}]', ("public.accounts/6", "public.accounts/7")),
        ("POST", b"", b"[]", ()),
        ("PUT", b"id=eq.5", b'{"id":5}', ("public.accounts/5",)),
    ],
)
def test_the_primary_key_names_the_row(
    method: str, query: bytes, content: bytes | None, expected: tuple[str, ...]
) -> None:
    assert claimed(method, query, content) == expected


@pytest.mark.parametrize(
    ("method", "query", "content"),
    [
        ("PATCH", b"owner=eq.x", b'{"note":"x"}'),
        ("PATCH", b"id=gt.5", b'{"note":"x"}'),
        ("PATCH", b"id=not.eq.5", b'{"note":"x"}'),
        ("PATCH", b"or=(id.eq.5)", b'{"note":"x"}'),
        ("DELETE", b"id->x=eq.5", None),
        ("POST", b"", b'{"owner":"x"}'),
        ("POST", b"", b'{"id":null}'),
        ("POST", b"", b'{"id":[5]}'),
        ("POST", b"columns=owner", b'{"id":5,"owner":"x"}'),
    ],
)
def test_what_does_not_name_its_row_is_refused(method: str, query: bytes, content: bytes | None) -> None:
    with pytest.raises(ResourceUnderivable):
        claimed(method, query, content)


def test_composite_keys_cannot_run_into_each_other() -> None:
    one = claimed("DELETE", b"a=eq.x%2Fy&b=eq.z", of=PAIRS)
    other = claimed("DELETE", b"a=eq.x&b=eq.y%2Fz", of=PAIRS)
    assert one == ("public.pairs/x%2Fy/z",)
    assert other == ("public.pairs/x/y%2Fz",)


def test_one_in_of_a_composite_key() -> None:
    assert claimed("DELETE", b"a=eq.x&b=in.(1,2)", of=PAIRS) == ("public.pairs/x/1", "public.pairs/x/2")


def test_templates_over_other_columns() -> None:
    assert claimed("PATCH", b"owner=eq.7", b'{"note":"x"}', rule=ORDER) == ("order/7",)
    assert claimed("POST", b"", b'{"owner":"a b"}', rule=ORDER) == ("order/a%20b",)


def test_a_constant_template_is_table_scope() -> None:
    assert claimed("PATCH", b"balance=gt.0", b'{"note":"x"}', rule=CONSTANT) == ("ledger",)
    assert claimed("POST", b"", b"{}", rule=CONSTANT) == ("ledger",)


def test_an_explicit_resource_is_claimed_as_it_stands() -> None:
    assert claimed("PATCH", b"balance=gt.0", b'{"note":"x"}', explicit="job/1") == ("job/1",)
    assert claimed("POST", b"", b"{}", explicit="job/1") == ("job/1",)


def test_a_write_that_moves_its_row_is_refused() -> None:
    """Trap 3: the old name could not be checked once the row has a new one."""
    for explicit in (None, "public.accounts/2"):
        with pytest.raises(ResourceMismatch, match="moving a row"):
            claimed("PATCH", b"balance=gt.0", b'{"id":2}', explicit=explicit)
    with pytest.raises(ResourceMismatch):
        claimed("PATCH", b"id=eq.1", b'{"id":2}', explicit="public.accounts/2")
    with pytest.raises(ResourceMismatch):
        claimed("PATCH", b"id=in.(1,2)", b'{"id":2}')


def test_an_update_through_a_view_must_pin_its_name() -> None:
    """A view's columns may be expressions: a name can change although none of its columns is set."""
    view = table(*ACCOUNTS.columns.values(), key=(), kind="v")
    with pytest.raises(ResourceMismatch):
        claimed("PATCH", b"balance=gt.0", b'{"note":"x"}', of=view, rule=ORDER, explicit="order/7")
    assert claimed("PATCH", b"owner=eq.7", b'{"note":"x"}', of=view, rule=ORDER) == ("order/7",)


def test_an_update_must_pin_a_generated_name() -> None:
    generated = table(column("id"), column("owner", "text", generated=True))
    with pytest.raises(ResourceMismatch):
        claimed("PATCH", b"id=eq.1", b'{"id":1}', of=generated, rule=ORDER, explicit="order/7")


@pytest.mark.parametrize("content", [b'{"id":1}', b'[{"id":1,"owner":"8"},{"id":2,"owner":"7"}]'])
def test_an_upsert_must_know_the_whole_name(content: bytes) -> None:
    """It never overwrites columns of the name, so what it sends there must be what is claimed."""
    with pytest.raises((ResourceUnderivable, ResourceMismatch)):
        claimed("POST", b"", content, rule=ORDER, explicit="order/7", prefer="resolution=merge-duplicates")


@pytest.mark.parametrize(
    "key",
    [
        column("id", "double precision"),
        column("id", "numeric"),
        column("id", "citext"),
        column("id", "character"),
        column("id", "interval"),
        column("id", "jsonb", is_json=True),
        column("id", "text", deterministic=False),
    ],
)
def test_types_whose_equality_is_not_textual_name_nothing(key: object) -> None:
    odd = table(key)  # type: ignore[arg-type]
    with pytest.raises(ResourceUnderivable, match="equal values can have different texts"):
        claimed("DELETE", b"id=eq.5", of=odd)
    assert claimed("DELETE", b"id=eq.5", of=odd, explicit="public.accounts/5") == ("public.accounts/5",)


@pytest.mark.parametrize(
    ("type_", "value", "asked"),
    [
        ("bigint", "5", False),
        ("bigint", "05", True),
        ("bigint", " 5 ", True),
        ("bigint", "+5", True),
        ("bigint", "-0", True),
        ("bigint", "٥", True),
        ("uuid", "6f1c3f0e-0b1a-4c8e-9f0a-111111111111", False),
        ("uuid", "6F1C3F0E-0B1A-4C8E-9F0A-111111111111", True),
        ("text", "anything / at all", False),
        ("date", "2024-01-02", True),
        ("boolean", "true", True),
    ],
)
def test_only_the_database_brings_values_into_canonical_form(type_: str, value: str, *, asked: bool) -> None:
    named = naming(table(column("id", type_)), Rule())
    assert bool(questions(Claim(None, ((value,),)), named)) is asked


def test_canonical_forms_go_into_the_name_as_they_come() -> None:
    named = naming(ACCOUNTS, Rule())
    assert resources(Claim(None, (("05",), ("5",))), named, {("id", "05"): "5"}) == ("public.accounts/5",)


def test_a_name_that_grows_too_long_is_malformed() -> None:
    with pytest.raises(ResourceMalformed):
        claimed("PATCH", b"owner=eq." + b"x" * 600, b'{"note":"x"}', rule=ORDER)


def test_one_write_claims_a_bounded_number_of_resources() -> None:
    many = b"id=in.(" + b",".join(b"%d" % number for number in range(MAX_RESOURCES + 1)) + b")"
    with pytest.raises(ResourceUnderivable, match="at most"):
        claimed("DELETE", many)
    with pytest.raises(ResourceUnderivable, match="at most"):
        claimed("DELETE", b"a=in.(" + b"1," * 99 + b"2)&b=in.(" + b"1," * 99 + b"2)", of=PAIRS)


def test_tables_that_name_nothing() -> None:
    with pytest.raises(ResourceUnderivable, match="no primary key"):
        naming(table(column("id"), key=()), Rule())
    with pytest.raises(ResourceUnderivable, match="does not have"):
        naming(ACCOUNTS, Rule(Template.parse("job/{nope}")))


def test_schema_and_table_are_escaped() -> None:
    odd = table(column("id"), name="my table")
    assert naming(odd, Rule()).template.join(["1"]) == "public.my%20table/1"
    assert isinstance(naming(odd, Rule()), Naming)
