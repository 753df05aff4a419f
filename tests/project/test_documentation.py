"""References in the documents are valid: modules on the map, links, decisions."""

import ast
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import ROOT

DECISIONS = ROOT / "docs/decisions"
PAGES = sorted(chain(ROOT.glob("*.md"), ROOT.glob("docs/**/*.md"), ROOT.glob("examples/*.md")))

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_ENTRY = re.compile(r"^- \[[^\]]+\]\(([^)]+\.md)\)", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def modules() -> set[str]:
    """The files of the package, relative to it."""
    package = ROOT / "gateway"
    return {str(path.relative_to(package)) for path in package.rglob("*.py") if not path.stem.startswith("__")}


def on_the_map(text: str) -> Iterator[str]:
    """Return the files that a text names: in ``gateway/`` itself, unless a folder precedes them.

    A folder applies to the names after it in the same row or paragraph. The folder in a section's heading applies to
    the section, and ``gateway/`` wherever it is written out.
    """
    of_section = ""
    for block in re.split(r"\n\n|\n(?=[|#])", text):
        if block.lstrip().startswith("## "):
            heading = re.search(r"`gateway/(\w+/)`", block)
            of_section = heading[1] if heading else ""
        folder = of_section
        for name in re.findall(r"[\w/]+\.py\b", block):
            if "/" in name:
                folder = name[: name.rindex("/") + 1].removeprefix("gateway/")
            yield folder + name.rpartition("/")[2]


def anchors(page: Path) -> set[str]:
    """Return the targets of links within a page: its headings, in the form that forges give them."""
    titles = _HEADING.findall(_FENCED.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_module_is_on_the_map_and_nothing_else() -> None:
    named = {name for name in on_the_map((ROOT / "docs/architecture.md").read_text()) if not name.startswith("tests/")}
    assert named == modules()


def test_each_folder_opens_with_its_model(subtests: pytest.Subtests) -> None:
    """Its first lines say what lives there, its model, and what may be imported from it."""
    package = ROOT / "gateway"
    for folder in (package, *(folder for folder in package.iterdir() if next(folder.glob("*.py"), None))):
        with subtests.test(folder=str(folder.relative_to(ROOT))):
            lines = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
            assert 3 <= len(lines.splitlines()) <= 22
            assert len(list(folder.glob("*.py"))) > 1, "remove the folder: no module is left in it"


def test_every_link_leads_somewhere(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=str(page.relative_to(ROOT))):
            for link in _LINK.findall(_FENCED.sub("", page.read_text())):
                if link.startswith(("http://", "https://")):
                    continue
                path, _, anchor = link.partition("#")
                target = page if not path else (page.parent / path).resolve()
                assert target.exists(), link
                assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_navigation(subtests: pytest.Subtests) -> None:
    navigation = ROOT / "docs/README.md"
    listed = [(navigation.parent / link).resolve() for link in _ENTRY.findall(navigation.read_text())]
    assert len(set(listed)) == len(listed)
    for page in (ROOT / "docs").rglob("*.md"):
        if page != navigation and not (page.parent == DECISIONS and page.name != "README.md"):
            with subtests.test(page=str(page.relative_to(ROOT))):
                assert page in listed, f"{page.relative_to(ROOT)}: add a line with a link to docs/README.md"


def test_addresses_of_other_sites_are_well_formed() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\((https?:[^)\s]*)\)", page.read_text()):
            host = urlsplit(link).hostname
            assert host and ("." in host or host == "localhost"), f"{page.relative_to(ROOT)}: {link}"  # noqa: PT018


def test_every_decision_is_on_the_list() -> None:
    index = (DECISIONS / "README.md").read_text()
    pages = re.findall(r"^- \[(\d{3})\]\(([^)]+)\) \*\*.+\*\*(?:: (.+))?$", index, re.MULTILINE)
    assert [name for _, name, _ in pages] == sorted(page.name for page in DECISIONS.glob("[0-9]*.md"))
    assert all(name.startswith(number) for number, name, _ in pages)
    numbers = [number for number, _, _ in pages]
    numbers += chain.from_iterable(replaced.split(", ") for _, _, replaced in pages if replaced)
    numbers += re.findall(r"^- (\d{3}): .+$", index, re.MULTILINE)
    assert len(set(numbers)) == len(numbers)
    assert len(numbers) > 100
    folders = (ROOT / "gateway", ROOT / "docs", ROOT / "tests", ROOT / "migrations")
    for path in chain.from_iterable(folder.rglob("*.*") for folder in folders):
        if path.suffix in {".py", ".sql", ".md"}:
            for number in re.findall(r"[Dd]ecisions?[ /](\d{3})\b", path.read_text()):
                assert number in numbers, f"{path.relative_to(ROOT)}: decision {number} is not on the list"


def test_no_decision_is_long() -> None:
    lengths = {page.name: len(re.findall(r"\S*\w\S*", page.read_text())) for page in DECISIONS.glob("[0-9]*.md")}
    assert {name: length for name, length in lengths.items() if length > 500} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_module_that_a_page_names_is_there(page: Path) -> None:
    for path in re.findall(r"\bgateway/[\w/]+\.(?:py|sql)\b", page.read_text()):
        assert (ROOT / path).exists(), path
