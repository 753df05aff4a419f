"""``gateway run``: a real command under a real lock. The tests cover its environment, its end and its signals."""

import asyncio
import base64
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil
import psycopg
import pytest
import trustme

from gateway.client import libpq
from gateway.commands.run import GATEWAY, Run, source_at
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import ConfigurationError
from gateway.guard import installation
from gateway.guard.installation import GuardRequest
from tests import ROOT
from tests.guard.stage import session
from tests.pausing import pause, resume
from tests.postgres import as_gateway, fresh, fresh_database
from tests.processes import COMMAND, PATIENCE, closed_port, free_port, started
from tests.running import GRANTS_TOML, OPERATOR_TOML, config
from tests.tiers import first

CONFIGURATION = (
    """
[server]
listen = "127.0.0.1:{port}"
[postgres]
dsn = "{dsn}"
[[callers]]
name = "worker"
api_key = "worker-key"
access_key_id = "worker"
secret_access_key = "worker-secret"
[[callers]]
name = "tables-only"
api_key = "tables-key"
[[callers]]
name = "operator"
api_key = "operator-key"
"""
    + GRANTS_TOML
    + OPERATOR_TOML.format("operator")
)
PRINT_ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


@dataclass(frozen=True, slots=True)
class Gateway:
    """``gateway serve``, and what a test asks it beside the command."""

    origin: str
    dsn: str

    def ask(self, method: str, path: str, content: object = None) -> Any:
        headers = {"Authorization": "Bearer operator-key"}
        answer = httpx.request(method, self.origin + path, json=content, headers=headers, timeout=30, trust_env=False)
        return answer.raise_for_status().json() if answer.content else None

    def lock(self, resource: str) -> Any:
        return self.ask("GET", f"/v1/leases/{resource}")

    def end(self, resource: str) -> None:
        """Break the lock, as an operator does to a holder that hangs."""
        token = self.lock(resource)["token"]
        self.ask("POST", f"/v1/breaks/{resource}", {"expected": token, "reason": "a test"})

    def expire(self, resource: str) -> None:
        """Let the time of a lease be over, by the clock of the database."""
        with psycopg.connect(self.dsn) as connection:
            connection.execute("UPDATE fencing.lease SET expires_at = acquired_at WHERE resource = %s", (resource,))

    def environment(self, **others: str) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FENCING_"))}
        known = {"GATEWAY_URL": self.origin, "GATEWAY_API_KEY": "worker-key", "PYTHONPATH": str(ROOT)}
        return {**clean, **known, **others}

    def run(self, *arguments: str, **others: str) -> "subprocess.CompletedProcess[str]":
        """To its end. ``others`` are more of the environment."""
        return subprocess.run(
            [*COMMAND, "run", *arguments], env=self.environment(**others), capture_output=True, text=True,
            timeout=PATIENCE, check=False,
        )  # fmt: skip

    @contextmanager
    def started(self, *arguments: str, **more: Any) -> Iterator["Job"]:
        process = subprocess.Popen(
            [*COMMAND, "run", *arguments], env=self.environment(), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, **more,
        )  # fmt: skip
        job = Job(process)
        with process:
            try:
                yield job
            finally:
                job.clear_away()


@dataclass(slots=True)
class Job:
    """A command under way. It says ``ready`` and its process id when it has got so far."""

    process: "subprocess.Popen[str]"
    group: int = 0

    def ready(self) -> None:
        word, number = self.line().split()
        assert word == "ready"
        self.group = int(number)

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line or self.process.stderr is None, self.process.stderr and self.process.stderr.read()
        return line

    def end(self) -> tuple[int, str, str]:
        """Exit code, the rest of what it said, what was said on standard error."""
        output, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, output, errors

    def clear_away(self) -> None:
        self.process.kill()
        if self.group:
            with suppress(ProcessLookupError):
                os.killpg(self.group, signal.SIGKILL)


