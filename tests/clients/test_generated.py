"""Clients that generators make of the gateway's own OpenAPI document lock and fence the resource that they name."""

import json
from pathlib import Path
from shutil import copy

import pytest

from tests import ROOT
from tests.clients.commands import Shell, javascript
from tests.clients.gateway import API_KEY, Gateway, Lock

pytestmark = pytest.mark.installed

GENERATOR = ROOT / ".venv-tables/bin/openapi-python-client"

PYTHON = """
import sys
from made import AuthenticatedClient
from made.api.fences import raise_barrier
from made.api.locks import acquire
from made.models import AcquireAcquireRequest, BarrierRequest

origin, key, job, row = sys.argv[1:]
client = AuthenticatedClient(base_url=origin, token=key)
lease = acquire.sync(client=client, resource=job, body=AcquireAcquireRequest(holder="made"))
assert lease.resource == job, lease
fence = raise_barrier.sync(client=client, resource=row, body=BarrierRequest(token="34"))
assert (fence.resource, fence.token) == (row, "34"), fence
stale = client.get_httpx_client().patch(
    "/v1/tables/accounts", params={"id": f"eq.{row.rpartition('/')[2]}"}, json={"owner": "late"},
    headers={"Fencing-Token": "33"},
)
assert (stale.status_code, stale.json()["code"]) == (412, "token-stale"), stale.text
"""


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path, {})


@pytest.fixture
def document(gateway: Gateway, tmp_path: Path) -> Path:
    with gateway.api() as api:
        described = api.get("/v1/openapi.json").json()
    path = tmp_path / "openapi.json"
    path.write_text(json.dumps(described))
    return path


def test_python(gateway: Gateway, lock: Lock, document: Path, shell: Shell) -> None:
    if not GENERATOR.exists():
        pytest.skip("the generator is not installed: run `make .venv-tables/.set-up`")
    made = shell.run(
        str(GENERATOR), "generate", "--path", str(document), "--meta", "none", "--output-path", str(shell.home / "made")
    )
    assert made.status == 0, made.out + made.error
    check(gateway, lock, shell, str(GENERATOR.with_name("python")), "-c", PYTHON)


def test_typescript(gateway: Gateway, lock: Lock, document: Path, shell: Shell) -> None:
    node, directory = javascript()
    packages = directory / "node_modules"
    (shell.home / "node_modules").symlink_to(packages)
    copy(directory / "story.ts", shell.home)
    (shell.home / "package.json").write_text('{"type": "module"}')
    for command in (
        ("openapi-typescript", str(document), "--output", "schema.d.ts"),
        ("tsc", "--strict", "--module", "nodenext", "--target", "es2022", "--skipLibCheck", "story.ts"),
    ):
        ended = shell.run(str(packages / ".bin" / command[0]), *command[1:])
        assert ended.status == 0, ended.out + ended.error
    check(gateway, lock, shell, node, "story.js")


def check(gateway: Gateway, lock: Lock, shell: Shell, *program: str) -> None:
    """Let a program take a lock and raise a fence by their names, and write with a token that is stale then."""
    job = f"job/{lock.name}"
    ended = shell.run(*program, gateway.origin, API_KEY, job, lock.resource)
    assert ended.status == 0, ended.out + ended.error
    with gateway.api() as api:
        assert api.post(f"/v1/leases/{job}", json={"holder": "another"}).status_code == 409, "it is the same lock"
    assert len(lock.rejections()) == 1
