"""One place reads the head of a request and freezes it."""

import ast

from gateway.http.head import Head
from tests import ROOT

FIELDS = {"headers", "query_string", "raw_path"}
# The connection freezes the headers, and tracing runs around everything else.
ALLOWED = {"http/connection.py", "http/head.py", "observe/tracing.py"}


def test_the_head_stays_as_it_was_when_it_was_first_read() -> None:
    headers = [(b"host", b"gateway")]
    scope = {"method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "headers": headers}
    head = Head.of(scope)
    headers.append((b"fencing-token", b"9"))
    assert Head.of(scope) is head
    assert head.headers == ((b"host", b"gateway"),)


def test_no_other_module_reads_the_head_out_of_the_scope() -> None:
    readers = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value in FIELDS:
                scope = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
                if scope == "scope":
                    readers.add(str(path.relative_to(ROOT / "gateway")))
    assert readers == ALLOWED
