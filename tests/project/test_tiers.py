"""Every promise of the README is shown in the first tier."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests import ROOT

TESTS = ROOT / "tests"
LATER = {"thorough", "installed", "nightly"}

NAMED = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", (TESTS / "README.md").read_text().partition("## The README's")[2])


def marks(node: ast.AST) -> set[str]:
    """Return the names of pytest's marks in a decorator or an assignment."""
    return {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)} & LATER


def functions(module: ast.Module) -> Iterator[tuple[str, set[str]]]:
    """Yield the tests of a module with the marks that they have from it, their class, and themselves."""
    of_all = set[str]()
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark":
            of_all = marks(node.value)
    for holder in ast.walk(module):
        if isinstance(holder, ast.Module | ast.ClassDef):
            of_class = {mark for one in getattr(holder, "decorator_list", []) for mark in marks(one)}
            for node in holder.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    # A mark of one parameter leaves the others in the first tier.
                    whole = [one for one in node.decorator_list if "parametrize" not in ast.unparse(one)]
                    own = {mark for one in whole for mark in marks(one)}
                    yield node.name, of_all | of_class | own


@pytest.mark.parametrize(("path", "name"), [pair for pair in NAMED if pair[0] != "tests/project/test_tiers.py"])
def test_a_promise_is_shown_in_the_first_tier(path: str, name: str) -> None:
    found = dict(functions(ast.parse((TESTS / path).read_text())))
    left_out = [one for one, later in found.items() if later and (not name or one == name)]
    assert not left_out, "take the mark away, or name a test in tests/README.md that has none"
    assert not name or name in found, "tests/README.md names a test that is gone"
