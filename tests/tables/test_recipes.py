"""Plain requests have a form, and a recipe puts their values into its statement and its resource name."""

import pytest

from gateway.errors import TokenMalformed
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.sequencer import Sequencer
from gateway.fencing.token import Token
from gateway.http.head import Head
from gateway.tables.dialect import body
from gateway.tables.dialect.request import parse
from gateway.tables.execute import recipes
from gateway.tables.execute.recipes import FormReader, RequestForm, WriteRecipe
from gateway.tables.naming import Rule, naming
from gateway.tables.schema_cache import CachedTable
from gateway.tables.sql.shape import lower_write
from gateway.tables.sql.statements import Statements
from tests.tables.asking import ACCOUNTS

Headers = list[tuple[bytes, bytes]]

TOKEN: Headers = [(b"host", b"gateway"), (b"fencing-token", b"5"), (b"content-length", b"9")]


def head(
    method: str = "PATCH", query: str = "id=eq.1", headers: Headers = TOKEN, path: str = "/v1/tables/accounts"
) -> Head:
    return Head(method, path, path.encode(), query.encode(), tuple(headers))


def test_requests_that_differ_in_values_have_one_form() -> None:
    forms = FormReader()
    one, other = forms.read(head(query="id=eq.1&owner=eq.ann")), forms.read(head(query="id=eq.22&owner=eq.bob"))
    assert one is not None
    assert other is not None
    assert one.form == other.form == RequestForm("PATCH", "/v1/tables/accounts", (None,) * 5, ("id", "owner"))
    assert (one.values, other.values) == (["1", "ann"], ["22", "bob"])


def test_everything_but_values_is_part_of_the_form(subtests: pytest.Subtests) -> None:
    for changed in (
        head("DELETE"),
        head(path="/v1/tables/others"),
        head(query="owner=eq.1"),
        head(query="id=eq.1&select=id"),
        head(query="id=eq.1&columns=id"),
        *(
            head(headers=[*TOKEN, (name, b"x")])
            for name in (b"prefer", b"accept", b"content-type", b"accept-profile", b"content-profile")
        ),
    ):
        with subtests.test(changed=changed):
            forms = FormReader()
            plain, other = forms.read(head()), forms.read(changed)
            assert plain is not None
            assert other is not None
            assert plain.form != other.form


def test_fencing_headers_are_not_part_of_the_form() -> None:
    proof = b"public.accounts/1:exclusive:5:AA"
    said: Headers = [
        (b"fencing-holder", b"ann"),
        (b"fencing-resource", b"public.accounts/1"),
        (b"fencing-sequencer", proof),
    ]
    forms = FormReader()
    silent, telling = forms.read(head()), forms.read(head(headers=[*TOKEN, *said]))
    assert silent is not None
    assert telling is not None
    assert silent.form == telling.form
    assert telling.shown() == FencingHeaders(
        Token(0, 5), "public.accounts/1", "ann", sequencers=(Sequencer.parse(proof.decode()),)
    )


def test_a_head_reads_each_query_as_if_it_were_its_first(subtests: pytest.Subtests) -> None:
    """It remembers the forms of queries with one filter."""
    seasoned = FormReader().head(head())
    assert seasoned is not None
    for number in range(40):
        for name in (b"id", b"filter_%d" % number, b"select", b"owner"):
            assert seasoned.with_query(b"%b=eq.%d" % (name, number)) is not None
    for query in (
        "id=eq.7", "id=eq.a:b.c", "owner=eq.id=eq.7", "id=eq.7&owner=eq.8", "id=eq.7&id=eq.8", "id=eq.7&", "id=eq.%31",
        "id=eq." + 201 * "1", "id=eq.", "id=eq.1\n", "id=neq.1", "id", "", "select=eq.id", "limit=eq.1",
        "filter_39=eq.1", "id=eq.1&select=id", "select=id&id=eq.1",
    ):  # fmt: skip
        with subtests.test(query):
            fresh = FormReader().head(head())
            assert fresh is not None
            assert seasoned.with_query(query.encode()) == fresh.with_query(query.encode())


