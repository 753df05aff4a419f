"""The pages in docs/reference, made from the code: ``make reference`` writes them, and a test compares them.

Each module makes one page. The meanings stand in the code beside what they explain, and nowhere else.
"""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType

NOTE = "<!-- Made from the code by `make reference`. Change the code, not this page. -->"


def markdown(text: str) -> str:
    """Return a text of the code as Markdown on one line: names in single backticks."""
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip()


def cell(text: str) -> str:
    """Return a text as the cell of a table."""
    return markdown(text).replace("|", "\\|")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table. Its cells are Markdown already."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(*parts: str) -> str:
    """Return a page of its title and parts."""
    title, *rest = parts
    return "\n\n".join([f"# {title}", NOTE, *(part for part in rest if part)]) + "\n"


@cache
def attributes(module: ModuleType) -> dict[str, dict[str, str]]:
    """Return the docstrings of the attributes of each class in a module."""
    tree = ast.parse(inspect.getsource(module))
    return {node.name: dict(_of_class(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for statement, following in zip(node.body, node.body[1:], strict=False):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, text