@pytest.fixture(scope="module")
def gateway(postgres_server: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with asyncio.Runner() as runner:
        database = fresh_database(postgres_server)
        dsn, port = runner.run(database.__aenter__()), free_port()
        path = tmp_path_factory.mktemp("run") / "gateway.toml"
        path.write_text(CONFIGURATION.format(port=port, dsn=dsn))
        with started("serve", "--config", str(path)) as serving:
            serving.wait_for(lambda: "listening" in serving.errors.read_text())
            yield Gateway(f"http://127.0.0.1:{port}", dsn)
            assert serving.stop() == 0
            assert "Traceback" not in serving.said()
        runner.run(database.__aexit__(None, None, None))


@pytest.fixture
def lock() -> str:
    return f"job/{uuid4().hex}"


def python(script: str) -> list[str]:
    return ["--", sys.executable, "-u", "-c", script]


IMPORTS = "import os, signal, sys, time\n"
READY = f"{IMPORTS}print('ready', os.getpid())\n"


# The command's environment


def test_the_command_finds_its_token_and_fenced_credentials_and_nothing_that_overrules_them(
    gateway: Gateway, lock: str
) -> None:
    before = {
        "FENCING_TOKEN": "999", "FENCING_SEQUENCER": "of another run", "AWS_ACCESS_KEY_ID": "AKIAOWN",
        "AWS_SESSION_TOKEN": "own", "AWS_PROFILE": "own", "AWS_SECURITY_TOKEN": "own",
        "AWS_REGION": "eu-west-1", "GATEWAY_SOURCE": "gateway", "OTHER": "stays",
    }  # fmt: skip
    ended = gateway.run("--lock", lock, "--holder", "host-7", *python(PRINT_ENVIRONMENT), **before)
    assert (ended.returncode, ended.stderr) == (0, "")
    found = json.loads(ended.stdout)
    assert found["FENCING_TOKEN"] == gateway.lock(lock)["token"] == gateway.ask("GET", f"/v1/fences/{lock}")["token"]
    assert found["FENCING_RESOURCE"] == lock
    assert found["FENCING_HOLDER"].startswith("host-7-")
    assert found["AWS_ACCESS_KEY_ID"].startswith("FENCE")
    assert found["AWS_SESSION_TOKEN"].startswith("fc1.")
    assert found["GATEWAY_URL"] == found["AWS_ENDPOINT_URL"] == found["AWS_ENDPOINT_URL_S3"] == gateway.origin
    assert (found["AWS_REGION"], found["OTHER"]) == ("eu-west-1", "stays")
    assert not {"FENCING_SEQUENCER", "AWS_PROFILE", "AWS_SECURITY_TOKEN", "AWS_DEFAULT_REGION"} & found.keys()
    assert not {"GATEWAY_API_KEY", "GATEWAY_SOURCE"} & found.keys()
    assert gateway.lock(lock)["holders"] == []
    unnamed = gateway.run("--lock", lock, *python(PRINT_ENVIRONMENT))
    name = rf"python[0-9.]*@{re.escape(socket.gethostname())}:\d+-[0-9a-f]{{12}}"
    assert re.fullmatch(name, json.loads(unnamed.stdout)["FENCING_HOLDER"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("said", "read"),
    [
        ([], None),
        (["--read", "s3/inputs/**", "--read", "job/7"], ["s3/inputs/**", "job/7"]),
        (["--read", "all"], ["**"]),
    ],
)
def test_the_credentials_read_what_was_asked_for(
    gateway: Gateway, lock: str, said: list[str], read: list[str] | None
) -> None:
    ended = gateway.run("--lock", lock, *said, *python(PRINT_ENVIRONMENT))
    assert (ended.returncode, ended.stderr) == (0, "")
    claims = json.loads(ended.stdout)["AWS_SESSION_TOKEN"].split(".")[1]
    assert json.loads(base64.urlsafe_b64decode(claims + "==")).get("read") == read


@pytest.mark.thorough
def test_without_s3_keys_of_ones_own_there_are_no_credentials_and_that_is_said_once(
    gateway: Gateway, lock: str, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("tables-key\n")
    options = ("--lock", lock, "--api-key-file", str(key), "--pass-api-key")
    ended = gateway.run(*options, *python(PRINT_ENVIRONMENT), AWS_ACCESS_KEY_ID="AKIAOWN", GATEWAY_API_KEY="none")
    assert ended.returncode == 0
    assert ended.stderr.count("gateway run: No S3 credentials: ") == ended.stderr.count("\n") == 1
    found = json.loads(ended.stdout)
    assert (found["AWS_ACCESS_KEY_ID"], found["GATEWAY_API_KEY"]) == ("AKIAOWN", "tables-key")
    assert not {"AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_REGION"} & found.keys()
    assert found["FENCING_TOKEN"] == "1"


def test_standard_input_and_output_are_the_commands(gateway: Gateway, lock: str) -> None:
    content = bytes(range(256)) * 4096
    ended = subprocess.run(
        [*COMMAND, "run", "--lock", lock, "--", "cat"], env=gateway.environment(), input=content,
        capture_output=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout == content, ended.stderr) == (0, True, b"")


@pytest.mark.thorough
def test_the_lock_may_be_elsewhere(gateway: Gateway, lock: str) -> None:
    """A lock service without epochs, in a database of its own; its library reads the address."""
    from gateway.client.postgres import PostgresSource  # noqa: PLC0415 - an extra

    async def install() -> None:
        source = PostgresSource(gateway.dsn)
        await source.install()
        await source.aclose()

    asyncio.run(install())
    ended = gateway.run("--lock", lock, "--source", gateway.dsn, *python(PRINT_ENVIRONMENT))
    assert (ended.returncode, ended.stderr) == (0, "")
    token = json.loads(ended.stdout)["FENCING_TOKEN"]
    assert token == gateway.ask("GET", f"/v1/fences/{lock}")["token"]
    assert gateway.lock(lock)["token"] is None, "the gateway's own lease service was not asked"


# Programs of PostgreSQL


@pytest.fixture
def ledger(gateway: Gateway, lock: str) -> Iterator[str]:
    """A guarded table of one resource, the lock; its name."""
    name = f"ledger_{uuid4().hex[:12]}"
    tables = [{"name": f"public.{name}", "resource": lock}]

    async def install() -> None:
        async with session(gateway.dsn) as owner:
            await owner.execute(
                f"CREATE TABLE {name} (n integer); CREATE ROLE {name} LOGIN; GRANT ALL ON {name} TO {name}"
            )
        wanted = GuardRequest(name, dsn=gateway.dsn, grants=(name,))
        await installation.install(config(as_gateway(gateway.dsn), tables=tables).default, wanted)

    async def remove() -> None:
        async with session(gateway.dsn) as owner:
            await owner.execute(f"DROP TABLE {name}; DROP OWNED BY {name}; DROP ROLE {name}")

    asyncio.run(install())
    yield name
    asyncio.run(remove())


def of_role(gateway: Gateway, role: str) -> str:
    return gateway.dsn.replace("://postgres:@", f"://{role}@", 1)


WRITE = """
import os, sys, psycopg
with psycopg.connect("") as connection:
    connection.execute(f"INSERT INTO {sys.argv[1]} VALUES (1)")
    print(connection.info.dbname, os.environ["PGOPTIONS"])
"""


@pytest.mark.thorough
def test_a_program_of_postgresql_is_fenced_without_knowing_it(gateway: Gateway, lock: str, ledger: str) -> None:
    dsn = of_role(gateway, ledger)
    command = ["--", sys.executable, "-c", WRITE, ledger]
    others = {"PGOPTIONS": "-c work_mem=5MB", "GATEWAY_POSTGRES": dsn}
    ended = gateway.run("--lock", lock, *command, **others)
    assert (ended.returncode, ended.stderr) == (0, "")
    name, _, options = ended.stdout.partition(" ")
    assert name == psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    assert options.startswith("-c work_mem=5MB -c fencing.resource=")
    # Another lock inside of it: both are held. Another lock alone: the guard refuses.
    inner = [*COMMAND, "run", "--lock", f"{lock}/inner", *command]
    nested = gateway.run("--lock", lock, "--pass-api-key", "--", *inner, **others)
    assert (nested.returncode, nested.stderr) == (0, "")
    alone = gateway.run("--lock", f"{lock}/inner", *command, **others)
    assert alone.returncode == 1
    assert f"touches {lock}, which this transaction does not hold" in alone.stderr
    unfenced = subprocess.run(
        command[1:], env=gateway.environment(**libpq.environment(dsn)), capture_output=True, text=True, check=False
    )
    assert f"gateway run --lock {lock} -- PROGRAM" in unfenced.stderr


def test_one_database_has_the_lock_until_a_gateway_is_added(gateway: Gateway, lock: str, ledger: str) -> None:
    """The command line stays, the environment gets GATEWAY_URL, and tokens go on growing."""
    job = [
        "--lock",
        lock,
        "--",
        sys.executable,
        "-c",
        f"{WRITE}\nimport json\nprint(json.dumps(dict(os.environ)))",
        ledger,
    ]
    tokens = []
    for url in ("", gateway.origin, ""):
        keys = {"GATEWAY_API_KEY": "worker-key" if url else "", "GATEWAY_URL": url}
        ended = gateway.run(*job, GATEWAY_POSTGRES=of_role(gateway, ledger), **keys)
        assert (ended.returncode, ended.stderr) == (0, "")
        shown = json.loads(ended.stdout.splitlines()[-1])
        assert ("AWS_SESSION_TOKEN" in shown, shown.get("GATEWAY_URL", "")) == (bool(url), url)
        tokens.append(shown["FENCING_TOKEN"])
    assert tokens == ["1", "2", "3"]
    alone = {"GATEWAY_URL": "", "GATEWAY_API_KEY": ""}
    shown_all = ["--lock", lock, "--", sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
    keys = {"GATEWAY_URL": of_role(gateway, ledger), "GATEWAY_API_KEY": "", "AWS_ACCESS_KEY_ID": "the job's own"}
    ended = gateway.run(*shown_all, **keys)
    assert "S3 requests of the command are not fenced" in ended.stderr
    assert "GATEWAY_URL" not in json.loads(ended.stdout), "the address of a database may have a password"
    for options, said in (
        ((), "For one Postgres without a gateway, set --postgres."),
        (("--postgres", "nowhere"), "connection string"),
        (("--postgres", of_role(gateway, ledger), "--read", "all"), "need a gateway"),
        (("--postgres", of_role(gateway, ledger), "--source", "etcd://127.0.0.1:1"), "need a gateway"),
    ):
        wrong = gateway.run(*options, "--lock", lock, "--", "true", **alone)
        assert (wrong.returncode, said in wrong.stderr) == (2, True), wrong.stderr
    assert gateway.lock(lock)["holders"] == []


def test_a_database_that_cannot_be_read_is_an_error_before_the_lock(gateway: Gateway, lock: str) -> None:
    for dsn in ("nowhere", "host=a ld_preload=b"):
        wanted = Run(("true",), gateway.origin, lock, "worker-key", gateway.environment(), pytest.fail, postgres=dsn)
        with pytest.raises(ConfigurationError, match="connection string"):
            wanted.run()
    held = {"PGOPTIONS": "-c fencing.held=x"}
    with pytest.raises(ConfigurationError, match=r"fencing\.held"):
        Run(("true",), gateway.origin, lock, "worker-key", gateway.environment(**held), pytest.fail).run()


HOLD_ON = """
import subprocess, sys, psycopg
connection = psycopg.connect("")
connection.execute(f"INSERT INTO {sys.argv[1]} VALUES (2)")
print("ready 0", flush=True)
try:
    connection.execute("SELECT pg_sleep(60)")
except psycopg.OperationalError as error:
    print(error)
"""


@pytest.mark.thorough
def test_sessions_of_a_lost_lock_are_ended_so_that_its_successor_need_not_wait(
    gateway: Gateway, lock: str, ledger: str
) -> None:
    """The session is in a transaction that has written; it ignores SIGTERM."""
    script = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{HOLD_ON}"
    command = ["--", sys.executable, "-c", script, ledger]
    options = ("--lock", lock, "--ttl", "6", "--postgres", of_role(gateway, ledger), "--grace", "30")
    with gateway.started(*options, *command) as job:
        job.ready()
        gateway.end(lock)
        code, output, errors = job.end()
    assert code == 79, errors
    assert "terminating connection due to administrator command" in output
    with psycopg.connect(gateway.dsn) as connection:
        assert connection.execute(f"SELECT FROM {ledger}".encode()).fetchall() == []


# How it ends

ENDS: list[tuple[list[str], int, str]] = [
    (python("raise SystemExit(7)"), 7, ""),
    (python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), 137, ""),
    (["--", "no-such-command"], 127, "gateway run: no-such-command: command not found\n"),
    (["--", __file__], 126, f"gateway run: {__file__}: cannot be executed\n"),
]


@pytest.mark.parametrize("end", first(ENDS))
def test_the_exit_code_is_that_of_the_command(gateway: Gateway, lock: str, end: tuple[list[str], int, str]) -> None:
    command, code, said = end
    ended = gateway.run("--lock", lock, *command)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", said)
    assert gateway.lock(lock)["holders"] == []


MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    ({"resource": "job 42"}, "worker-key", "percent-encoded"),
    ({"ttl": float("inf")}, "worker-key", "ttl must be a number"),
    ({"source": "mongodb://host"}, "worker-key", "must be one of: gateway, etcd://"),
    ({"url": "nowhere"}, "worker-key", "not an address"),
    ({}, "unknown", "API key is unknown.*GATEWAY_API_KEY"),
]


@pytest.mark.parametrize(("wanted", "key", "said"), MISTAKES, ids=[said for *_, said in MISTAKES])
def test_what_has_to_be_corrected_first_is_an_error_and_nothing_is_started(
    gateway: Gateway, tmp_path: Path, wanted: dict[str, Any], key: str, said: str
) -> None:
    proof = tmp_path / "started"
    known: dict[str, Any] = {"command": ("touch", str(proof)), "url": gateway.origin, "resource": "job/42", **wanted}
    with pytest.raises(ConfigurationError) as mistake:
        Run(**known, api_key=key, inherited=gateway.environment(), say=pytest.fail).run()
    assert re.search(said, f"{mistake.value} {mistake.value.advice}")
    assert not proof.exists()


@pytest.mark.thorough
def test_a_gateway_that_is_not_there_is_another_exit_code(gateway: Gateway, lock: str) -> None:
    ended = gateway.run("--lock", lock, "--wait", "0", *python("print('started')"), GATEWAY_URL="http://127.0.0.1:9")
    assert (ended.returncode, ended.stdout) == (69, "")
    assert "gateway run: http://127.0.0.1:9 cannot be reached" in ended.stderr


SERVICES = {
    "etcd": ("etcd://127.0.0.1:{}", "etcd at http://127.0.0.1:{}"),
    "redis": ("redis://:a-password@127.0.0.1:{}/0", "Redis at 127.0.0.1:{}"),
    "zookeeper": ("zookeeper://127.0.0.1:{}", "ZooKeeper at 127.0.0.1:{}"),
    "consul": ("consul://127.0.0.1:{}", "Consul at http://127.0.0.1:{}"),
    "postgres": ("postgresql://ann:a-password@127.0.0.1:{}/locks", "Postgres at 127.0.0.1:{}"),
}


@pytest.mark.parametrize("service", first(SERVICES))
def test_a_lock_service_that_is_down_is_named_in_one_line(gateway: Gateway, lock: str, service: str) -> None:
    address, named = SERVICES[service]
    with closed_port() as port:
        source = ("--source", address.format(port), "--wait", "0")
        ended = gateway.run("--lock", lock, *source, *python("print('started')"))
    assert (ended.returncode, ended.stdout) == (69, ""), ended.stderr
    assert ended.stderr.count("\n") == 1, ended.stderr
    line = ended.stderr
    assert line.startswith(f"gateway run: {named.format(port)} ")
    assert "a-password" not in line


def test_the_authority_of_aws_tools_vouches_for_the_gateway_and_goes_to_the_command(
    tmp_path: Path, postgres_server: EmbeddedPostgres, lock: str
) -> None:
    authority, port = trustme.CA(), free_port()
    bundle, own = tmp_path / "authority.pem", tmp_path / "own.pem"
    authority.cert_pem.write_to_path(bundle)
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(own)
    with fresh(postgres_server) as dsn:
        tls = f'tls_certificate = "{own}"\n[postgres]'
        text = CONFIGURATION.format(port=port, dsn=dsn).replace("[postgres]", tls, 1)
        (tmp_path / "gateway.toml").write_text(text)
        with started("serve", "--config", str(tmp_path / "gateway.toml")) as serving:
            serving.wait_for(lambda: "listening" in serving.errors.read_text())
            secure = Gateway(f"https://localhost:{port}", dsn)
            job = ("--lock", lock, *python(PRINT_ENVIRONMENT))
            for name in ("AWS_CA_BUNDLE", "SSL_CERT_FILE"):
                unset = {"SSL_CERT_FILE": "", "AWS_CA_BUNDLE": ""}
                ended = secure.run(*job, **{**unset, name: str(bundle)})
                assert (ended.returncode, ended.stderr) == (0, ""), name
                assert json.loads(ended.stdout)["AWS_CA_BUNDLE"] == str(bundle), name
            ended = secure.run("--wait", "1", *job, SSL_CERT_FILE="")
            line = ended.stderr
            assert (ended.returncode, ended.stdout, line.count("\n")) == (69, "", 1), line
            assert all(word in line for word in (secure.origin, "SSL_CERT_FILE", "AWS_CA_BUNDLE"))
            ended = secure.run(*job, SSL_CERT_FILE="", AWS_CA_BUNDLE=str(tmp_path / "absent"))
            assert ended.returncode == 2
            assert "AWS_CA_BUNDLE" in ended.stderr
            assert serving.stop() == 0


@pytest.mark.thorough
def test_a_lock_that_is_held_is_not_waited_for_or_for_as_long_as_was_said(gateway: Gateway, lock: str) -> None:
    held = gateway.ask("POST", f"/v1/leases/{lock}", {"holder": "somebody", "ttl": 60})
    for wait in ("0", "0.3"):
        ended = gateway.run("--lock", lock, "--wait", wait, *python("print('started')"))
        assert (ended.returncode, ended.stdout) == (75, "")
        assert ended.stderr.startswith(f"gateway run: The lock {lock} is held by somebody.")
        assert gateway.lock(lock)["waiters"] == 0
    with gateway.started("--lock", lock, *python("print('started')")) as job:
        eventually(lambda: gateway.lock(lock)["waiters"] == 1)
        gateway.ask("DELETE", f"/v1/leases/{lock}/{held['lease']}")
        assert job.end() == (0, "started\n", "")


@pytest.mark.thorough
def test_a_signal_while_waiting_gives_the_place_up(gateway: Gateway, lock: str) -> None:
    gateway.ask("POST", f"/v1/leases/{lock}", {"holder": "somebody", "ttl": 60})
    with gateway.started("--lock", lock, *python("print('started')")) as job:
        eventually(lambda: gateway.lock(lock)["waiters"] == 1)
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == (143, "", "")
    assert gateway.lock(lock)["waiters"] == 0


# While it runs


@pytest.fixture
def listening_to_a_terminal() -> Iterator[None]:
    """Heed the signals of a terminal: a shell's background job and ``nohup`` ignore them, and children inherit that."""
    of_a_terminal = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    before = {number: signal.signal(number, signal.default_int_handler) for number in of_a_terminal}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("listening_to_a_terminal")
def test_signals_are_passed_on(gateway: Gateway, lock: str) -> None:
    passed = [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2]
    script = (
        f"for number in {[int(number) for number in passed]}: signal.signal(number, lambda number, _: print(number))\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        f"print('ready', os.getpid())\nwhile True: time.sleep(60)"
    )
    with gateway.started("--lock", lock, *python(f"{IMPORTS}{script}")) as job:
        job.ready()
        for number in passed:
            job.process.send_signal(number)
            assert int(job.line()) == number
        job.process.send_signal(signal.SIGTERM)
        assert job.end() == (9, "", "")


@pytest.mark.thorough
def test_what_was_ignored_stays_ignored(gateway: Gateway, lock: str) -> None:
    """``nohup gateway run`` outlives its terminal, and so does the command."""
    script = READY + "time.sleep(0.5); print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    nohup = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with gateway.started("--lock", lock, *python(script)) as job:
            job.ready()
            job.process.send_signal(signal.SIGHUP)
            assert job.end() == (0, "True\n", "")
    finally:
        signal.signal(signal.SIGHUP, nohup)


def test_a_lost_lock_ends_the_command_and_all_that_it_has_started(gateway: Gateway, lock: str) -> None:
    script = (
        f"trap 'echo leaving; exit 0' TERM; {sys.executable} -c 'import time; time.sleep(60)' & echo ready $$; wait"
    )
    with gateway.started("--lock", lock, "--ttl", "6", "--", "sh", "-c", script) as job:
        job.ready()
        gateway.end(lock)
        code, output, errors = job.end()
        assert (code, output) == (79, "leaving\n")
        assert errors.startswith(f"gateway run: The lock {lock} is lost: ")
        assert errors.endswith("The command is stopped.\n")
        assert members(job.group) == []


@pytest.mark.thorough
def test_who_does_not_leave_is_killed_after_the_grace(gateway: Gateway, lock: str) -> None:
    """A child that ignores SIGTERM is found even though its parent has left."""
    deaf = READY + "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    start = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-uc', {deaf!r}], stdout=2)\n"
    script = f"{start}{READY}time.sleep(60)"
    with gateway.started("--lock", lock, "--ttl", "6", "--grace", "0.5", *python(script)) as job:
        job.ready()
        assert job.process.stderr is not None
        assert job.process.stderr.readline().startswith("ready"), "the deaf one"
        gateway.end(lock)
        # Not until all of its output has been read: that is as long as the deaf one lives.
        assert job.process.wait(PATIENCE) == 79
        assert members(job.group) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("own", "code", "said"),
    [(0, 0, "succeeded. Writes that were answered with success stay."), (5, 79, "failed with 5")],
)
def test_a_command_that_ends_while_its_lock_is_lost(
    gateway: Gateway, lock: str, own: int, code: int, said: str
) -> None:
    script = f"{READY}sys.stdin.readline(); sys.exit({own})"
    with gateway.started("--lock", lock, "--ttl", "3", *python(script), stdin=subprocess.PIPE) as job:
        job.ready()
        pause(job.process.pid)
        eventually(lambda: gateway.lock(lock)["holders"] == [])
        assert job.process.stdin is not None
        job.process.stdin.write("\n")
        job.process.stdin.flush()
        eventually(lambda: psutil.Process(job.group).status() == psutil.STATUS_ZOMBIE)
        resume(job.process.pid)
        ended, _, errors = job.end()
        assert ended == code
        assert said in errors


def test_if_it_is_killed_the_command_is_a_zombie_that_its_token_stops(gateway: Gateway, lock: str) -> None:
    script = f"{READY}print(os.environ['FENCING_TOKEN']); time.sleep(60)"
    with gateway.started("--lock", lock, *python(script)) as job:
        job.ready()
        token = job.line().strip()
        job.process.kill()
        job.process.wait(PATIENCE)
        gateway.expire(lock)
        assert gateway.run("--lock", lock, *python("")).returncode == 0
        assert psutil.pid_exists(job.group), "nobody has told it"
        with pytest.raises(httpx.HTTPStatusError, match="412"):
            gateway.ask("POST", f"/v1/fences/{lock}/barrier", {"token": token})


# At a terminal


@pytest.mark.thorough
@pytest.mark.usefixtures("listening_to_a_terminal")
def test_at_a_terminal_it_is_as_if_it_were_not_there(gateway: Gateway, lock: str) -> None:
    """Typing, Ctrl-Z, fg, bg and Ctrl-C, by a shell with job control."""
    run = f"{sys.executable} -m gateway run --lock {lock} --"
    # No shell script: if a shell is stopped while it starts a program (vfork), its parent does not learn of the stop.
    ends = "signal.signal(signal.SIGINT, lambda *_: sys.exit(9))"
    script = f"import os, signal, sys, time; {ends}; print('here', os.getpid()); time.sleep(60)"
    with terminal(gateway.environment(PS1="$ ", TERM="dumb")) as shell:
        shell.seen("$ ")
        shell.type(f"{run} cat")
        shell.runs()
        shell.type("one")
        shell.seen("one\r\none\r\n")
        shell.type(CTRL_Z)
        shell.seen("Stopped")
        shell.seen("$ ")
        shell.type("fg")
        shell.runs()
        shell.type("two")
        shell.seen("two\r\ntwo\r\n")
        shell.type(CTRL_C)
        shell.seen("$ ")

        shell.type(f'{run} {sys.executable} -uc "{script}"')
        shell.seen("\nhere ")
        job = psutil.Process(int(shell.seen("\n")))
        shell.type(CTRL_Z)
        shell.seen("Stopped")
        assert job.status() == psutil.STATUS_STOPPED
        shell.seen("$ ")
        shell.type("bg")
        eventually(lambda: job.status() != psutil.STATUS_STOPPED)
        shell.seen("$ ")
        shell.type("fg; echo code=$?")
        shell.runs()
        shell.type(CTRL_C)
        shell.seen("code=9")


CTRL_C, CTRL_Z = "\x03", "\x1a"


@dataclass(frozen=True, slots=True)
class Shell:
    """An interactive shell at a terminal of its own. Typed input has to wait until the terminal can take it."""

    process: int
    device: int

    def type(self, line: str) -> None:
        os.write(self.device, (line if line in (CTRL_C, CTRL_Z) else f"{line}\n").encode())

    def seen(self, text: str) -> str:
        """Wait until it appears; all that has appeared before."""
        found, give_up = "", time.monotonic() + PATIENCE
        while text not in found:
            ready, _, _ = select.select([self.device], [], [], max(0, give_up - time.monotonic()))
            assert ready, f"{text!r} is not in {found!r}"
            found += os.read(self.device, 1).decode("ascii", "replace")
        return found

    def runs(self) -> None:
        """Wait until the terminal is a job's, and takes whole lines again."""
        eventually(lambda: os.tcgetpgrp(self.device) != self.process)
        eventually(lambda: bool(termios.tcgetattr(self.device)[3] & termios.ICANON))


@contextmanager
def terminal(environment: dict[str, str]) -> Iterator[Shell]:
    process, device = pty.fork()
    if process == 0:
        os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
    try:
        yield Shell(process, device)
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(device)


def members(group: int) -> list[int]:
    """The processes of a group that are alive."""
    alive = []
    for process in psutil.process_iter(["pid", "status"]):
        with suppress(ProcessLookupError):
            if process.info["status"] != psutil.STATUS_ZOMBIE and os.getpgid(process.info["pid"]) == group:
                alive.append(process.info["pid"])
    return alive


def eventually(seen: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not seen():
        assert time.monotonic() < give_up
        time.sleep(0.05)


# Lock services named by an address: each becomes its source, with what the address says; nothing is connected to.


ADDRESSES: list[tuple[str, str, dict[str, Any]]] = [
    (GATEWAY, "NoneType", {}),  # its own service needs no other source
    ("etcd://host:2379", "EtcdSource", {"_prefix": "fencing"}),
    ("etcds://user:p%40ss@one:2379,two:2379/locks", "EtcdSource", {"_prefix": "locks"}),
    ("zookeeper://one:2181,two:2181", "ZooKeeperSource", {"_hosts": "one:2181,two:2181", "_root": "/fencing"}),
    ("zookeeper://host:2181/locks", "ZooKeeperSource", {"_hosts": "host:2181", "_root": "/locks"}),
    ("redis://:secret@host:6379/1", "RedisSource", {"_url": "redis://:secret@host:6379/1"}),
    ("consul://:secret@host:8500", "ConsulSource", {}),
    ("kubernetes://jobs", "KubernetesSource", {"_namespace": "jobs"}),
    ("postgresql://user:@/app?host=/run/pg", "PostgresSource", {"_url": "postgresql://user:@/app?host=/run/pg"}),
]


@pytest.mark.parametrize(("address", "kind", "known"), ADDRESSES, ids=[address for address, _, _ in ADDRESSES])
def test_an_address_names_a_source(address: str, kind: str, known: dict[str, Any]) -> None:
    source = source_at(address)
    assert type(source).__name__ == kind
    assert {name: getattr(source, name) for name in known} == known


def test_a_password_is_what_its_escapes_stand_for_and_hosts_are_those_after_it() -> None:
    source: Any = source_at("etcds://user:p%40ss@one:2379,two:2379/locks")
    shown = repr([vars(source._api), vars(source._api._ask)])
    assert "p@ss" in shown
    assert "https://one:2379" in shown
    assert "https://two:2379" in shown


@pytest.mark.parametrize("address", ["", "host:2379", "mongodb://host", "etcd://", "kubernetes://", "https://host"])
def test_what_is_no_address_is_told_what_one_is(address: str) -> None:
    with pytest.raises(ValueError, match="must be one of: gateway, etcd://"):
        source_at(address)
