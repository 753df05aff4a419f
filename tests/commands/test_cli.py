"""The command line: a mistake is one line that names it, and what is stopped stops cleanly; gateway health."""

import asyncio
import json
import os
import pty
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from gateway import app, serving
from gateway.commands.api_client import Gateway as ApiClient
from gateway.commands.health import _context
from gateway.config import Config
from gateway.config.sections import Server
from gateway.db import migrations
from gateway.demo.embedded import EmbeddedPostgres, postgres
from gateway.errors import ConfigurationError
from tests.guard.stage import session
from tests.postgres import GATEWAY
from tests.processes import COMMAND, Running, called, closed_port, free_port, run, started
from tests.running import config
from tests.tiers import first
from tests.waiting import PATIENCE

DSN = "postgresql://nobody@127.0.0.1:9/none"


@pytest.fixture
def empty_dsn(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A database without the fencing schema."""
    asyncio.run(execute(postgres_server.dsn(), "CREATE DATABASE without_schema"))
    yield postgres_server.dsn("without_schema")
    asyncio.run(execute(postgres_server.dsn(), "DROP DATABASE without_schema WITH (FORCE)"))


async def execute(dsn: str, statement: str) -> None:
    async with session(dsn) as owner:
        await owner.execute(statement)


def write(path: Path, dsn: str, **server: str) -> str:
    lines = "\n".join(f'{key} = "{value}"' for key, value in server.items())
    grant = 'callers = ["anonymous"]\nactions = ["read", "write", "lock", "barrier", "audit"]\neverything = true'
    path.write_text(f'[server]\n{lines}\n[postgres]\ndsn = "{dsn}"\n[[grants]]\n{grant}\n')
    return str(path)


def test_the_command_says_its_version() -> None:
    assert re.fullmatch(r"gateway \d+\.\d+\.\d+\S*\n", run("--version").stdout)


def test_help_imports_no_library_of_what_it_is_about() -> None:
    """A person, and a shell that completes a word, wait for each import: the time is held by its cause."""
    code = (
        "import contextlib, io, sys\n"
        "from gateway import cli\n"
        "groups = [((), cli.application), (('guard',), cli.guard), (('audit',), cli.audit)]\n"
        "for path, group in groups:\n"
        "    named = [one.name or one.callback.__name__ for one in group.registered_commands]\n"
        "    for arguments in ((*path, '--help'), *((*path, name, '--help') for name in named)):\n"
        "        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):\n"
        "            cli.main(arguments)\n"
        "        assert 'Usage: ' in said.getvalue(), arguments\n"
        "        print(*arguments)\n"
        "print(*sys.modules)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    *helped, imported = told.stdout.splitlines() or [told.stderr]
    assert {"--help", "serve --help", "guard install --help", "audit --help", "audit search --help"} <= {*helped}
    slow = {"aiohttp", "asyncpg", "awscrt", "boto3", "botocore", "httpx", "jinja2", "moto"}
    slow |= {"opentelemetry", "orjson", "pydantic_settings", "sqlalchemy", "starlette", "structlog", "uvicorn", "yarl"}
    slow |= {"gateway.app", "gateway.client", "gateway.config", "gateway.db"}
    assert {*imported.split()} & slow == set()


@pytest.mark.parametrize(
    "case",
    first(
        [
            (["guard", "in"], ["install"]),
            (["au"], ["auth", "audit"]),
            (["serve", "--li"], ["--listen"]),
            (["completion", ""], ["bash", "zsh", "fish"]),
            (["serve", "--config", "gate"], []),  # bash then completes the names of files
        ]
    ),
)
def test_bash_completes_a_word(case: tuple[list[str], list[str]]) -> None:
    words, completed = case
    script = (
        'source <("$GATEWAY" completion bash); COMP_WORDS=("$GATEWAY" "$@"); COMP_CWORD=$#; '
        '_gateway_completion "$GATEWAY"; printf "%s\\n" "${COMPREPLY[@]}"; complete -p gateway'
    )
    command = ["bash", "--norc", "-c", script, "bash", *words]
    environment = {**os.environ, "GATEWAY": str(Path(sys.executable).with_name("gateway"))}
    told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    *found, registered = told.stdout.splitlines()
    assert [word for word in found if word] == completed
    assert registered == "complete -o default -F _gateway_completion gateway"


def test_another_shell_is_refused() -> None:
    answer = called("completion", "tcsh")
    assert answer.returncode == 2
    assert "'bash', 'zsh'" in answer.stderr


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, ": there is no such file"),
        ("[postgres", ", at its end: not TOML"),
        ("[postgres]\n", ", line 1: [postgres], dsn: it is missing; set it"),
    ],
)
def test_a_configuration_error_is_one_line_with_file_and_key(tmp_path: Path, text: str | None, named: str) -> None:
    path = tmp_path / "gateway.toml"
    if text is not None:
        path.write_text(text)
    answer = called("serve", "--config", str(path))
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"gateway: {path}{named}")
    assert answer.stderr.count("\n") == 1


def test_a_forgotten_option_for_the_configuration_is_named() -> None:
    answer = called("config", "show")
    assert answer.returncode == 2
    assert "the environment: [postgres]" in answer.stderr
    assert "--config" in answer.stderr


def test_the_usual_file_is_named_but_not_read_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "gateway.toml", DSN)
    for command in ("serve", "doctor", "enforce", "migrate"):
        answer = called(command)
        assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1), answer.stderr
        assert answer.stderr.endswith("Or name the file that is here: --config gateway.toml.\n")


@pytest.mark.parametrize(
    "command",
    ["migrate --grant-to app", "init --no-store", "guard install t", "guard stamp t", "guard remove t", "enforce"],
)
def test_an_empty_address_of_a_database_is_an_unset_variable(command: str) -> None:
    answer = called(*command.split(), "--dsn", "")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "gateway: --dsn is empty. Is the variable in it set? Set it, or leave it out.\n"


def test_help_begins_with_the_first_command_and_shows_no_value_for_flags() -> None:
    told = called("--help").stdout
    names = [line.split()[1] for line in told.splitlines() if re.match(r"│ [a-z]", line)]
    first_ones = ["init", "serve", "migrate", "doctor", "enforce"]
    assert [name for name in names if name in first_ones] == first_ones
    assert names[0] == "init"
    assert "<bool>" not in told + called("init", "--help").stdout + called("guard", "install", "--help").stdout


def test_a_missing_role_is_told_how_to_be_created(dsn: str) -> None:
    answer = called("migrate", "--dsn", dsn, "--grant-to", "nosuch")
    assert answer.returncode == 2
    said = 'There is no role nosuch. Correct the name, or create it first: CREATE ROLE "nosuch" LOGIN.'
    assert answer.stderr == f"gateway: {said}\n"


def test_without_the_schema_or_rights_on_it_one_line_says_what_to_do(tmp_path: Path, empty_dsn: str) -> None:
    """Checks that need the schema would fail for the same reason, and are not tried."""
    config = write(tmp_path / "gateway.toml", empty_dsn)

    def problems() -> list[str]:
        lines = called("doctor", "--config", config).stdout.splitlines()
        assert any(line.startswith("  warning  not tried: run, ") for line in lines), lines
        return [line for line in lines if line.startswith("  problem ")]

    assert problems() == ["  problem  schema: The fencing schema is not installed."]
    migrations.upgrade(empty_dsn)
    asyncio.run(execute(empty_dsn, "CREATE ROLE newcomer LOGIN"))
    try:
        config = write(tmp_path / "gateway.toml", re.sub("//postgres:?@", "//newcomer@", empty_dsn))
        [found] = problems()
        assert found.startswith("  problem  schema: the role lacks USAGE on the schema fencing")
        shown = called("guard", "show", "--config", config)
        said = "permission denied for schema fencing. As the owner of the schema: gateway migrate --dsn"
        assert (shown.returncode, shown.stderr.startswith(f"gateway: {said}")) == (2, True), shown.stderr
    finally:
        asyncio.run(execute(empty_dsn, "DROP ROLE newcomer"))


def test_an_unusable_address_is_named_and_nothing_runs(tmp_path: Path, dsn: str) -> None:
    anywhere = ["--listen", "127.0.0.1:0"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for given, arguments, said in (
            (
                {"listen": address},
                [],
                f"Cannot listen on {address}: Address already in use. Set another address: --listen, or server.listen.",
            ),
            ({}, ["--listen", "here"], "--listen: must be host:port, such as 127.0.0.1:8080"),
            ({"tls_certificate": "/none"}, anywhere, "server.tls_certificate: /none: there is no"),
        ):
            answer = called("serve", "--config", write(tmp_path / "gateway.toml", dsn, **given), *arguments)
            assert answer.returncode == 2
            assert answer.stderr.startswith(f"gateway: {said}")
            assert answer.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files for TLS, by what is the matter with them."""
    place = tmp_path_factory.mktemp("pem")
    authority = trustme.CA()
    one, other = (authority.issue_cert("127.0.0.1") for _ in range(2))
    key = load_pem_private_key(one.private_key_pem.bytes(), None)
    texts = {
        "certificate": one.cert_chain_pems[0].bytes(),
        "key": one.private_key_pem.bytes(),
        "both": one.private_key_and_cert_chain_pem.bytes(),
        "another key": other.private_key_pem.bytes(),
        "encrypted": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")),
        "binary": b"\xff\x00\xfe",
    }
    paths = {name: place / name for name in texts}
    for name, text in texts.items():
        paths[name].write_bytes(text)
    return {**paths, "missing": place / "nowhere", "directory": place}


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("certificate", None, "server.tls_certificate: {certificate}: holds no private key. Set server.tls_key."),
        ("certificate", "another key", "server.tls_key: {key}: the key of another certificate than"),
        ("certificate", "encrypted", "server.tls_key: {key}: the key is encrypted."),
        ("certificate", "certificate", "server.tls_key: {key}: holds no private key"),
        ("certificate", "missing", "server.tls_key: {key}: there is no such file."),
        ("certificate", "directory", "server.tls_key: {key}: Is a directory."),
        ("missing", "key", "server.tls_certificate: {certificate}: there is no such file."),
        ("binary", "key", "server.tls_certificate: {certificate}: holds no certificate"),
        ("key", "key", "server.tls_certificate: {certificate}: holds no certificate"),
    ],
)
def test_files_for_tls_that_cannot_be_used_are_named_before_anything_listens(
    tmp_path: Path, pem: dict[str, Path], certificate: str, key: str | None, said: str
) -> None:
    named = {"certificate": pem[certificate], "key": pem[key] if key else None}
    tls = {f"tls_{name}": str(path) for name, path in named.items() if path is not None}
    answer = called("serve", "--config", write(tmp_path / "gateway.toml", DSN, **tls), "--listen", "127.0.0.1:0")
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
    assert answer.stderr.startswith(f"gateway: {said.format(**named)}")


