"""Two releases run side by side during an upgrade, under load: nothing stale takes effect, and nothing is lost."""

import json
import os
import random
import re
import shlex
import signal
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from gateway.db import migrations
from tests import ROOT
from tests.crash.processes import Gateway
from tests.crash.soak.stage import Soak, configured, services, side_by_side
from tests.crash.soak.writers import Writer
from tests.crash.stage import Postgres
from tests.postgres import GATEWAY
from tests.processes import Running, free_port
from tests.releases import NEXT_REVISION, Release, next_release, this_release, write_toml
from tests.running import API_KEY

SEED = 6  # the store is as on AWS
GATEWAYS, WRITERS = 2, 4
DEEDS = 40
"""Writes between two steps of the upgrade."""
LEASE = {"holder": "keeper", "ttl": 20, "barrier": True, "request": "kept"}
PATIENCE = 30.0

CURRENT = migrations.newest()


class Guide:
    """The commands of docs/guides/upgrade.md, which the test runs as they stand there."""

    def __init__(self) -> None:
        text = (ROOT / "docs/guides/upgrade.md").read_text()
        self.left = set("".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)).splitlines())
        (self.long_transactions,) = re.findall(r"```sql\n(SELECT .*?)```", text, re.DOTALL)
        self._lines = frozenset(self.left)

    def run(self, line: str, release: Release, **values: str) -> "subprocess.CompletedProcess[str]":
        """Run a line of the guide with a release. ``values``: other words than those of the guide, by their names."""
        assert line in self._lines
        self.left.discard(line)
        for name, value in values.items():
            line = line.replace(NAMES[name], shlex.quote(value))
        program, *arguments = shlex.split(line)
        if program == "gateway":
            return release.run(*arguments, GATEWAY_API_KEY=API_KEY)
        return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)


NAMES = {
    "config": "gateway.toml",
    "owner": '"$OWNER"',
    "role": '"$ROLE"',
    "url": '"$GATEWAY"',
    "origin": "http://127.0.0.1:8080",
}
VERSION = "gateway --version"
MIGRATE = 'gateway migrate --dsn "$OWNER" --grant-to "$ROLE"'
DOCTOR = "gateway doctor --config gateway.toml"
VERIFY = 'gateway audit verify --url "$GATEWAY"'
READY = "curl --silent --fail http://127.0.0.1:8080/v1/ready"


@dataclass
class Fleet:
    """Gateways of one configuration, replaced one by one."""

    folder: Path
    sections: dict[str, object]
    stack: ExitStack
    processes: dict[int, Running] = field(default_factory=dict)

    def config(self, gateway: Gateway) -> str:
        return str(self.folder / f"{gateway.port}.toml")

    def start(self, release: Release) -> Gateway:
        """Start a gateway, and return it once it is ready."""
        port = free_port()
        config = write_toml(self.folder / f"{port}.toml", {"server": {"listen": f"127.0.0.1:{port}"}, **self.sections})
        running = self.stack.enter_context(release.start("serve", "--config", config))
        running.wait_for(lambda: _is_ready(port))
        self.processes[port] = running
        return Gateway(running.process.pid, port)

    def replace(self, soak: Soak, number: int, release: Release) -> None:
        """Stop a gateway as systemd and Kubernetes do, and put one of another release in its place."""
        old = soak.gateways[number]
        os.kill(old.pid, signal.SIGTERM)
        soak.gateways.pop(number)
        assert self.processes.pop(old.port).process.wait(PATIENCE) == 0, "it has not ended cleanly"
        soak.gateways.insert(number, self.start(release))


def _is_ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/v1/ready", timeout=PATIENCE).status_code == 204
    except httpx.TransportError:
        return False


class Keeper:
    """Holds one lease through whichever gateway answers, and sees whether another one gets it."""

    def __init__(self, soak: Soak) -> None:
        self._soak = soak
        self.tokens: set[str] = set()
        self.statuses: Counter[int] = Counter()

    def work(self) -> None:
        path = "/v1/leases/kept/1"
        while not self._soak.over.is_set():
            lease = self._ask("POST", path, LEASE)
            if lease is None:
                continue
            assert lease.status_code in (200, 201), lease.text
            document = lease.json()
            self.tokens.add(document["token"])
            renewed = self._ask("PUT", f"{path}/{document['lease']}", None)
            assert renewed is None or renewed.status_code == 200, renewed.text
            rival = self._ask("POST", path, {"holder": "rival"})
            assert rival is None or rival.status_code == 409, rival.text
            time.sleep(0.2)

    def _ask(self, method: str, path: str, document: object) -> httpx.Response | None:
        """Return the answer; None where the connection ended, or for a 503, after which the client asks again."""
        port = random.choice(self._soak.gateways).port
        try:
            answer = httpx.request(
                method,
                f"http://127.0.0.1:{port}{path}",
                json=document,
                headers={"Authorization": f"Bearer {API_KEY}"},
                timeout=PATIENCE,
            )
        except httpx.TransportError:
            return None
        self.statuses[answer.status_code] += 1
        return None if answer.status_code == 503 else answer


