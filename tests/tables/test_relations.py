"""The name and hint of an embedded table mean one relationship of the catalog."""

import json

import pytest

from gateway.errors import DialectError
from gateway.tables.catalog.relations import Relations
from gateway.tables.catalog.snapshot import ForeignKey, Table
from tests.tables.samples import column


def table(name: str, *keys: ForeignKey, primary: tuple[str, ...] = ("id",), schema: str = "public") -> Table:
    names = {"id", *primary, *(one for key in keys for one in key.columns)}
    return Table(schema, name, "r", {one: column(one) for one in names}, primary, foreign_keys=keys)


def key(name: str, target: str, *columns: str, unique: bool = False, schema: str = "public") -> ForeignKey:
    return ForeignKey(name, columns, schema, target, ("id",) * len(columns), unique)


TABLES = [
    table("directors"),
    table("films", key("films_director", "directors", "director_id")),
    table("technical", key("technical_film", "films", "film_id", unique=True)),
    table("actors"),
    table(
        "roles", key("r_film", "films", "film_id"), key("r_actor", "actors", "actor_id"),
        primary=("film_id", "actor_id"),
    ),
    table("likes", key("l_film", "films", "film_id"), key("l_director", "directors", "director_id")),
    table("places"),
    table("orders", key("o_billing", "places", "billing"), key("o_shipping", "places", "shipping")),
    table("persons", key("p_boss", "persons", "boss_id")),
    table("elsewhere", key("e_film", "films", "film_id"), schema="other"),
    table("stray", key("s_gone", "gone", "gone_id")),
]  # fmt: skip
BY_NAME = {one.name: one for one in TABLES}
RELATIONS = Relations({(one.schema, one.name): one for one in TABLES})


@pytest.mark.parametrize(
    ("origin", "name", "hint", "cardinality", "target"),
    [
        ("films", "directors", None, "many-to-one", "directors"),
        ("films", "director_id", None, "many-to-one", "directors"),
        ("films", "films_director", None, "many-to-one", "directors"),
        ("films", "directors", "films_director", "many-to-one", "directors"),
        ("films", "directors", "director_id", "many-to-one", "directors"),
        ("films", "directors", "id", "many-to-one", "directors"),
        ("directors", "films", None, "one-to-many", "films"),
        ("directors", "films", "director_id", "one-to-many", "films"),
        ("technical", "films", None, "one-to-one", "films"),
        ("films", "technical", None, "one-to-one", "technical"),
        ("films", "actors", None, "many-to-many", "actors"),
        ("actors", "films", "roles", "many-to-many", "films"),
        ("films", "roles", None, "one-to-many", "roles"),
        ("orders", "places", "o_billing", "many-to-one", "places"),
        ("orders", "places", "shipping", "many-to-one", "places"),
        ("orders", "shipping", None, "many-to-one", "places"),
        ("places", "orders", "o_shipping", "one-to-many", "orders"),
        ("persons", "persons", None, "one-to-many", "persons"),
        ("persons", "persons", "boss_id", "one-to-many", "persons"),
        ("persons", "boss_id", None, "many-to-one", "persons"),
    ],
)
def test_a_name_and_hint_mean_one_relationship(
    origin: str, name: str, hint: str | None, cardinality: str, target: str
) -> None:
    found = RELATIONS.find(BY_NAME[origin], name, hint)
    assert (found.cardinality, found.target.name) == (cardinality, target)
    assert found.to_one == cardinality.endswith("one")


@pytest.mark.parametrize(
    ("origin", "name", "hint"),
    [
        ("films", "places", None),
        ("films", "directors", "nothing"),
        ("films", "director_id", "director_id"),
        ("films", "elsewhere", None),
        ("elsewhere", "films", None),
        ("stray", "gone", None),
        ("directors", "likes", "films"),
        ("persons", "p_boss", None),
        ("persons", "persons", "p_boss"),
        ("actors", "directors", None),
    ],
)
def test_unrelated_tables_are_refused(origin: str, name: str, hint: str | None) -> None:
    with pytest.raises(DialectError) as caught:
        RELATIONS.find(BY_NAME[origin], name, hint)
    assert (caught.value.code, caught.value.status) == ("PGRST200", 400)
    assert caught.value.details is not None
    assert ("using the hint" in caught.value.details) == (hint is not None)


def test_columns_come_in_pairs_from_the_origin_to_the_target() -> None:
    assert RELATIONS.find(BY_NAME["films"], "directors", None).pairs == (("director_id", "id"),)
    assert RELATIONS.find(BY_NAME["directors"], "films", None).pairs == (("id", "director_id"),)
    junction = RELATIONS.find(BY_NAME["films"], "actors", None).junction
    assert junction is not None
    assert (junction.table.name, junction.origin, junction.target) == (
        "roles", (("id", "film_id"),), (("id", "actor_id"),),
    )  # fmt: skip


def test_a_junction_needs_both_keys_in_its_primary_key() -> None:
    """Otherwise the junction could have a pair of rows several times."""
    with pytest.raises(DialectError, match="Could not find a relationship"):
        RELATIONS.find(BY_NAME["films"], "directors", "likes")


def test_an_ambiguous_name_lists_the_choices() -> None:
    with pytest.raises(DialectError) as caught:
        RELATIONS.find(BY_NAME["places"], "orders", None)
    error = caught.value
    assert (error.code, error.status) == ("PGRST201", 300)
    assert error.hint is not None
    assert "'orders!o_billing', 'orders!o_shipping'" in error.hint
    assert error.details is not None
    assert [one["relationship"] for one in json.loads(error.details)] == [
        "o_billing using places(id) and orders(billing)",
        "o_shipping using places(id) and orders(shipping)",
    ]


def test_only_a_similar_name_is_suggested() -> None:
    for name, hint in (
        ("director", "Perhaps you meant 'directors' instead of 'director'."),
        ("zebras", None),
        ("directors" * 5000, None),
    ):
        with pytest.raises(DialectError) as caught:
            RELATIONS.find(BY_NAME["films"], name, None)
        assert caught.value.hint == hint
        assert len(caught.value.message) < 300