def test_values_take_the_place_of_those_of_the_head() -> None:
    plain = FormReader().head(head())
    assert plain is not None
    later = plain.with_values({b"fencing-token": b"6", b"fencing-holder": b"ann"})
    for one, token, holder in ((plain, Token(0, 5), None), (later, Token(0, 6), "ann")):
        request = one.with_query(b"id=eq.1")
        assert request is not None
        assert (request.shown().token, request.shown().holder) == (token, holder)
    unreadable = plain.with_values({b"fencing-token": b"x"}).with_query(b"id=eq.1")
    assert unreadable is not None
    with pytest.raises(TokenMalformed):
        unreadable.shown()


def test_other_filters_have_no_form(subtests: pytest.Subtests) -> None:
    for query in (
        "id=eq.%31", "id=eq.1+2", "id=eq.", "id=neq.1", "id=not.eq.1", "id=in.(1)", "id=eq(any).{1}", "or=(id.eq.1)",
        "id", "a->b=eq.1", '"id"=eq.1', "ID=eq.1", "rel.id=eq.1", "apikey=x", "id=eq.1&&id=eq.2", "id=eq.a b",
        "id=eq." + "1" * 201, "i\u00e4=eq.1",
    ):  # fmt: skip
        with subtests.test(query=query):
            assert FormReader().read(head(query=query)) is None


def test_a_request_with_another_header_of_the_dialect_or_a_repeated_one_has_no_form(subtests: pytest.Subtests) -> None:
    for header in (
        b"fencing_resource", b"fencing_sequencer", b"x-fencing-token", b"fencing_token", b"Fencing-Token",
        b"x_fencing_token", b"fencing_holder", b"range", b"if-match", b"if-none-match", b"idempotency-key", b"expect",
        b"fencing-anything", b"fencing-token",
    ):  # fmt: skip
        with subtests.test(header=header):
            forms = FormReader()
            for _ in range(2):
                assert forms.read(head(headers=[*TOKEN, (header, b"x")])) is None


def test_the_cache_of_header_names_is_bounded() -> None:
    forms = FormReader()
    for number in range(3 * recipes.MOST_NAMES):
        assert forms.read(head(headers=[*TOKEN, (b"x-%d" % number, b"")])) is not None
    assert len(forms._plain) <= recipes.MOST_NAMES


def learnt(method: str, query: str, content: str, template_of: Rule | None = None) -> WriteRecipe | None:
    plain = FormReader().read(head(method, query))
    assert plain is not None
    wanted = parse(method, query.encode(), {})
    named = naming(ACCOUNTS, template_of or Rule())
    columns = body.parse(content.encode(), None).columns if content else ()
    shape, values = lower_write(wanted, ACCOUNTS, columns, default_row=False, fenced=True)
    statements = Statements(ACCOUNTS, named)
    cached = CachedTable(ACCOUNTS, template_of or Rule(), named, statements)
    return recipes.write_recipe(
        plain, wanted, columns, cached, statements.write(shape), values, profile=[], may_raise=True
    )


@pytest.mark.parametrize("value", ["05", "-0", "x", "1.0", "+1"])
def test_a_value_that_is_not_canonical_has_no_resource_name(value: str) -> None:
    recipe = learnt("PATCH", "id=eq.1", '{"note": "x"}')
    assert recipe is not None
    assert recipe.resource([value], None) is None


@pytest.mark.parametrize(("text", "name"), [("5", "5"), ('"5"', "5"), ("true", None), ("5.0", None), ("null", None)])
def test_the_name_of_a_new_row_comes_from_the_body(text: str, name: str | None) -> None:
    recipe = learnt("POST", "", '{"id": 1}')
    assert recipe is not None
    payload = body.parse(f'{{"id": {text}}}'.encode(), None)
    assert recipe.resource([], payload) == (name and f"public.accounts/{name}")


def test_a_write_that_may_move_a_row_has_no_recipe() -> None:
    """The next write of its form may move another row, and a stale token for that one must be answered as such."""
    assert learnt("PATCH", "id=eq.1", '{"id": 1}') is None


def test_an_api_key_in_the_query_is_not_a_filter() -> None:
    """Supabase's clients repeat their key in the query, and the gateway drops it."""
    assert learnt("PATCH", "apikey=eq.1&id=eq.1", '{"note": "x"}') is None


def test_a_write_whose_filters_do_not_name_its_resource_has_no_recipe() -> None:
    assert learnt("PATCH", "owner=eq.ann", '{"note": "x"}') is None