@pytest.mark.parametrize("command", ["serve", "check"])
@pytest.mark.parametrize(
    ("authorities", "said"),
    [
        ("missing", "there is no such file."),
        ("directory", "Is a directory."),
        ("key", "holds no certificate in PEM form."),
        ("certificate", "holds no certificate of an authority."),
    ],
)
def test_authorities_of_clients_that_cannot_be_used_are_named(
    tmp_path: Path, pem: dict[str, Path], command: str, authorities: str, said: str
) -> None:
    tls = {"tls_certificate": str(pem["both"]), "client_authorities": str(pem[authorities])}
    path = write(tmp_path / "gateway.toml", DSN, **tls)
    answer = (
        called("config", "check", "--config", path)
        if command == "check"
        else called("serve", "--config", path, "--listen", "127.0.0.1:0")
    )
    assert (answer.returncode, answer.stdout) == (78 if command == "check" else 2, "")
    assert answer.stderr == f"gateway: server.client_authorities: {pem[authorities]}: {said}\n"


def test_certificate_and_key_may_be_one_file(pem: dict[str, Path]) -> None:
    serving.server(lambda *_: asyncio.sleep(0), Server(tls_certificate=pem["both"]))


def test_serving_needs_the_schema_which_migrate_installs(
    tmp_path: Path, empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path / "gateway.toml", empty_dsn, listen="127.0.0.1:0")
    missing = called("serve", "--config", config)
    assert (missing.returncode, missing.stderr) == (
        2,
        "gateway: The fencing schema is not installed. Run 'gateway migrate' first.\n",
    )
    newest = migrations.newest()
    assert called("migrate", "--config", config).stdout == f"fencing schema: not installed -> {newest}\n"
    assert called("migrate", "--dsn", empty_dsn).stdout == f"fencing schema: {newest} -> {newest}\n"
    monkeypatch.setattr(migrations, "newest", lambda: "r9999")
    old = f"The fencing schema is at {newest}; this version of the gateway needs r9999."
    with pytest.raises(ConfigurationError, match=re.escape(old)):
        asyncio.run(serving.check_schema(empty_dsn))


