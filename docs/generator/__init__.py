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


def grouped(names: Sequence[str], group: Sequence[str], title: str) -> str:
    """Return the end of an entry that lists common names; a whole group of them by its title."""
    if set(group) <= set(names):
        said = [title, *(f"`{name}`" for name in names if name not in group)]
    else:
        said = [f"`{name}`" for name in names]
    return f"Also {', '.join(said)}."


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
