"""Media types of answers and of bodies."""

import pytest

from gateway.errors import DialectError
from gateway.tables.dialect.media import (
    ARRAY_STRIPPED,
    CSV,
    JSON,
    OBJECT,
    OBJECT_STRIPPED,
    OPENAPI,
    Media,
    accepted,
    body_type,
    root_accepted,
)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        ("application/json; charset=utf-8", JSON),
        ("application/vnd.pgrst.object+json", OBJECT),
        ("ApplicatIon/vnd.PgRsT.object+json", OBJECT),
        ("application/vnd.pgrst.object;nulls=stripped", OBJECT_STRIPPED),
        ("application/vnd.pgrst.object+json; nulls=stripped", OBJECT_STRIPPED),
        ("application/vnd.pgrst.array+json", JSON),
        ("application/vnd.pgrst.array+json;nulls=stripped", ARRAY_STRIPPED),
        ("application/vnd.pgrst.array;nulls=stripped", ARRAY_STRIPPED),
        ("application/json;nulls=stripped", JSON),
        ("text/csv", CSV),
        ("text/csv, application/vnd.pgrst.object", CSV),
        ("text/html, text/csv", CSV),
        ("application/json;q=0.5, application/vnd.pgrst.object+json", OBJECT),
        ("text/csv;q=0.1, */*;q=0.9", JSON),
        ("text/csv;q=0, application/json;q=0.001", JSON),
    ],
)
def test_the_best_form_of_rows(accept: str, expected: Media) -> None:
    assert accepted(accept) == expected


@pytest.mark.parametrize(
    "accept", ["text/html", "application/geo+json", "application/vnd.pgrst.plan", "nonsense", "*/*;q=0", "text/csv;q=0"]
)
def test_other_media_types_are_not_available(accept: str) -> None:
    assert accepted(accept) is None


@pytest.mark.parametrize("accept", ["", "*/*", "application/json", "application/openapi+json"])
def test_the_root_is_an_openapi_document(accept: str) -> None:
    assert root_accepted(accept) == OPENAPI


def test_the_root_is_nothing_else() -> None:
    assert root_accepted("text/csv") is None


def test_content_types_name_their_form() -> None:
    assert ARRAY_STRIPPED.content_type == (
        b"content-type",
        b"application/vnd.pgrst.array+json;nulls=stripped; charset=utf-8",
    )


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (None, "json"),
        ("", "json"),
        ("Application/JSON; charset=utf-8", "json"),
        ("text/csv", "csv"),
        ("application/x-www-form-urlencoded", "urlencoded"),
        ("text/plain", "text"),
        ("application/octet-stream", "binary"),
    ],
)
def test_bodies(content_type: str | None, expected: str) -> None:
    assert body_type({} if content_type is None else {b"content-type": content_type}) == expected


@pytest.mark.parametrize("content_type", ["text/html", "application/xml", "nonsense"])
def test_other_bodies(content_type: str) -> None:
    with pytest.raises(DialectError) as caught:
        body_type({b"content-type": content_type})
    assert (caught.value.code, caught.value.status) == ("PGRST102", 400)
    assert caught.value.message == f"Content-Type not acceptable: {content_type}"
