"""A reload puts a whole configuration in force, or nothing of it, while requests run."""

import asyncio
import json
import os
import pty
import signal
import socket
import ssl
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import trustme

from gateway import app, reloading
from gateway.app import Gateway
from gateway.config import Config
from gateway.config.reloadable import Change
from gateway.errors import ConfigurationError, ReloadRefused, Unavailable
from gateway.fencing.record import Attempt
from gateway.reloading import Reload, Reloading, Source
from tests.postgres import as_gateway
from tests.processes import Running, called, free_port, started
from tests.running import GRANTS_TOML, OPERATOR_TOML, Events, config, running
from tests.waiting import PATIENCE

WRITER, ROOT = "a-key-of-the-writer", "a-key-of-the-administrator"
TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, account bigint NOT NULL, note text);
INSERT INTO orders VALUES (1, 10, ''), (2, 10, '');
"""
RULE = '[[tables]]\nname = "public.orders"\n'


@dataclass(frozen=True, slots=True)
class Served:
    """A running gateway, and the file of its configuration."""

    process: Running
    file: Path
    dsn: str
    port: int
    server: str = ""

    @property
    def url(self) -> str:
        return f"http{'s' if 'tls' in self.server else ''}://127.0.0.1:{self.port}"

    def write(self, text: str = RULE, *, writer: str = WRITER, server: str | None = None) -> None:
        self.file.write_text(
            f'[server]\nlisten = "127.0.0.1:{self.port}"\n{self.server if server is None else server}\n'
            f'[postgres]\ndsn = "{as_gateway(self.dsn)}"\n'
            f'[[callers]]\nname = "writer"\napi_key = "{writer}"\n'
            f'[[callers]]\nname = "root"\napi_key = "{ROOT}"\n{GRANTS_TOML}{OPERATOR_TOML.format("root")}{text}\n'
        )

    def events(self, event: str) -> list[dict[str, Any]]:
        """Return the lines of the log about an event. The last line may be incomplete, and then it comes later."""
        lines = self.process.errors.read_text().rpartition("\n")[0].splitlines()
        return [line for line in map(json.loads, lines) if line.get("event") == event]

    def hang_up(self, event: str = "configuration reloaded") -> dict[str, Any]:
        """Send SIGHUP, and wait for one more of an event."""
        before = len(self.events(event))
        os.kill(self.process.process.pid, signal.SIGHUP)
        return self.until(event, before)

    def until(self, event: str, before: int = 0) -> dict[str, Any]:
        self.process.wait_for(lambda: len(self.events(event)) > before)
        return self.events(event)[-1]

    def client(self, key: str = WRITER, **options: Any) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=PATIENCE, **options)


@pytest.fixture
async def session(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLES)
    yield connection
    await connection.close()


@contextmanager
def served(
    tmp_path: Path, dsn: str, text: str = RULE, server: str = "", *more: str, limits: Mapping[str, float] | None = None
) -> Iterator[Served]:
    file, port = tmp_path / "gateway.toml", free_port()
    Served(None, file, dsn, port, server).write(text)  # type: ignore[arg-type]  # not running yet
    with started("serve", "--config", str(file), *more, limits=limits) as process:
        gateway = Served(process, file, dsn, port, server)
        gateway.until("listening")
        with suppress(httpx.TransportError), httpx.Client(verify=False) as client:
            client.get(f"{gateway.url}/v1/health")
        yield gateway


@pytest.fixture
def gateway(tmp_path: Path, dsn: str, session: asyncpg.Connection) -> Iterator[Served]:
    with served(tmp_path, dsn) as one:
        yield one


async def patch(client: httpx.AsyncClient, token: int, row: int = 1) -> httpx.Response:
    return await client.patch(
        f"/v1/tables/orders?id=eq.{row}", json={"note": "x"}, headers={"Fencing-Token": f"{token}"}
    )


async def test_a_hangup_puts_the_file_in_force_and_on_record(
    tmp_path: Path, dsn: str, session: asyncpg.Connection
) -> None:
    with served(tmp_path, dsn) as gateway:
        async with gateway.client() as old, gateway.client("a-newer-key-of-it") as new:
            assert (await patch(old, 7)).status_code == 204
            assert (await patch(new, 7)).status_code == 401
            gateway.write(f'{RULE}mode = "observe"\n[audit]\nretention = 60', writer="a-newer-key-of-it")
            line = await asyncio.to_thread(gateway.hang_up)
            assert line["changes"] == [
                '[[callers]] "writer", api_key: (redacted) -> (redacted)',
                '[[tables]] "public.orders", mode: absent -> "observe"',
                "[audit], retention: 400 -> 60",
            ]
            assert (line["by"], line["caller"]) == ("SIGHUP", "gateway-process")
            # The connection is the same; the key that is gone proves nothing any more.
            assert (await patch(old, 7)).status_code == 401
            observed = await patch(new, 6)
            assert (observed.status_code, observed.headers["fencing-would-refuse"]) == (204, "token-stale; fence=7")
        assert "newer-key" not in gateway.process.said()
    [entry] = await session.fetch(
        "SELECT caller, method, details FROM (SELECT caller, method, details::text FROM fencing.intake "
        "UNION ALL SELECT caller, method, details::text FROM fencing.entry) AS every "
        "WHERE details LIKE '%ReloadConfiguration%'"
    )
    assert (entry["caller"], entry["method"]) == ("gateway-process", "SIGHUP")
    assert {"setting": "[audit], retention", "was": "400", "is": "60"} in json.loads(entry["details"])["changes"]
    assert "newer-key" not in entry["details"]


WRONG = [
    ('[[tables]]\nname = "public.odrers"\n[audit]\nretention = 60', "", "Did you mean public.orders?"),
    (f"{RULE}[leases]\nmax_tll = 60", "", "unknown"),
    ('[[tables]]\nname = "public.orders"\nresource = "order/{id}"', "", "Rows or keys would get other names."),
    (RULE, 'listen = "127.0.0.1:1"', "not TOML"),
    (f"{RULE}[telemetry]\naccess_log = true", "", "A change needs a restart: [telemetry], access_log"),
    (f'{RULE}[journal]\ndsn = "postgresql://a@b/c"', "", "A change needs a restart: [journal], dsn"),
]


async def test_a_configuration_that_cannot_be_used_changes_nothing(gateway: Served) -> None:
    async with gateway.client() as client, gateway.client("a-newer-key-of-it") as new, gateway.client(ROOT) as root:
        assert (await patch(client, 7)).status_code == 204
        shown = (await root.get("/v1/config")).json()
        for text, server, said in WRONG:
            gateway.write(text, writer="a-newer-key-of-it", server=server)
            line = await asyncio.to_thread(gateway.hang_up, "reload failed")
            assert said in line["error"]
            assert (await patch(new, 8)).status_code == 401
            assert (await patch(client, 6)).status_code == 412
            assert (await root.get("/v1/config")).json() == shown
            refused = await root.post("/v1/config/reload")
            assert (refused.status_code, refused.json()["code"]) == (409, "reload-refused")
            assert said in refused.json()["detail"]
        assert not gateway.events("configuration reloaded")


@pytest.mark.thorough
async def test_the_command_reloads_running_gateways(gateway: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("reload", "--url", gateway.url)
    monkeypatch.setenv("GATEWAY_API_KEY", WRITER)
    refused = await asyncio.to_thread(called, *arguments)
    assert (refused.returncode, "lacks the grant" in refused.stderr) == (1, True)
    monkeypatch.setenv("GATEWAY_API_KEY", ROOT)

    async def unchanged(*named: str) -> None:
        same = await asyncio.to_thread(called, "reload", *named)
        assert (same.returncode, same.stdout) == (0, f"{gateway.url}: nothing has changed\n")

    await unchanged("--url", gateway.url)
    gateway.write(f"{RULE}[audit]\nretention = 60")
    changed = await asyncio.to_thread(called, *arguments)
    assert (changed.returncode, changed.stdout) == (0, f"{gateway.url}: [audit], retention: 400 -> 60\n")
    assert gateway.until("configuration reloaded")["caller"] == "root"
    # The file of the gateway, and a variable, name it as well. An option counts more.
    await unchanged("--config", str(gateway.file))
    monkeypatch.setenv("GATEWAY_URL", gateway.url)
    await unchanged()
    monkeypatch.setenv("GATEWAY_URL", "http://127.0.0.1:9")
    await unchanged("--config", str(gateway.file))
    monkeypatch.delenv("GATEWAY_URL")
    named = await asyncio.to_thread(called, "reload")
    assert (named.returncode, "GATEWAY_URL" in named.stderr) == (2, True)
    gateway.file.write_text("[server")
    wrong = await asyncio.to_thread(called, *arguments)
    assert (wrong.returncode, "not TOML" in wrong.stderr) == (1, True)


async def test_a_request_ends_under_the_configuration_that_it_began_with(
    tmp_path: Path, dsn: str, session: asyncpg.Connection
) -> None:
    """A waiting write is answered. A stream ends, so that its client reconnects. The former gateway ends."""
    former = "datname = current_database() AND application_name = 'fencing-gateway' AND backend_start < $1"
    with served(tmp_path, dsn) as gateway:
        async with gateway.client() as client, gateway.client("a-newer-key-of-it") as new:
            assert (await patch(client, 7)).status_code == 204
            async with client.stream("GET", "/v1/events/stream") as stream:
                events = stream.aiter_bytes()
                assert await anext(events)
                async with session.transaction():
                    await session.execute("SELECT FROM orders WHERE id = 2 FOR UPDATE")
                    writing = asyncio.create_task(patch(client, 8, row=2))
                    await _waits_for_a_row(dsn)
                    gateway.write(writer="a-newer-key-of-it")
                    reloaded = await session.fetchval("SELECT clock_timestamp()")
                    await asyncio.to_thread(gateway.hang_up)
                    assert b"".join([piece async for piece in events]) is not None
                    assert (await patch(new, 8)).status_code == 204
                    assert not writing.done()
                assert (await writing).status_code == 204
            assert (await client.get("/v1/events/stream")).status_code == 401
            async with asyncio.timeout(PATIENCE):
                while await session.fetchval(f"SELECT EXISTS (SELECT FROM pg_stat_activity WHERE {former})", reloaded):
                    await asyncio.sleep(0.05)


async def _waits_for_a_row(dsn: str) -> None:
    looking = await asyncpg.connect(dsn)
    sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(PATIENCE):
        while not await looking.fetchval(sql):
            await asyncio.sleep(0.02)
    await looking.close()


@pytest.mark.thorough
async def test_changed_files_of_secrets_and_certificates_are_watched(
    tmp_path: Path, dsn: str, session: asyncpg.Connection
) -> None:
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)

    def issue() -> None:
        certificate = authority.issue_cert("127.0.0.1")
        certificate.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
        certificate.private_key_pem.write_to_path(tmp_path / "tls.key")

    issue()
    key = tmp_path / "extra.key"
    key.write_text("the-first-key\n")
    server = f'tls_certificate = "{tmp_path}/tls.crt"\ntls_key = "{tmp_path}/tls.key"\nwatch = true'
    text = f'{RULE}[[callers]]\nname = "extra"\napi_key_file = "{key}"'
    with served(tmp_path, dsn, text, server) as gateway:
        first = await _serial(gateway)
        key.write_text("the-second-key\n")
        line = await asyncio.to_thread(gateway.until, "configuration reloaded")
        assert line["changes"] == ['[[callers]] "extra", api_key: (redacted) -> (redacted)']
        async with gateway.client("the-second-key", verify=trusting) as client:
            assert (await patch(client, 7)).status_code == 204
            key.write_text("short")
            line = await asyncio.to_thread(gateway.until, "reload failed")
            assert "fewer than 8 characters" in line["error"]
            key.write_text("the-second-key\n")
            issue()
            line = await asyncio.to_thread(gateway.until, "configuration reloaded", 1)
            assert line["changes"] == ["[server], certificate: the former one -> another one"]
            assert (await patch(client, 7)).status_code == 204
        assert await _serial(gateway) != first
        assert len(gateway.events("reload failed")) == 1


async def _serial(gateway: Served) -> str:
    return await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", gateway.port))


@pytest.mark.thorough
async def test_before_it_serves_a_hangup_does_nothing(tmp_path: Path) -> None:
    """It waits for a database that does not answer."""
    file = tmp_path / "gateway.toml"
    with socket.create_server(("127.0.0.1", 0)) as database:
        file.write_text(
            f'[server]\nlisten = "127.0.0.1:{free_port()}"\n'
            f'[postgres]\ndsn = "postgresql://a@127.0.0.1:{database.getsockname()[1]}/a"\n'
        )
        with started("serve", "--config", str(file)) as process:
            (await asyncio.to_thread(database.accept))[0].close()
            process.process.send_signal(signal.SIGHUP)
            process.wait_for(lambda: '"listening"' in process.errors.read_text())
            assert process.stop() == 0


@pytest.mark.thorough
async def test_a_hangup_of_its_terminal_stops_it(tmp_path: Path, dsn: str, session: asyncpg.Connection) -> None:
    file, port = tmp_path / "gateway.toml", free_port()
    gateway = Served(None, file, dsn, port)  # type: ignore[arg-type]  # it writes to a terminal, and not to a file
    gateway.write()
    terminal, its_end = pty.openpty()
    command = (sys.executable, "-m", "gateway", "serve", "--config", str(file))
    with subprocess.Popen(command, stderr=its_end, start_new_session=True) as process:
        os.close(its_end)
        async with gateway.client() as client, asyncio.timeout(PATIENCE):
            while True:
                with suppress(httpx.TransportError):
                    if (await patch(client, 1)).status_code == 204:
                        break
                await asyncio.sleep(0.05)
            process.send_signal(signal.SIGHUP)
            await asyncio.sleep(0.3)
            assert (await patch(client, 1)).status_code == 204
        os.close(terminal)
        process.send_signal(signal.SIGHUP)
        assert await asyncio.to_thread(process.wait, PATIENCE) == 0


@pytest.mark.thorough
async def test_a_former_gateway_leaves_no_memory_behind(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reloading, "_UNTIL_UNUSED", 0.05)
    days = iter(range(60, 99))
    callers = [{"name": "root", "api_key": ROOT, "groups": ["admins"]}]
    built: list[weakref.ref[Gateway]] = []
    original = Gateway.__init__

    def counted(self: Gateway, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        built.append(weakref.ref(self))

    def read() -> Config:
        return config(dsn, callers=callers, audit={"retention": next(days)})

    async def usable(_: Config) -> None:
        return

    monkeypatch.setattr(Gateway, "__init__", counted)
    served = app.build(read(), Events(), source=Source(read, usable, lambda _: {}, lambda _: None))
    monkeypatch.setattr(app, "build", lambda *_: served)
    async with running(read()) as origin, httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as client:
        for _ in range(3):
            answer = await client.post("/v1/config/reload", headers={"Authorization": f"Bearer {ROOT}"})
            assert answer.status_code == 200, answer.text
        assert len(built) == 4
        # A connection keeps its last request until the next one.
        assert (await client.get("/v1/ready")).status_code == 204
        async with asyncio.timeout(PATIENCE):
            while sum(one() is not None for one in built) > 1:
                await asyncio.sleep(0.05)


# The steps of a reload: one that fails leaves the former gateway in place. ------------------------------------------

ATTEMPT = Attempt(None, None, "root", "POST", "/v1/config/reload", None, "1")


def keeping(**audit: Any) -> Config:
    postgres = {"dsn": "postgresql://a@b/c"}
    return Config.model_validate({"postgres": postgres, "server": {"watch": True}, "audit": audit})


class Built:
    """A gateway that only knows whether it runs."""

    def __init__(self, trouble: str = "") -> None:
        self.trouble, self.ended = trouble, asyncio.Event()

    async def run(self, started: Callable[[], None]) -> None:
        if self.trouble == "start":
            raise OSError
        started()
        await self.ended.wait()

    def retire(self) -> None:
        self.ended.set()

    stop = retire

    async def record_reload(self, attempt: Attempt, changed: Sequence[Change]) -> None:
        if self.trouble == "record":
            raise Unavailable("The database is away.")


class World:
    """The file, and all gateways that were built from it."""

    def __init__(self) -> None:
        self.wanted = keeping()
        self.error: Exception | None = None
        self.checks = 0
        self.trouble = ""
        self.built: list[Built] = []
        self.serving: Built | None = None
        self.shared: list[Config] = []
        self.have_followed = asyncio.Event()
        self.have_followed.set()
        self.turns: list[str] = []

    def build(self, _: Config, __: Reload) -> Built:
        self.built.append(Built(self.trouble))
        return self.built[-1]

    def switch(self, _: Config, serving: Built) -> None:
        self.serving = serving

    async def check(self, _: Config) -> None:
        self.checks += 1
        if self.error is not None:
            raise self.error

    async def share(self, config: Config) -> None:
        self.shared.append(config)

    async def followed(self) -> None:
        await self.have_followed.wait()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        self.turns.append("begin")
        await asyncio.sleep(0)
        yield
        self.turns.append("end")

    def source(self) -> Source:
        sharing = (self.turn, self.share, self.followed)
        return Source(lambda: self.wanted, self.check, lambda _: {}, lambda _: None, *sharing)


@asynccontextmanager
async def owned(world: World) -> AsyncIterator[Reloading[Built]]:
    owner = Reloading(keeping(), world.build, world.switch, Events(), world.source())
    ready, stop = asyncio.Event(), asyncio.Event()
    received = iter((None, stop))

    async def receive() -> dict[str, Any]:
        if (until := next(received)) is not None:
            await until.wait()
        return {}

    async def send(message: Any) -> None:
        assert message["type"] == "lifespan.startup.complete"
        ready.set()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(owner.lifespan({}, receive, send))
        await ready.wait()
        yield owner
        stop.set()
    assert all(one.ended.is_set() for one in world.built if one.trouble != "start")


@pytest.mark.parametrize("trouble", ["start", "record", "check", "bug"])
async def test_a_reload_that_fails_changes_nothing(trouble: str) -> None:
    world = World()
    async with owned(world) as owner:
        world.wanted, world.trouble = keeping(retention=60), trouble
        world.error = {"check": ConfigurationError("wrong"), "bug": KeyError("x")}.get(trouble)
        with pytest.raises(ReloadRefused):
            await owner.reload(ATTEMPT)
        assert owner.serving is world.built[0]
        assert world.serving is None
        assert not world.built[0].ended.is_set()
        assert world.shared == []
        world.trouble, world.error = "", None
        assert await owner.reload(ATTEMPT)
        assert world.serving is world.built[-1]
        assert world.shared == [world.wanted]


async def test_the_worker_that_reloads_is_the_first_with_a_configuration_in_force() -> None:
    """Its answer comes when all others have followed. It does not keep the former rules until then."""
    world = World()
    async with owned(world) as owner:
        world.wanted = keeping(retention=60)
        world.have_followed.clear()
        reloads = asyncio.create_task(owner.reload(ATTEMPT))
        async with asyncio.timeout(PATIENCE):
            while not world.shared:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        assert world.serving is world.built[-1]
        assert not reloads.done()
        world.have_followed.set()
        assert await reloads


async def test_a_worker_follows_another_one_to_a_configuration() -> None:
    world = World()
    async with owned(world) as owner:
        world.trouble = "start"
        with pytest.raises(OSError):  # noqa: PT011 - its parent replaces it
            await owner.follow(keeping(retention=60))
        assert owner.serving is world.built[0]
        world.trouble = ""
        await owner.follow(keeping(retention=62))
        assert world.serving is owner.serving is world.built[-1]
        assert world.built[0].ended.is_set()
        world.wanted = keeping(retention=62)
        both = await asyncio.gather(owner.reload(ATTEMPT), owner.reload(ATTEMPT))
        assert list(both) == [[], []], "it knows the configuration that it has taken"
        assert world.turns == ["begin", "end"] * 2, "one after the other, as a service manager has to see them"
    with pytest.raises(ReloadRefused):
        await owner.follow(keeping(retention=63))


@pytest.mark.parametrize(("error", "again"), [(ConfigurationError("wrong"), False), (Unavailable("away"), True)])
async def test_a_watched_state_is_tried_again_if_it_could_not_be_checked(
    monkeypatch: pytest.MonkeyPatch, error: Exception, *, again: bool
) -> None:
    monkeypatch.setattr(reloading, "_LOOK", 0.001)
    world = World()
    async with owned(world):
        world.error, world.wanted = error, keeping(retention=60)
        async with asyncio.timeout(30):
            while world.checks < (4 if again else 1):
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            assert again or world.checks == 1
            world.error = None
            if not again:  # only another state is tried
                world.wanted = keeping(retention=61)
            while world.serving is None:
                await asyncio.sleep(0.005)
        assert len(world.built) == 2
