"""Fenced credentials work for their scope until they expire, cannot be changed, and are fetched by a command."""

import asyncio
import base64
import json
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from gateway.auth import temporary_keys
from gateway.auth.callers import Callers
from gateway.auth.grants import EVERYTHING, Action, Grant, Rights
from gateway.auth.principal import FencedScope, Principal
from gateway.auth.temporary_keys import TemporaryKeys
from gateway.config import Config
from gateway.config.access import CallerKeys, GrantRule
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import ResourceMalformed, StoreError
from gateway.fencing.token import Token
from gateway.objects.key_rules import KeyRule
from tests.objects.clients import in_thread
from tests.postgres import fresh_database
from tests.processes import called
from tests.running import API_KEY, OPEN, PAIR, config, running
from tests.waiting import PATIENCE

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
GRANT = FencedScope("job/42", Token(2, 34), "host 7")
INVALID = ("InvalidToken", 400)


def caller(name: str, secret: str = "batch-secret", **more: Any) -> CallerKeys:
    return CallerKeys(name=name, access_key_id=(f"AK{name}",), secret_access_key=(SecretStr(secret),), **more)


KNOWN = (caller("batch"), caller("other", "other-secret"), CallerKeys(name="k", api_key=(SecretStr("k"),)))
EVERYTHING_GRANTED = GrantRule(callers=("batch",), actions=tuple(Action), everything=True)
KEYS = Callers(KNOWN, [EVERYTHING_GRANTED])
BATCH = Principal("batch")
UNCONFINED = Rights((Grant(frozenset(Action), 1, everything=True),))
CONFINED = Rights((Grant(frozenset({Action.READ, Action.WRITE}), 1, everything=True),))


@pytest.fixture
def issued() -> TemporaryKeys:
    return KEYS.issue(BATCH, NOW + HOUR, GRANT)


def refusal(access_key_id: str, session_token: str | None, keys: Callers = KEYS) -> tuple[str, int]:
    with pytest.raises(StoreError) as caught:
        keys.secret_of(access_key_id, session_token)
    return caught.value.s3_code, caught.value.status


def test_they_are_bound_to_their_grant_and_administer_nothing(issued: TemporaryKeys) -> None:
    found = KEYS.secret_of(issued.access_key_id, issued.session_token)
    assert found == (Principal("batch", CONFINED, GRANT, expires=NOW + HOUR), issued.secret_access_key)
    assert KEYS.secret_of("AKbatch", None) == (Principal("batch", UNCONFINED), "batch-secret")


def test_they_do_not_show_secrets(issued: TemporaryKeys) -> None:
    shown = repr(issued) + base64.urlsafe_b64decode(issued.session_token.split(".")[1] + "==").decode()
    assert issued.secret_access_key not in shown
    assert issued.session_token not in shown
    assert "batch-secret" not in shown


def test_a_new_secret_of_the_caller_ends_them_and_so_does_its_removal(issued: TemporaryKeys) -> None:
    rotated, gone = Callers([caller("batch", "new-secret")]), Callers([caller("other")])
    assert refusal(issued.access_key_id, issued.session_token, rotated) == INVALID
    assert gone.secret_of(issued.access_key_id, issued.session_token) is None


def test_key_and_session_token_belong_together(issued: TemporaryKeys) -> None:
    other = KEYS.issue(BATCH, NOW + HOUR, GRANT)
    assert refusal(issued.access_key_id, other.session_token) == INVALID
    assert refusal(issued.access_key_id, None) == INVALID
    assert refusal(issued.access_key_id, "fencing-token=34") == INVALID
    assert refusal("AKbatch", issued.session_token) == INVALID
    assert KEYS.secret_of("AKIANOBODY", issued.session_token) is None
    assert KEYS.secret_of("AKbatch", "fencing-token=34") == (Principal("batch", UNCONFINED), "batch-secret")


@given(st.data())
def test_no_character_can_be_changed(data: st.DataObject) -> None:
    issued = temporary_keys.issue("batch", "batch-secret", "0123456789ABCDEF", NOW + HOUR, GRANT)
    place = data.draw(st.integers(0, len(issued.session_token) - 1))
    other = data.draw(st.characters().filter(lambda character: character != issued.session_token[place]))
    changed = issued.session_token[:place] + other + issued.session_token[place + 1 :]
    try:
        found = KEYS.secret_of(issued.access_key_id, changed)
    except StoreError as error:
        assert (error.s3_code, error.status) == INVALID  # noqa: PT017 - a caller nobody knows is the other answer
    else:
        assert found is None