def test_an_older_gateway_runs_beside_a_newer_one_unless_the_schema_serves_only_newer_ones(
    tmp_path: Path, empty_dsn: str
) -> None:
    """Or there could be no upgrade without a pause."""
    migrations.upgrade(empty_dsn)
    newest = migrations.newest()
    asyncio.run(execute(empty_dsn, "UPDATE fencing.migration SET version_num = 'r9999'"))
    notice = asyncio.run(serving.check_schema(empty_dsn))
    assert notice == f"The fencing schema is at r9999, newer than {newest}, which this version knows. All of it works."
    # Grants of this version would take rights away that newer gateways need.
    told = called("migrate", "--dsn", empty_dsn, "--grant-to", GATEWAY)
    said = f"newer than {newest}, the newest of this version: nothing was changed, nor granted\n"
    assert (told.returncode, told.stdout) == (0, f"fencing schema: r9999 -> r9999\n{said}")
    asyncio.run(execute(empty_dsn, "UPDATE fencing.compatibility SET oldest = 'r9998'"))
    said = f"is at r9999, which serves gateways of r9998 and later. This one knows {newest}."
    config = write(tmp_path / "gateway.toml", empty_dsn, listen="127.0.0.1:0")
    for arguments in (["migrate", "--dsn", empty_dsn], ["serve", "--config", config]):
        told = called(*arguments)
        assert (told.returncode, told.stdout) == (2, "")
        assert said in told.stderr
        assert "Run a newer version of the gateway" in told.stderr


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        (DSN, "The database cannot be reached ("),
        ("nonsense", "postgres.dsn: is not the address of a database; write postgresql://"),
        ("postgresql://[", "postgres.dsn: is not the address of a database; write postgresql://"),
    ],
)
def test_migrating_what_cannot_be_reached_is_one_line(dsn: str, said: str) -> None:
    answer = called("migrate", "--dsn", dsn)
    assert (answer.returncode, answer.stderr.count("\n")) == (2, 1)
    assert answer.stderr.startswith(f"gateway: {said}")


