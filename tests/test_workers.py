"""Several workers behind one address: what survives the death of one, reloads, stops, and how they are counted."""

import asyncio
import os
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import asyncpg
import httpx
import psutil
import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from gateway.errors import ConfigurationError
from gateway.workers import parent
from tests import test_reload
from tests.pausing import pause
from tests.processes import run
from tests.test_reload import ROOT, RULE, TABLES, Served, patch
from tests.tiers import first
from tests.waiting import PATIENCE

PUBLIC = f"{RULE}[telemetry]\npublic_metrics = true\n"


@pytest.fixture
async def session(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    await connection.execute(TABLES)
    yield connection
    await connection.close()


def workers_of(gateway: Served) -> list[psutil.Process]:
    found = psutil.Process(gateway.process.process.pid).children()
    return [one for one in found if one.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def gateway(tmp_path: Path, dsn: str, session: asyncpg.Connection) -> Iterator[Served]:
    with served(tmp_path, dsn) as one:
        yield one


async def serving_worker(gateway: Served, client: httpx.AsyncClient) -> psutil.Process:
    """Return the worker that has the connection of a client."""
    answer = await client.get("/v1/ready")
    here = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
    [found] = [
        one
        for one in workers_of(gateway)
        if here in {each.raddr.port for each in one.net_connections("tcp") if each.raddr}
    ]
    return found


async def statuses(gateway: Served, key: str) -> set[int]:
    """Return the statuses of writes on several new connections."""
    found = set()
    for _ in range(6):
        async with gateway.client(key) as client:
            found.add((await patch(client, 7)).status_code)
    return found


async def reloads_on_record(session: asyncpg.Connection) -> int:
    return int(
        await session.fetchval(
            "SELECT count(*) FROM (SELECT details::text FROM fencing.intake UNION ALL SELECT details::text FROM "
            "fencing.entry) AS every WHERE details LIKE '%ReloadConfiguration%'"
        )
    )


@contextmanager
def served(
    tmp_path: Path,
    dsn: str,
    text: str = PUBLIC,
    server: str = "",
    workers: str = "2",
    limits: Mapping[str, float] | None = None,
) -> Iterator[Served]:
    """Two workers, both of which serve."""
    with ExitStack() as stack:
        gateway = stack.enter_context(
            test_reload.served(tmp_path, dsn, text, server, "--workers", workers, limits=limits)
        )
        process = gateway.process.process
        try:
            wait_for_workers(gateway, int(workers))
            yield gateway
        finally:
            for one in psutil.Process(process.pid).children() if process.poll() is None else ():
                stack.callback(_kill, one)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def metrics(gateway: Served) -> dict[str, dict[tuple[str, ...], float]]:
    text = httpx.get(f"{gateway.url}/v1/metrics", timeout=PATIENCE, verify=False).text
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def metrics_with_connections(gateway: Served, number: int) -> dict[str, dict[tuple[str, ...], float]]:
    """Return metrics with so many connections. A worker may need a moment to notice that a former one is closed."""
    found: dict[str, dict[tuple[str, ...], float]] = {}

    def are_open() -> bool:
        found.update(metrics(gateway))
        return found["gateway_connections"] == {(): number}

    gateway.process.wait_for(are_open)
    return found


def wait_for_workers(gateway: Served, number: int) -> None:
    def all_serve() -> bool:
        try:
            return metrics(gateway).get("gateway_workers") == {(): number}
        except httpx.TransportError:
            return False

    gateway.process.wait_for(all_serve)


def accepted(found: dict[str, dict[tuple[str, ...], float]]) -> float:
    return sum(found["gateway_writes_accepted_total"].values())


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not seen():
            await asyncio.sleep(0.02)


class Load:
    """Writers that open a connection for twenty writes each, and a reader of metrics, until they are told to stop."""

    def __init__(self, gateway: Served) -> None:
        self._gateway = gateway
        self.sums: list[float] = []
        self.broken = self.refused = 0
        self.stop = asyncio.Event()

    async def write(self, row: int) -> None:
        token = 1
        while not self.stop.is_set():
            async with self._gateway.client() as client:
                for _ in range(20):
                    try:
                        answer = await patch(client, token, row)
                    except httpx.ConnectError:
                        self.refused += 1
                        break
                    except httpx.TransportError:
                        self.broken += 1
                        break
                    assert answer.status_code == 204, answer.text
                    token += 1

    async def scrape(self) -> None:
        while not self.stop.is_set():
            # The worker that was asked has been killed.
            with suppress(httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError):
                self.sums.append(accepted(await asyncio.to_thread(metrics, self._gateway)))


@pytest.mark.thorough
async def test_a_killed_worker_is_replaced_and_the_others_go_on(gateway: Served) -> None:
    """Only connections of the killed one break. Counts of the dead one stay, so no sum goes down."""
    load = Load(gateway)
    async with asyncio.TaskGroup() as tasks:
        for row in (1, 2):
            tasks.create_task(load.write(row))
        tasks.create_task(load.scrape())
        killed, spared = workers_of(gateway)
        await until(lambda: len(load.sums) > 3 and load.sums[-1] > 50)
        killed.kill()
        await asyncio.to_thread(gateway.until, "worker ended")
        await asyncio.to_thread(wait_for_workers, gateway, 2)
        seen = len(load.sums)
        await until(lambda: len(load.sums) > seen + 3)
        load.stop.set()
    assert load.refused == 0
    assert load.broken <= 2
    assert load.sums == sorted(load.sums)
    [line] = gateway.events("worker ended")
    assert (line["number"] in (1, 2), line["pid"], line["code"]) == (True, killed.pid, -signal.SIGKILL)
    after = {one.pid for one in workers_of(gateway)}
    assert spared.pid in after
    assert len(after) == 2
    assert gateway.process.stop() == 0


@pytest.mark.thorough
async def test_metrics_of_all_workers_are_one_answer(gateway: Served) -> None:
    clients = [gateway.client() for _ in range(8)]
    for client in clients:  # each on a connection of its own
        assert (await patch(client, 1)).status_code == 204
    for _ in range(4):  # each asked on a new connection, so both workers are asked
        found = await asyncio.to_thread(metrics_with_connections, gateway, 9)
        assert accepted(found) == 8
        assert found["gateway_request_duration_seconds_count"][("tables", "2xx")] == 8
        assert found["gateway_sessions_limit"][("own",)] == 32
        assert found["gateway_workers"] == {(): 2}
        assert set(found["process_resident_memory_bytes"]) == {("1",), ("2",)}
    open_here = [
        sum(1 for one in process.net_connections("tcp") if one.laddr.port == gateway.port)
        for process in workers_of(gateway)
    ]
    assert max(open_here) - min(open_here) <= 2
    for client in clients:
        await client.aclose()


@pytest.mark.thorough
async def test_all_workers_take_a_configuration_or_none(tmp_path: Path, dsn: str, session: asyncpg.Connection) -> None:
    with served(tmp_path, dsn) as gateway:
        gateway.write(PUBLIC, writer="a-newer-key-of-it")
        line = await asyncio.to_thread(gateway.hang_up)
        assert line["changes"] == ['[[callers]] "writer", api_key: (redacted) -> (redacted)']
        assert line["worker"] in (1, 2)
        assert await statuses(gateway, "a-newer-key-of-it") == {204}
        assert await statuses(gateway, "a-key-of-the-writer") == {401}

        gateway.write(PUBLIC.replace("orders", "odrers"), writer="a-third-key-of-it")
        line = await asyncio.to_thread(gateway.hang_up, "reload failed")
        assert "Did you mean public.orders?" in line["error"]
        assert await statuses(gateway, "a-newer-key-of-it") == {204}
        assert await statuses(gateway, "a-third-key-of-it") == {401}

        # The file is still wrong. A worker that begins now has the configuration in force.
        workers_of(gateway)[0].kill()
        await asyncio.to_thread(gateway.until, "worker ended")
        await asyncio.to_thread(wait_for_workers, gateway, 2)
        assert await statuses(gateway, "a-newer-key-of-it") == {204}

        gateway.write(PUBLIC, writer="a-fourth-key-of-it")
        async with gateway.client(ROOT) as root:
            answer = await root.post("/v1/config/reload")
            assert answer.status_code == 200, answer.text
        assert await statuses(gateway, "a-fourth-key-of-it") == {204}
    assert await reloads_on_record(session) == 2, "one for each reload, not for each worker"


@pytest.mark.nightly
@pytest.mark.thorough
@pytest.mark.parametrize("dies", [False, True])
async def test_a_worker_that_does_not_follow_is_replaced(
    gateway: Served, session: asyncpg.Connection, *, dies: bool
) -> None:
    """Even if the worker that has reloaded dies meanwhile."""
    async with gateway.client(ROOT) as root:
        serving = await serving_worker(gateway, root)
        [stopped] = [one for one in workers_of(gateway) if one.pid != serving.pid]
        pause(stopped.pid)
        gateway.write(PUBLIC, writer="a-newer-key-of-it")
        reloading = asyncio.create_task(root.post("/v1/config/reload"))
        if dies:
            async with asyncio.timeout(PATIENCE):
                while not await reloads_on_record(session):
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            serving.kill()
            with pytest.raises(httpx.TransportError):
                await reloading
        else:
            assert (await reloading).status_code == 200
        await asyncio.to_thread(psutil.wait_procs, [stopped], PATIENCE)
        assert not stopped.is_running()
    await asyncio.to_thread(wait_for_workers, gateway, 2)
    assert await statuses(gateway, "a-newer-key-of-it") == {204}


@pytest.mark.thorough
async def test_the_worker_that_reloads_does_not_wait_for_others_by_the_former_rules(gateway: Served) -> None:
    """A revoked key proves nothing there, although another worker hangs. The answer waits for that one."""
    clients = [gateway.client() for _ in range(3)]  # of two workers, one has two of them
    at = [(await serving_worker(gateway, client)).pid for client in clients]
    reloads = max(at, key=at.count)
    asks, writes = [client for client, worker in zip(clients, at, strict=True) if worker == reloads][:2]
    [hangs] = [one for one in workers_of(gateway) if one.pid != reloads]
    assert (await patch(writes, 7)).status_code == 204
    gateway.write(PUBLIC, writer="a-newer-key-of-it")
    pause(hangs.pid)
    root = {"Authorization": f"Bearer {ROOT}"}
    reloading = asyncio.create_task(asks.post("/v1/config/reload", headers=root))
    async with asyncio.timeout(parent.FOLLOWS_WITHIN - 3):
        while (await patch(writes, 7)).status_code != 401:
            await asyncio.sleep(0.05)
    assert not reloading.done()
    hangs.resume()
    assert (await reloading).status_code == 200
    assert await statuses(gateway, "a-key-of-the-writer") == {401}
    assert not gateway.events("worker ended")
    for client in clients:
        await client.aclose()


@pytest.mark.thorough
@pytest.mark.parametrize("begins", first([True, False], pytest.mark.nightly))
async def test_a_worker_that_hangs_in_its_reload_is_replaced_and_the_next_reload_goes_on(
    tmp_path: Path, dsn: str, session: asyncpg.Connection, *, begins: bool
) -> None:
    """It reads a file that gives nothing, or does not even begin."""
    with served(tmp_path, dsn, limits={"reload_timeout": 5}) as gateway:
        workers = workers_of(gateway)
        if begins:
            gateway.file.unlink()
            os.mkfifo(gateway.file)
        else:
            for one in workers:
                pause(one.pid)
        line = await asyncio.to_thread(gateway.hang_up, "reload failed")
        assert "hangs in the reload" in line["error"]
        ended = await asyncio.to_thread(gateway.until, "worker ended")
        assert ended["code"] == -signal.SIGKILL
        for one in workers:
            if one.pid != ended["pid"]:
                one.resume()
        gateway.file.unlink()
        gateway.write(PUBLIC, writer="a-newer-key-of-it")
        await asyncio.to_thread(wait_for_workers, gateway, 2)
        await asyncio.to_thread(gateway.hang_up)
        assert await statuses(gateway, "a-newer-key-of-it") == {204}
        assert len(gateway.events("worker ended")) == 1


@pytest.mark.thorough
async def test_hangups_of_all_processes_are_one_reload_after_the_other(gateway: Served) -> None:
    gateway.write(PUBLIC, writer="a-newer-key-of-it")
    for process in (*(one.pid for one in workers_of(gateway)), gateway.process.process.pid):
        os.kill(process, signal.SIGHUP)
    await asyncio.to_thread(gateway.until, "configuration reloaded")
    async with gateway.client(ROOT) as root:  # its turn is after them
        assert (await root.post("/v1/config/reload")).json()["changes"] == []
    assert len(gateway.events("configuration reloaded")) == 1
    assert not gateway.events("reload failed")
    assert not gateway.events("worker ended")


@pytest.mark.thorough
async def test_a_stop_lets_requests_of_all_workers_end(gateway: Served, session: asyncpg.Connection) -> None:
    clients = [gateway.client() for _ in range(4)]
    writing = []
    async with session.transaction():
        await session.execute("SELECT FROM orders WHERE id = 2 FOR UPDATE")
        for client in clients:
            writing.append(asyncio.create_task(patch(client, 8, row=2)))
            await asyncio.sleep(0.1)
        workers = workers_of(gateway)
        os.kill(gateway.process.process.pid, signal.SIGTERM)
        await asyncio.sleep(1)
        assert not any(one.done() for one in writing)
        with pytest.raises(httpx.ConnectError):
            await gateway.client().get("/v1/health")
    assert [(await one).status_code for one in writing] == [204] * 4
    assert await asyncio.to_thread(gateway.process.process.wait, PATIENCE) == 0
    assert not any(one.is_running() for one in workers)
    for client in clients:
        await client.aclose()


@pytest.mark.thorough
async def test_a_worker_that_does_not_stop_in_time_is_killed(
    tmp_path: Path, dsn: str, session: asyncpg.Connection
) -> None:
    """With one second for requests instead of thirty."""
    with served(tmp_path, dsn, server="drain = 1") as gateway:
        stuck, _ = workers = workers_of(gateway)
        pause(stuck.pid)
        began = time.monotonic()
        assert await asyncio.to_thread(gateway.process.stop) == 0
        assert time.monotonic() - began > 1 + parent.KILLED_AFTER - 0.5
        assert not any(one.is_running() for one in workers)


@pytest.mark.thorough
async def test_a_worker_that_stops_by_itself_leaves_new_connections_to_others(
    gateway: Served, session: asyncpg.Connection
) -> None:
    """An operator has told one of them to stop, and its request takes long."""
    async with gateway.client() as client:
        async with session.transaction():
            await session.execute("SELECT FROM orders WHERE id = 2 FOR UPDATE")
            stopping = await serving_worker(gateway, client)
            writing = asyncio.create_task(patch(client, 8, row=2))
            await asyncio.sleep(0.5)
            stopping.terminate()
            await asyncio.sleep(0.5)
            for _ in range(6):
                async with gateway.client() as other:
                    assert (await other.get("/v1/ready")).status_code == 204
            assert not writing.done()
        assert (await writing).status_code == 204


@pytest.mark.nightly
@pytest.mark.thorough
async def test_a_worker_that_dies_again_and_again_is_replaced_after_longer_pauses(gateway: Served) -> None:
    spared, _ = workers_of(gateway)
    for number in range(3):
        [killed] = [one for one in workers_of(gateway) if one.pid != spared.pid]
        killed.kill()
        await asyncio.to_thread(gateway.until, "worker ended", number)
        await asyncio.to_thread(wait_for_workers, gateway, 2)
    assert [line["wait"] for line in gateway.events("worker ended")] == [0.1, 0.2, 0.4]


@pytest.mark.thorough
async def test_workers_end_with_their_parent(gateway: Served) -> None:
    workers = workers_of(gateway)
    gateway.process.process.kill()
    await asyncio.to_thread(psutil.wait_procs, workers, PATIENCE)
    assert not any(one.is_running() for one in workers)
    with socket.create_server(("127.0.0.1", gateway.port)):
        pass


@pytest.mark.thorough
async def test_a_connection_that_waits_for_a_dead_worker_is_served_by_another(gateway: Served) -> None:
    """Both stop to take connections. One dies, and the other goes on."""
    first, second = workers_of(gateway)
    pause(first.pid)
    pause(second.pid)
    clients = [gateway.client() for _ in range(6)]
    asked = [asyncio.create_task(client.get("/v1/ready")) for client in clients]
    await asyncio.sleep(0.5)
    first.kill()
    second.resume()
    assert [(await one).status_code for one in asked] == [204] * 6
    for client in clients:
        await client.aclose()


@pytest.mark.thorough
async def test_connections_with_tls_go_to_workers_too(tmp_path: Path, dsn: str, session: asyncpg.Connection) -> None:
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    certificate.private_key_pem.write_to_path(tmp_path / "tls.key")
    server = f'tls_certificate = "{tmp_path}/tls.crt"\ntls_key = "{tmp_path}/tls.key"'
    with served(tmp_path, dsn, server=server) as gateway:
        async with gateway.client(verify=trusting) as client:
            assert (await patch(client, 7)).status_code == 204


@pytest.mark.thorough
def test_a_wrong_number_of_workers_is_refused_before_anything_is_read() -> None:
    for workers in ("0", "-1", "two", "129", "1.5", ""):
        with pytest.raises(ConfigurationError, match="--workers: must be a number from 1 to 128, or auto"):
            parent.number_of(workers)
    ended = run("serve", "--workers", "0", "--config", "/nowhere")
    assert (ended.returncode, ended.stderr) == (2, "gateway: --workers: must be a number from 1 to 128, or auto\n")


def test_auto_is_the_number_of_cores_that_the_process_may_use(tmp_path: Path) -> None:
    allowed = len(os.sched_getaffinity(0))
    quota = tmp_path / "cpu.max"
    assert parent.number_of("auto") == parent.cores()
    assert parent.cores(quota) == allowed
    for text, cores in (("max 100000", allowed), ("50000 100000", 1), ("150000 100000", min(2, allowed))):
        quota.write_text(text)
        assert parent.cores(quota) == cores