def encoded(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


GOOD = {"caller": "batch", "resource": "job/42", "token": "34", "holder": None, "expires": 1769860800}


@pytest.mark.parametrize(
    "token",
    [
        *("fc1.", "fc1..", "fc1.a.b", "fc1.e30.b", f"fc1.{encoded(GOOD)}", f"fc1.{encoded(GOOD)}."),
        *(f"fc1.{encoded(GOOD)}.é", f"fc1.{encoded(GOOD)}.a.b", f"fc1.{encoded(GOOD)}==.a"),
        *(f"fc1.{encoded({**GOOD, 'expires': 'soon'})}.a", f"fc1.{encoded({**GOOD, 'expires': 1e300})}.a"),
        *(f"fc1.{encoded({**GOOD, 'expires': float('nan')})}.a", f"fc1.{encoded({**GOOD, 'expires': None})}.a"),
        *(f"fc1.{encoded({**GOOD, 'resource': 'é'})}.a", f"fc1.{encoded({**GOOD, 'resource': 5})}.a"),
        *(f"fc1.{encoded({**GOOD, 'token': 34})}.a", f"fc1.{encoded({**GOOD, 'token': '034'})}.a"),
        *(f"fc1.{encoded([GOOD])}.a", f"fc1.{encoded('fc1')}.a", f"fc1.{encoded(None)}.a"),
        *("fc1." + base64.b64encode(b"[" * 4000).decode() + ".a", "fc1." + "a" * 100_000 + ".a", "fc1.\xff\xfe.a"),
    ],
)
def test_a_session_token_that_was_never_issued_is_refused(token: str) -> None:
    assert refusal("FENCE0123456789", token) == INVALID


def test_an_id_that_the_operator_chose_wins_over_the_prefix() -> None:
    configured = CallerKeys(name="a", access_key_id=("FENCEOFMINE",), secret_access_key=(SecretStr("s"),))
    assert Callers([configured]).secret_of("FENCEOFMINE", None) == (Principal("a"), "s")


@pytest.mark.parametrize(
    "pattern",
    ["", "job/4*", "*job", "job/***", "**/job", "job/**/log", "a/b**", "é", "a b", "%c3", "%2A", "x" * 513, "a,b"],
)
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ResourceMalformed):
        FencedScope(pattern, Token(0, 34))


SEGMENTS = st.lists(st.sampled_from(["a", "b", "", "a.b"]), min_size=1, max_size=4)


@given(SEGMENTS, st.sampled_from(["", "/**"]), SEGMENTS, st.sets(st.integers(0, 3)))
def test_a_wildcard_means_what_it_means_in_the_rules_of_objects(
    segments: list[str], end: str, given_segments: list[str], starred: set[int]
) -> None:
    pattern = "/".join("*" if place in starred else segment for place, segment in enumerate(segments)) + end
    resource = "/".join(given_segments)
    rule = KeyRule.compile(f"bucket/{pattern}")
    assert FencedScope(f"bucket/{pattern}", Token(0, 34)).covers(f"bucket/{resource}") == (
        rule.resource("bucket", resource) is not None
    )


in_one_loop = pytest.mark.asyncio(loop_scope="module")
CALLERS = [
    {"name": "writer", **PAIR, "api_key": API_KEY},
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


@in_one_loop
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
        assert found[0].scope == FencedScope(job, Token(2, 34), "host 7")
        assert found[0].expires == expires

    @pytest.mark.parametrize(
        ("wanted", "code"),
        [
            ({"token": "1"}, "request-malformed"),
            ({"resource": "job/1", "token": 1}, "request-malformed"),
            ({"resource": "job/1", "token": "1", "ttl": 59}, "request-malformed"),
            ({"resource": "job/1", "token": "1", "holder": ""}, "request-malformed"),
            ({"resource": "job/1", "token": "1", "admin": True}, "request-malformed"),
            ({"resource": "job/1", "token": "01"}, "token-malformed"),
            ({"resource": "job/a*", "token": "1"}, "resource-malformed"),
            ({"resource": "job/\0", "token": "1"}, "resource-malformed"),
        ],
    )
    async def test_what_cannot_be_issued(self, api: httpx.AsyncClient, wanted: dict[str, Any], code: str) -> None:
        answer = await ask(api, **wanted)
        assert (answer.status_code, answer.json()["code"]) == (400, code)

    async def test_a_caller_without_s3_keys_gets_no_credentials(self, origin: str) -> None:
        wanted = {"resource": "job/1", "token": "1"}
        async with httpx.AsyncClient(base_url=origin, timeout=PATIENCE) as client:
            keyless = await client.post("/v1/credentials", json=wanted, headers={"apikey": "reader-key"})
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


async def fetched(
    monkeypatch: pytest.MonkeyPatch, url: str, *arguments: str, key: str | None = API_KEY
) -> "subprocess.CompletedProcess[str]":
    """Run the command with ``key`` in its environment, and return its result."""
    if key is None:
        monkeypatch.delenv("GATEWAY_API_KEY", raising=False)
    else:
        monkeypatch.setenv("GATEWAY_API_KEY", key)
    return await in_thread(lambda: called("credentials", "--url", url, *arguments))


@in_one_loop
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
        assert found[0].scope == FencedScope(job, Token(0, 34), "me")
        assert found[0].expires == datetime.fromisoformat(printed["Expiration"])
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
        unreachable = "gateway: The gateway at http://127.0.0.1:9 cannot be reached: ConnectError."
        for url, token, key, said in (
            (origin, "33", API_KEY, f"gateway: The fencing token 33 of {job} has been overtaken by 34. Stop writing"),
            (origin, "034", API_KEY, "gateway: '034' is not a fencing token. Send one token"),
            (origin, "34", "wrong", "gateway: The API key is unknown."),
            (origin, "34", "", "gateway: GATEWAY_API_KEY: there is no API key"),
            (origin, "34", "wörng", "gateway: GATEWAY_API_KEY: there is no API key"),
            (origin, "34", None, "gateway: GATEWAY_API_KEY: there is no API key"),
            ("http://127.0.0.1:9", "34", API_KEY, f"{unreachable} Start it, or correct --url or GATEWAY_URL."),
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