def test_all_that_a_serving_gateway_writes_is_json(tmp_path: Path) -> None:
    """Without a database, so that the gateway logs a lot. uvicorn writes the line about an unreadable request."""
    port = free_port()
    config = write(tmp_path / "gateway.toml", DSN, listen=f"127.0.0.1:{port}")
    with started("serve", "--config", config) as gateway:
        gateway.wait_for(lambda: '"event": "listening"' in gateway.errors.read_text())
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"no HTTP\r\n\r\n")
        gateway.wait_for(lambda: '"logger": "uvicorn.error"' in gateway.errors.read_text())
        assert gateway.stop() == 0
        assert gateway.output.read_text() == ""
        lines = [json.loads(line) for line in gateway.errors.read_text().splitlines()]
    assert [line["event"] for line in lines if "event" in line][:2] == ["service unreachable", "listening"]
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines)


@pytest.mark.parametrize(
    "case",
    first(
        [
            ("worker", "log in there with the API key of worker."),
            ("anonymous", "open it."),
            ("other", "grant a caller audit"),
        ]
    ),
)
def test_a_terminal_is_told_where_the_page_is_and_what_is_next(tmp_path: Path, dsn: str, case: tuple[str, str]) -> None:
    """The second line and the third: the first one is that of the log."""
    caller, said = case
    path = tmp_path / "gateway.toml"
    listen, keys = f"0.0.0.0:{(port := free_port())}", 'api_key = "of-a-worker"'
    pair = 'access_key_id = "other"\nsecret_access_key = "of-another"'
    path.write_text(
        f'[server]\nlisten = "{listen}"\n[postgres]\ndsn = "{dsn}"\n[[callers]]\nname = "worker"\n{keys}\n'
        f'[[callers]]\nname = "other"\n{pair}\n'
        f'[[grants]]\ncallers = ["{caller}"]\nactions = ["audit"]\neverything = true\n'
    )
    own, other = pty.openpty()
    with subprocess.Popen([*COMMAND, "serve", "--config", str(path)], stderr=other) as serving:
        os.close(other)
        with open(own) as terminal:  # noqa: PTH123 - it is no path
            log, page, following = (terminal.readline() for _ in range(3))
            serving.terminate()
            assert serving.wait(PATIENCE) == 0
    assert json.loads(log)["event"] == "listening"
    assert page == f"The page: http://127.0.0.1:{port}/ui/\n"
    assert following.startswith(f"Next: {said}")