def _pass_time(soak: Soak) -> None:
    """Wait until the writers have done their share."""
    wanted, deadline = len(soak.history.deeds) + DEEDS, time.monotonic() + PATIENCE
    while len(soak.history.deeds) < wanted and not soak.over.is_set():
        assert time.monotonic() < deadline, "the writers are stuck"
        time.sleep(0.02)


@pytest.mark.nightly
def test_gateways_are_upgraded_one_by_one_and_go_back(tmp_path: Path) -> None:
    release = this_release(tmp_path)
    following = next_release(release, tmp_path / "next")
    guide = Guide()
    with services(SEED) as (dsn, double), ExitStack() as stack:
        told = guide.run(MIGRATE, release, owner=dsn, role=GATEWAY)
        assert told.returncode == 0, told.stderr
        fleet = Fleet(tmp_path, configured(dsn, double.endpoint), stack)
        soak = Soak(SEED, double, lambda: fleet.start(release), dsn, GATEWAYS)
        keeper, database = Keeper(soak), Postgres(dsn)
        stack.callback(database.close)

        def upgrade() -> None:
            _pass_time(soak)
            _the_next_gateway_refuses_the_older_schema(fleet, following)
            assert guide.run(VERSION, following).stdout == "gateway 99.0.0\n"
            assert database.rows(guide.long_transactions) == []
            _two_migrations_at_once(following, dsn)
            _pass_time(soak)
            for number in range(GATEWAYS):
                fleet.replace(soak, number, following)
                _pass_time(soak)
            assert database.value("SELECT sum(barriers) FROM fencing.raised") > 0, "the next release is not used"
            assert database.value("SELECT barriers FROM fencing.lock WHERE resource = 'kept/1'") > 0

            _an_older_migration_changes_nothing(guide, release, dsn)
            for number in range(GATEWAYS):
                fleet.replace(soak, number, release)
                _pass_time(soak)
            assert database.value(f"SELECT has_table_privilege('{GATEWAY}', 'fencing.raised', 'INSERT')")
            counted = database.value("SELECT sum(barriers) FROM fencing.raised")
            _pass_time(soak)
            assert database.value("SELECT sum(barriers) FROM fencing.raised") == counted, (
                "the older release is not used"
            )

        works = [keeper.work, *(Writer(soak, number).work for number in range(WRITERS))]
        side_by_side(soak.over, works, upgrade)
        Writer(soak, WRITERS).conclude()
        soak.history.check(*soak.effects())
        assert keeper.tokens == {"1"}, "the lease was lost"
        assert keeper.statuses.keys() <= {200, 201, 409, 503}
        _all_is_well(guide, release, fleet, soak.gateways[0])
    assert guide.left == set(), "commands of the guide that no test runs"


def _the_next_gateway_refuses_the_older_schema(fleet: Fleet, following: Release) -> None:
    config = write_toml(fleet.folder / "early.toml", {"server": {"listen": "127.0.0.1:0"}, **fleet.sections})
    told = following.run("serve", "--config", config)
    said = f"The fencing schema is at {CURRENT}; this version of the gateway needs {NEXT_REVISION}."
    assert (told.returncode, said in told.stderr) == (2, True), told.stderr


def _two_migrations_at_once(following: Release, dsn: str) -> None:
    with ExitStack() as stack:
        starts = [following.start("migrate", "--dsn", dsn, "--grant-to", GATEWAY) for _ in range(2)]
        for running in [stack.enter_context(one) for one in starts]:
            assert running.process.wait(PATIENCE) == 0, running.said()
            assert f"-> {NEXT_REVISION}\n" in running.said()


def _an_older_migration_changes_nothing(guide: Guide, release: Release, dsn: str) -> None:
    """An older chart would run it so."""
    told = guide.run(MIGRATE, release, owner=dsn, role=GATEWAY)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(f"fencing schema: {NEXT_REVISION} -> {NEXT_REVISION}\nnewer than {CURRENT}")


def _all_is_well(guide: Guide, release: Release, fleet: Fleet, gateway: Gateway) -> None:
    """The commands of the guide find nothing wrong, and no log has a failure."""
    address = f"http://127.0.0.1:{gateway.port}"
    assert guide.run(READY, release, origin=address).returncode == 0
    verified = guide.run(VERIFY, release, url=address)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    examined = guide.run(DOCTOR, release, config=fleet.config(gateway)).stdout
    assert f"schema: The fencing schema is at {NEXT_REVISION}, newer than {CURRENT}" in examined
    assert '"event": "schema is newer"' in fleet.processes[gateway.port].said()
    assert [line for one in fleet.processes.values() for line in _errors(one)] == []


def _errors(running: Running) -> list[object]:
    """The failures that a gateway wrote to its log."""
    lines = [json.loads(line) for line in running.errors.read_text().splitlines()]
    return [line for line in lines if line["event"] == "request failed"]
