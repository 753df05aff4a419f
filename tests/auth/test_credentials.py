"""Fenced credentials: who gets them, what they look like, and the command that fetches them."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from botocore.credentials import ProcessProvider

from gateway.auth.callers import Callers
from gateway.auth.grants import EVERYTHING, Action
from gateway.auth.principal import FencedScope
from gateway.config import Config
from gateway.demo import demonstration as demo
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.token import Token
from tests.objects.clients import in_thread
from tests.postgres import fresh_database
from tests.processes import called
from tests.running import ACCESS_KEY, API_KEY, OPEN, SECRET_KEY, config, running
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALLERS = [
    {"name": "writer", "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "api_key": API_KEY},
    {"name": "reader", "api_key": "reader-key"},
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def settings(postgres_server: EmbeddedPostgres) -> AsyncIterator[Config]:
    async with fresh_database(postgres_server) as dsn:
        yield config(dsn, callers=CALLERS, grants=OPEN)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def origin(settings: Config) -> AsyncIterator[str]:
    async with running(settings) as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(origin: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        base_url=origin, headers={"Authorization": f"Bearer {API_KEY}"}, timeout=PATIENCE
    ) as client:
        yield client


@pytest.fixture
def job() -> str:
    """Return a unique resource."""
    return f"job/{uuid4().hex}"


async def ask(api: httpx.AsyncClient, **wanted: object) -> httpx.Response:
    return await api.post("/v1/credentials", json=wanted)


class TestEndpoint:
    async def test_they_are_good_at_any_gateway_of_this_configuration(
        self, api: httpx.AsyncClient, settings: Config, job: str
    ) -> None:
        before = datetime.now(UTC)
        answer = await ask(api, resource=job, token="2.34", holder="host 7", ttl=120)
        assert answer.status_code == 201
        assert answer.headers["cache-control"] == "no-store"
        issued = answer.json()
        assert (issued["resource"], issued["token"], issued["holder"]) == (job, "2.34", "host 7")
        expires = datetime.fromisoformat(issued["expiration"])
        assert timedelta(seconds=110) < expires - before < timedelta(seconds=130)
        found = Callers(settings.callers).secret_of(issued["access_key_id"], issued["session_token"])
        assert found is not None
        assert (found[0].name, found[1]) == ("writer", issued["secret_access_key"])
        assert found[0].scope == FencedScope(job, Token(2, 34), "host 7", expires)

    async def test_they_last_an_hour_and_need_no_holder(self, api: httpx.AsyncClient) -> None:
        issued = (await ask(api, resource="s3/bucket/*/in/**", token="1")).json()
        left = datetime.fromisoformat(issued["expiration"]) - datetime.now(UTC)
        assert timedelta(minutes=59) < left <= timedelta(minutes=60)
        assert (issued["resource"], issued["holder"]) == ("s3/bucket/*/in/**", None)

    @pytest.mark.parametrize(
        ("wanted", "code"),
        [
            ({"token": "1"}, "request-malformed"),
            ({"resource": "job/1"}, "request-malformed"),
            ({"resource": "job/1", "token": 1}, "request-malformed"),
            ({"resource": "job/1", "token": "1", "ttl": 59}, "request-malformed"),
            ({"resource": "job/1", "token": "1", "ttl": 43201}, "request-malformed"),
            ({"resource": "job/1", "token": "1", "holder": ""}, "request-malformed"),
            ({"resource": "job/1", "token": "1", "holder": "é"}, "request-malformed"),
            ({"resource": "job/1", "token": "1", "admin": True}, "request-malformed"),
            ({"resource": "job/1", "token": "01"}, "token-malformed"),
            ({"resource": "", "token": "1"}, "resource-malformed"),
            ({"resource": "job/a*", "token": "1"}, "resource-malformed"),
            ({"resource": "**/job", "token": "1"}, "resource-malformed"),
            ({"resource": "job/é", "token": "1"}, "resource-malformed"),
            ({"resource": "job/\0", "token": "1"}, "resource-malformed"),
        ],
    )
    async def test_what_cannot_be_issued(self, api: httpx.AsyncClient, wanted: dict[str, Any], code: str) -> None:
        answer = await ask(api, **wanted)
        assert (answer.status_code, answer.json()["code"]) == (400, code)

    async def test_a_caller_without_s3_keys_gets_no_credentials(self, origin: str) -> None:
        wanted = {"resource": "job/1", "token": "1"}
        async with httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as client:
            anonymous = await client.post("/v1/credentials", json=wanted)
            wrong = await client.post("/v1/credentials", json=wanted, headers={"apikey": "wrong"})
            keyless = await client.post("/v1/credentials", json=wanted, headers={"apikey": "reader-key"})
        assert (anonymous.status_code, anonymous.json()["code"]) == (401, "unauthenticated")
        assert (wrong.status_code, wrong.json()["code"]) == (401, "unauthenticated")
        assert (keyless.status_code, keyless.json()["code"]) == (403, "forbidden")
        assert "access_key_id" in keyless.json()["advice"]

    async def test_a_token_that_is_stale_already_is_refused_and_on_record(
        self, api: httpx.AsyncClient, job: str
    ) -> None:
        await api.post(f"/v1/fences/{job}/barrier", json={"token": "34", "holder": "bob"})
        assert (await ask(api, resource=job, token="34", holder="bob")).status_code == 201
        assert (await ask(api, resource=job, token="35")).status_code == 201
        for token, holder, code in (("33", "ann", "token-stale"), ("34", "ann", "token-duplicate")):
            answer = await ask(api, resource=job, token=token, holder=holder)
            problem = answer.json()
            assert (answer.status_code, problem["code"], problem["fence"]) == (412, code, "34")
            [newest, *_] = (await api.get("/v1/rejections", params={"resource": job})).json()["rejections"]
            assert newest["id"] == problem["rejection"]
            assert (newest["reason"], newest["token"], newest["holder"]) == (code, token, holder)
            assert (newest["method"], newest["target"], newest["caller"]) == ("POST", "/v1/credentials", "writer")

    async def test_asking_raises_no_fence(self, api: httpx.AsyncClient, job: str) -> None:
        assert (await ask(api, resource=job, token="34")).status_code == 201
        assert (await api.get(f"/v1/fences/{job}")).json()["token"] is None

    async def test_the_caller_of_the_demo_can_have_them(self) -> None:
        settings = demo.configuration("postgresql://none/", "http://none")
        keys = Callers(settings.callers, settings.grants)
        caller = keys.by_bearer([(b"apikey", b"demo-key")])
        assert caller.rights.over(Action.CREDENTIALS, "job/42")
        assert keys.issue(caller, FencedScope("job/42", Token(0, 34), None, datetime.now(UTC))).session_token


async def fetched(
    monkeypatch: pytest.MonkeyPatch, url: str, *arguments: str, key: str | None = API_KEY
) -> "subprocess.CompletedProcess[str]":
    """Run the command with ``key`` in its environment, and return its result."""
    if key is None:
        monkeypatch.delenv("GATEWAY_API_KEY", raising=False)
    else:
        monkeypatch.setenv("GATEWAY_API_KEY", key)
    return await in_thread(lambda: called("credentials", "--url", url, *arguments))


class TestCommand:
    async def test_it_prints_what_clients_take_from_a_process(
        self, origin: str, settings: Config, job: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answer = await fetched(
            monkeypatch, f"{origin}/", "--resource", job, "--token", "34", "--holder", "me", "--ttl", "60"
        )
        assert (answer.returncode, answer.stderr) == (0, "")
        printed = json.loads(answer.stdout)
        assert set(printed) == {"Version", "AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration"}
        assert printed["Version"] == 1
        found = Callers(settings.callers).secret_of(printed["AccessKeyId"], printed["SessionToken"])
        assert found is not None
        assert found[0].scope == FencedScope(job, Token(0, 34), "me", datetime.fromisoformat(printed["Expiration"]))
        assert found[1] == printed["SecretAccessKey"]

    async def test_they_read_more_where_that_is_asked_for(
        self, origin: str, settings: Config, job: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for said, read in (((), ()), (("s3/in/**", "job/7"), ("s3/in/**", "job/7")), (("all",), (EVERYTHING,))):
            options = [word for pattern in said for word in ("--read", pattern)]
            answer = await fetched(monkeypatch, origin, "--resource", job, "--token", "34", *options)
            printed = json.loads(answer.stdout)
            found = Callers(settings.callers).secret_of(printed["AccessKeyId"], printed["SessionToken"])
            assert found is not None
            assert found[0].scope is not None
            assert found[0].scope.read == read

    async def test_sdks_run_it_by_themselves(self, origin: str, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GATEWAY_API_KEY", API_KEY)
        line = f"{sys.executable} -m gateway credentials --url {origin} --resource {job} --token 34 --ttl 43200"
        provider = ProcessProvider("p", lambda: {"profiles": {"p": {"credential_process": line}}})
        loaded = await in_thread(provider.load)
        assert loaded is not None
        assert str(loaded.access_key).startswith("FENCE")
        assert str(loaded.token).startswith("fc1.")

    async def test_the_key_may_be_in_a_file(
        self, origin: str, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "key"
        file.write_text(f"{API_KEY}\n")
        wanted = ("--resource", job, "--token", "34", "--api-key-file")
        assert (await fetched(monkeypatch, origin, *wanted, str(file), key="wrong")).returncode == 0
        file.write_text("\n")
        for path in (file, tmp_path / "none", tmp_path):
            answer = await fetched(monkeypatch, origin, *wanted, str(path))
            assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1)
            assert answer.stderr.startswith(f"gateway: {path}: ")

    async def test_every_problem_is_one_line_and_a_failure(
        self, origin: str, job: str, api: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await api.post(f"/v1/fences/{job}/barrier", json={"token": "34", "holder": "bob"})
        for url, token, key, said in (
            (origin, "33", API_KEY, f"gateway: The fencing token 33 of {job} has been overtaken by 34. Stop writing"),
            (origin, "034", API_KEY, "gateway: '034' is not a fencing token. Send one token"),
            (origin, "34", "wrong", "gateway: The API key is unknown."),
            (origin, "34", "", "gateway: GATEWAY_API_KEY: there is no API key"),
            (origin, "34", "wörng", "gateway: GATEWAY_API_KEY: there is no API key"),
            (origin, "34", None, "gateway: GATEWAY_API_KEY: there is no API key"),
            ("http://127.0.0.1:9", "34", API_KEY, "gateway: The gateway at http://127.0.0.1:9 cannot be reached"),
            ("127.0.0.1", "34", API_KEY, "gateway: --url: must be an address"),
            ("http://gateway:port", "34", API_KEY, "gateway: --url: must be an address"),
        ):
            answer = await fetched(monkeypatch, url, "--resource", job, "--token", token, key=key)
            assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (2, "", 1), answer.stderr
            assert answer.stderr.startswith(said), answer.stderr
            assert API_KEY not in answer.stderr

    @pytest.mark.parametrize("said", [b"{}", b"[]", b"hello", b'{"detail": "x"}'])
    async def test_another_server_is_recognised(self, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"}")
            status = b"201 Created" if said == b"{}" else b"500 Whatever"
            writer.write(b"HTTP/1.1 %s\r\nConnection: close\r\n\r\n%s" % (status, said))
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            found = await fetched(monkeypatch, url, "--resource", "job/1", "--token", "34")
        assert (found.returncode, found.stdout) == (2, "")
        assert found.stderr == f"gateway: The server at {url} is not a fencing gateway.\n"