def test_the_doctor_says_what_it_found_and_fails_where_something_is_wrong(tmp_path: Path, dsn: str) -> None:
    well = called("doctor", "--config", write(tmp_path / "gateway.toml", dsn))
    assert (well.returncode, well.stderr) == (0, "")
    assert "ok       connection: PostgreSQL" in well.stdout
    unwell = called("doctor", "--config", write(tmp_path / "gateway.toml", DSN))
    assert (unwell.returncode, unwell.stderr) == (1, "")
    assert "problem  connection: " in unwell.stdout


async def test_a_role_that_may_not_migrate_is_told_the_right_and_the_owner(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = empty_dsn.partition("?")[0].rpartition("/")[2]
    owner, other = f"owner_of_{database}", f"other_than_{database}"

    async def migrate(role: str) -> tuple[int, str]:
        dsn = re.sub("//postgres:?@", f"//{role}@", empty_dsn)
        answer = await asyncio.to_thread(called, "migrate", "--dsn", dsn)
        return answer.returncode, answer.stderr

    await execute(empty_dsn, f"CREATE ROLE {owner} LOGIN; CREATE ROLE {other} LOGIN")
    try:
        status, said = await migrate(owner)
        assert (status, "lacks a right to migrate: CREATE on the database" in said) == (2, True)
        await execute(empty_dsn, said.partition("let the owner run: ")[2])
        await asyncio.to_thread(migrations.upgrade, re.sub("//postgres:?@", f"//{owner}@", empty_dsn))
        monkeypatch.setattr(migrations, "newest", lambda: "r9999")
        status, said = await migrate(other)
        assert (status, f"Run it as the owner, {owner}:" in said) == (2, True)
        await execute(empty_dsn, f"REVOKE CREATE ON DATABASE {database} FROM {owner}")
        assert (await migrate(owner))[0] == 0
    finally:
        await execute(empty_dsn, f"DROP OWNED BY {owner} CASCADE; DROP ROLE {owner}, {other}")


# ``gateway health``: ready, alive and neither, as health checks of containers and services see it.


PATIENTLY = ("--timeout", f"{PATIENCE}")
"""The default would be four seconds."""


@contextmanager
def served(configured: Config) -> Iterator[int]:
    with serving.bind("127.0.0.1", 0) as listener:
        port = int(listener.getsockname()[1])
        with serving.in_background(app.build(configured), listener):
            yield port


def test_ready_while_writes_are_possible(dsn: str) -> None:
    with served(config(dsn)) as port:
        asked = called("health", *PATIENTLY, "--url", f"http://127.0.0.1:{port}/")
        assert (asked.returncode, asked.stdout) == (0, "ready\n")
        asked = called("health", *PATIENTLY, "--json", "--url", url := f"http://127.0.0.1:{port}")
        assert json.loads(asked.stdout) == {"url": url, "ready": True, "problem": None}


def test_alive_but_not_ready_without_its_database() -> None:
    with closed_port() as nothing, served(config(f"postgresql://nobody@127.0.0.1:{nothing}/none")) as port:
        asked = called("health", *PATIENTLY, "--url", f"http://127.0.0.1:{port}")
        assert asked.returncode == 1
        assert "503 Not ready: postgres" in asked.stderr
        assert called("health", "--alive", *PATIENTLY, "--url", f"http://127.0.0.1:{port}").stdout == "alive\n"


@pytest.mark.thorough
def test_alive_while_its_database_hangs() -> None:
    """It accepts a connection and never says a word, as a server does that was paused."""
    with socket.create_server(("127.0.0.1", 0)) as paused:
        hanging = f"postgresql://nobody@127.0.0.1:{paused.getsockname()[1]}/none"
        with served(config(hanging)) as port:
            asked = called("health", "--alive", *PATIENTLY, "--url", f"http://127.0.0.1:{port}")
            assert asked.stdout == "alive\n", asked.stderr
            assert called("health", "--timeout", "0.5", "--url", f"http://127.0.0.1:{port}").returncode == 1


@pytest.mark.parametrize("alive", [(), ("--alive",)])
def test_nothing_answers(alive: tuple[str, ...]) -> None:
    with closed_port() as port:
        asked = called("health", *alive, "--url", f"http://127.0.0.1:{port}")
    assert asked.returncode == 1
    assert "no answer: ConnectionRefusedError" in asked.stderr


def test_what_answers_is_not_taken_at_its_word() -> None:
    """A server with an endless answer, or with characters that control a terminal."""
    with socket.create_server(("127.0.0.1", 0)) as hostile:

        def answer() -> None:
            connection, _ = hostile.accept()
            with connection:
                connection.recv(65536)
                body = b'{"detail": "\\u001b]0;title"}'
                connection.sendall(b"HTTP/1.1 500 no\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        thread = threading.Thread(target=answer)
        thread.start()
        asked = called("health", *PATIENTLY, "--url", f"http://127.0.0.1:{hostile.getsockname()[1]}")
        thread.join()
    assert asked.returncode == 1
    assert "\x1b" not in asked.stderr


@pytest.mark.parametrize("demanded", [False, True])
def test_of_itself_over_tls(dsn: str, *, demanded: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The certificate is for the name outside, so on this machine it is not verified: nothing secret is sent."""
    authority, folder = trustme.CA(), tmp_path_factory.mktemp("tls")
    authority.issue_cert("gateway.example.com").private_key_and_cert_chain_pem.write_to_path(str(folder / "own"))
    authority.cert_pem.write_to_path(str(folder / "authority"))
    tls = {"tls_certificate": folder / "own"}
    if demanded:
        tls |= {"client_authorities": folder / "authority"}
    more = {"client_certificates": "demand"} if demanded else {}
    configured = config(dsn, server={**tls, **more})
    with serving.bind("127.0.0.1", 0) as listener:
        running = serving.server(app.build(configured), configured.server, grace=1)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        asked, alive = called("health", *PATIENTLY, "--url", url), called("health", "--alive", *PATIENTLY, "--url", url)
        running.should_exit = True
        thread.join()
    assert alive.returncode == 0, alive.stderr
    assert asked.returncode == (1 if demanded else 0)
    assert not demanded or "Does it demand a certificate?" in asked.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://127.0.0.1", "http://", "http://[::1", "http://127.0.0.1:x"])
def test_an_address_that_is_none(url: str) -> None:
    asked = called("health", "--url", url)
    assert asked.returncode == 2
    assert "--url: must be an address" in asked.stderr


@pytest.mark.parametrize("host", ["a..b", "a" * 64])
def test_an_address_that_no_host_can_have(host: str) -> None:
    with pytest.raises(ConfigurationError, match="--url: must be an address"):
        ApiClient(f"http://{host}", None).fetch("/v1/live")


def test_elsewhere_the_certificate_counts() -> None:
    assert _context("gateway.example.com").verify_mode is ssl.CERT_REQUIRED
    assert _context("127.0.0.1").verify_mode is ssl.CERT_NONE


def until_ready(gateway: Running, url: str, status: int) -> None:
    # Asked before, it would take a connection and not answer: it listens before it has all it needs.
    gateway.wait_for(lambda: '"event": "listening"' in gateway.errors.read_text())
    gateway.wait_for(lambda: httpx.get(f"{url}/v1/ready", timeout=PATIENCE).status_code == status)


@pytest.mark.thorough
def test_without_postgres_it_starts_answers_503_and_recovers_by_itself(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        data = Path(name) / "data"
        with postgres(data) as server:
            dsn = server.dsn()
            migrations.upgrade(dsn)
        url = f"http://127.0.0.1:{free_port()}"
        configured = write(tmp_path / "gateway.toml", dsn, listen=url.removeprefix("http://"))
        with started("serve", "--config", configured) as gateway:
            until_ready(gateway, url, 503)
            refused = httpx.get(f"{url}/v1/fences/job", timeout=PATIENCE)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            with postgres(data):
                until_ready(gateway, url, 204)
                assert httpx.get(f"{url}/v1/fences/job", timeout=PATIENCE).status_code == 200
                assert gateway.stop() == 0
            first_line, second, *_ = map(json.loads, gateway.said().splitlines())
            assert (first_line["event"], first_line["service"]) == ("service unreachable", "postgres")
            assert second["event"] == "listening"
