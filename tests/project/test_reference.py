"""The generated pages are as the code is, and each body of the API has an example that follows its model."""

from collections.abc import Iterator
from typing import Any

import pytest
from defusedxml import ElementTree
from pydantic import BaseModel

from docs.generator import configuration, http, pictures, screenshots
from docs.generator.pages import FOLDER, PAGES
from gateway.api.description import EXAMPLES
from gateway.config import Config


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_as_the_code_is(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), f"docs/reference/{name} is old: run make reference"


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_as_the_page_draws_it(name: str) -> None:
    drawn = pictures.render(pictures.PICTURES[name]())
    assert (pictures.FOLDER / name).read_text() == drawn, f"docs/pictures/{name} is old: run make reference"
    # It is an image: well-formed, and without anything of another file.
    assert ElementTree.fromstring(drawn).tag.endswith("svg")
    assert "var(" not in drawn
    assert "href" not in drawn


def test_every_page_and_picture_is_made() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)
    taken = {f"{name}.{kind}" for name in screenshots.PAGES for kind in ("png", "txt")}
    assert {path.name for path in pictures.FOLDER.iterdir()} == {*pictures.PICTURES, *taken}


def test_a_key_without_a_meaning_is_an_error() -> None:
    class Undocumented(Config):
        added: str = ""

    with pytest.raises(LookupError, match="say below the field what it is for"):
        configuration.meaning_of(Undocumented, "added")


def test_each_request_and_each_answer_in_json_has_an_example(subtests: pytest.Subtests) -> None:
    document = http.document()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            with subtests.test(operation=f"{method.upper()} {path}"):
                for schema in bodies(operation):
                    name = schema.get("$ref", "").rpartition("/")[2] or schema["title"]
                    assert name in EXAMPLES or name in WITHOUT, f"{name}: add one to gateway/api/description.py"


WITHOUT = {"RejectionList", "RejectionPage", "EntryList", "EntryView"}
"""Answers of many fields, whose table says more than an example."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_follows_its_model(name: str) -> None:
    (model,) = (one for one in models(BaseModel) if one.__name__ == name)
    understood = model.model_validate(EXAMPLES[name]).model_dump(exclude_unset=True, by_alias=True)
    # A problem document also has the facts of its error.
    assert understood.keys() == EXAMPLES[name].keys() or name == "Problem"


def models(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """Yield the models of the API."""
    for one in kind.__subclasses__():
        if one.__module__.startswith(("gateway.api", "gateway.http")):
            yield one
        yield from models(one)


def bodies(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the schemas of an operation's request and of its successful answers, those in JSON."""
    answers = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
    parts = [operation.get("requestBody", {}), *answers]
    found = [part.get("content", {}).get("application/json", {}).get("schema", {}) for part in parts]
    return [schema for schema in found if schema]


def test_every_operation_belongs_to_a_subject_that_is_explained() -> None:
    document = http.document()
    explained = {tag["name"] for tag in document["tags"] if len(tag["description"]) > 40}
    used = {tag for path in document["paths"].values() for operation in path.values() for tag in operation["tags"]}
    assert used == explained
