"""Every kind of credential, on every plane: none of them is in anything that others can read afterwards."""

import asyncio
import html
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import httpx
import pytest
import structlog
from typer.testing import CliRunner

from gateway.api.requests import shown_path
from gateway.auth.sigv4 import RequestHead, StoreCredentials, presign
from gateway.commands.audit import audit
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.sequencer import Signer
from gateway.fencing.token import Token
from gateway.observe import logs
from tests.objects import raw
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage
from tests.objects.test_forms import post, signed
from tests.observe.scene import Collector, collecting, scene
from tests.record import receiver
from tests.record.receiver import Receiver, receiving
from tests.running import ACCESS_KEY, API_KEY, GRANTS, KEYS, SECRET_KEY
from tests.waiting import PATIENCE

KEY = "k" * 32
AUDITOR, INTRUDER = "auditor-api-key", "intruder-api-key"
CALLERS = [
    {
        "name": "writer",
        "groups": ["admins"],
        **KEYS,
    },
    {"name": "auditor", "groups": ["auditors"], "api_key": AUDITOR},
    {"name": "intruder", "api_key": INTRUDER},
]
GRANTED = [one if one.get("callers") != ["*"] else {**one, "callers": ["writer", "auditor"]} for one in GRANTS]
"""The intruder may do nothing."""
KINDS = ("rejection", "administration")
MEBIBYTE = 1024 * 1024
STALE, REFUSED = {"Fencing-Token": "3"}, 412
TABLE = "CREATE TABLE grants (id bigint PRIMARY KEY, access_token text, note text)"
MARKER = "kept-marker"
"""Stands where credentials stand, and is none: a sink without it has not been told of the request at all."""


@dataclass
class Scene:
    """A gateway, and everything outside it that it tells something. ``secrets`` are what was sent to it, by name."""

    stage: Stage
    collector: Collector
    receiver: Receiver
    log: io.StringIO
    secrets: dict[str, str] = field(default_factory=dict)

    def secret(self, name: str, value: str) -> str:
        assert len(value) > 5
        self.secrets[name] = value
        return value


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    paper = io.StringIO()
    written = structlog.wrap_logger(structlog.PrintLogger(paper), processors=logs.PROCESSORS)
    monkeypatch.setattr(logs, "_logger", written)
    return paper


@asynccontextmanager
async def told(postgres: EmbeddedPostgres, log: io.StringIO) -> AsyncIterator[Scene]:
    """A gateway to which every kind of credential has been shown."""
    with collecting() as collector:
        async with receiving() as hook:
            kinds = list(KINDS)
            hooks = [{"name": "hook", "url": hook.url, "secret": receiver.SECRET, "kinds": kinds}]
            async with scene(
                postgres,
                logs.log,
                telemetry={"access_log": True, "traces": collector.origin},
                callers=CALLERS,
                grants=GRANTED,
                webhooks=hooks,
                leases={"signing_keys": [KEY]},
                audit={"capture": 4096},
            ) as stage:
                one = Scene(stage, collector, hook, log)
                one.secrets.update(api_key=API_KEY, auditor=AUDITOR, secret_key=SECRET_KEY, signing_key=KEY)
                await stage.rows(TABLE)
                await stage.knows("grants")
                # A webhook begins at the end of the record, and is to be told of all that is refused from here on.
                async with asyncio.timeout(PATIENCE):
                    while not await stage.rows("SELECT FROM fencing.webhook"):
                        await asyncio.sleep(0.01)
                await on_tables(one)
                await on_objects(one)
                await in_forms(one)
                await on_the_api(one)
                await on_leases(one)
                yield one
                assert not hook.refuted


async def on_tables(scene: Scene) -> None:
    """Writes that are refused: the whole way, by a recipe, in a list, of a function; and a request that is none."""
    stage = scene.stage
    for row in ("public.grants/1", "public.grants/2"):
        assert (await stage.barrier(row, "9")).status_code == 200
    headers = {**STALE, "apikey": API_KEY, "Cookie": f"session={scene.secret('cookie', 'c00kie-secret')}"}
    query, encoded, column = (scene.secret(f"{name} in a query", f"{name}-q-secret") for name in ("a", "b", "c"))
    async with stage.api() as api:
        for target in (
            f"grants?id=eq.1&note=eq.{MARKER}&apikey={query}",
            f"grants?id=eq.1&note=eq.{MARKER}&apikey={query}&%61pi%6Bey={encoded}&apikey={encoded}",
            f"grants?id=eq.1&note=eq.{MARKER}&access_token=eq.{column}",
        ):
            for _ in range(3):
                answer = await api.patch(f"/v1/tables/{target}", json={"note": MARKER}, headers=headers)
                assert answer.status_code == REFUSED, answer.text
        proof = sequencer(scene, "public.grants/2", "3")
        write = {
            "method": "PATCH",
            "table": "grants",
            "query": f"id=eq.2&apikey={query}",
            "body": {"note": MARKER},
            "sequencer": proof,
        }
        answer = await api.post(f"/v1/transaction?apikey={query}", json={"writes": [write]})
        assert answer.status_code == REFUSED, answer.text
        assert (await api.get(f"/v1/tables/{MARKER}%3Fapikey={query}")).status_code == 404


async def on_objects(scene: Scene) -> None:
    """Administration and refused writes, signed in the head and in the query; and what is not signed at all."""
    stage, origin = scene.stage, scene.stage.origin
    await call(connect(origin, "9").put_object, Key=MARKER, Body=b"newer")
    proof = sequencer(scene, f"s3/bucket/{MARKER}", "3")
    session = f"fencing-token=3&fencing-sequencer={quote(proof, safe='')}"
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        for method, path, query in (
            ("DELETE", f"/{MARKER}-bucket", ""),
            ("PUT", f"/bucket/{MARKER}", f"fencing-token=3&fencing-sequencer={quote(proof, safe='')}"),
            ("PUT", f"/bucket/{MARKER}", f"x-amz-meta-fencing-sequencer={quote(proof, safe='')}"),
            ("PUT", f"/bucket/{MARKER}", f"X-Amz-Security-Token={quote(session, safe='')}"),
            ("DELETE", f"/bucket/{MARKER}", "fencing-token=3"),
        ):
            url = presigned(scene, method, path, query)
            answer = await http.request(method, url, content=MARKER.encode() if method == "PUT" else b"")
            assert answer.status_code == (404 if path.endswith("-bucket") else REFUSED), answer.text
            # The same URL for another operation, and percent-encoded once too often.
            assert (await http.get(url)).status_code == 403
            assert (await http.get(f"{origin}{quote(url.removeprefix(origin))}")).status_code == 403
        old = f"/bucket/{MARKER}?AWSAccessKeyId=AKIA1&Expires=1&Signature={scene.secret('version 2', 'v2-secret')}"
        assert (await http.get(origin + old)).status_code == 400
    for name, size, payload in (
        ("small", 8, "UNSIGNED-PAYLOAD"),
        ("chunks", 9 * MEBIBYTE, "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
    ):
        length = [("content-length", str(size + 200)), ("x-ignored", "")] if name == "chunks" else []
        decoded = [("x-amz-decoded-content-length", str(size))] if name == "chunks" else []
        source = scene.secret(f"in the head of {name}", f"{name}-h-secret")
        signed_headers = [("fencing-token", "3"), ("x-amz-meta-authorization", source), *decoded]
        unsigned = [*(length or [("content-length", str(size))]), ("cookie", "s=c00kie-secret")]
        head = raw.head(origin, "PUT", f"/bucket/{MARKER}", signed_headers, payload=payload, unsigned=unsigned)
        scene.secret(f"signature of {name}", head.decode().partition("Signature=")[2].partition("\r")[0])
        chunk = scene.secret("signature of a chunk", "c4" * 32)
        body = f"{size:x};chunk-signature={chunk}\r\n{MARKER}" if name == "chunks" else MARKER[:size]
        reply = await raw.send(origin, head + body.encode())
        assert reply is not None
        assert reply.status == REFUSED, reply
    async with stage.api() as api:
        wanted = {"resource": f"s3/bucket/{MARKER}", "token": "9", "holder": MARKER}
        issued = (await api.post("/v1/credentials", json=wanted)).json()
    for name in ("secret_access_key", "session_token"):
        scene.secret(f"{name} of fenced credentials", issued[name])
    s3 = connect(
        origin,
        access_key=issued["access_key_id"],
        secret_key=issued["secret_access_key"],
        aws_session_token=issued["session_token"],
    )
    assert (await stage.barrier(f"s3/bucket/{MARKER}", "10")).status_code == 200
    assert (await outcome(s3.put_object, Key=MARKER, Body=MARKER.encode()))[0] == REFUSED
    url = s3.generate_presigned_url("put_object", {"Bucket": "bucket", "Key": MARKER}, ExpiresIn=60)
    scene.secret("signature by fenced credentials", parse_qs(urlsplit(url).query)["X-Amz-Signature"][0])
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        assert (await http.put(url, content=MARKER)).status_code == REFUSED


async def in_forms(scene: Scene) -> None:
    """A refused form upload: its fields are what proves it."""
    proof = sequencer(scene, f"s3/bucket/{MARKER}", "4")
    fields = {"x-amz-meta-fencing-token": "4", "x-amz-meta-fencing-sequencer": proof}
    form = signed(scene.stage.origin, MARKER, fields)
    for name in ("x-amz-signature", "policy"):
        scene.secret(f"{name} of a form", form.fields[name])
    assert (await post(form, MARKER.encode())).status_code == REFUSED


async def on_the_api(scene: Scene) -> None:
    """A refused barrier, credentials that are not issued, sequencers, and the way in to the page."""
    stage, query = scene.stage, scene.secret("in a query of the API", "api-q-secret")
    proof = sequencer(scene, f"s3/bucket/{MARKER}", "5")
    async with stage.api() as api:
        for path, body in (
            (f"/v1/fences/s3/bucket/{MARKER}/barrier", {"token": "5", "sequencer": proof}),
            ("/v1/credentials", {"resource": f"s3/bucket/{MARKER}", "token": "5", "sequencer": proof}),
        ):
            answer = await api.post(f"{path}?apikey={query}&access_token={query}", json=body)
            assert answer.status_code == REFUSED, answer.text
        assert (await api.post("/v1/sequencers/check", json={"sequencer": proof})).status_code == 200
        same_origin = {"Origin": stage.origin}
        wrong = {"api_key": scene.secret("a key at the login", "wrong-key-secret")}
        assert (await api.post("/ui/login", data=wrong, headers=same_origin)).status_code == 401
        assert (await api.get(f"/v1/{MARKER}%3Faccess_token={query}")).status_code == 404


async def on_leases(scene: Scene) -> None:
    """Requests with the id of a lease, which is enough to end it: by a caller that may not, and by its holder."""
    stage, name = scene.stage, f"{MARKER}/lease"
    async with stage.api() as api:
        lease = (await api.post(f"/v1/leases/{name}", json={"holder": "a"})).json()["lease"]
        for spelling, one in (("plain", lease), ("upper", lease.upper()), ("short", lease.replace("-", ""))):
            scene.secret(f"{spelling} id of a lease", one)
            scene.secret(f"end of the {spelling} id of a lease", one[-12:])
            renewals = {"leases": [{"resource": name, "lease": one}]}
            requests: list[tuple[str, str, dict[str, Any]]] = [
                ("PUT", f"/v1/leases/{name}/{one}", {}),
                ("DELETE", f"/v1/leases/{name}/{one}", {}),
                ("DELETE", f"/v1/leases/{name}/urn:uuid:{one}", {}),
                ("DELETE", f"/v1/leases/{name}/{{{one[:2]}-{one[2:]}}}", {}),
                ("PUT", f"/v1/lease/{one}?resource={name}", {}),
                ("DELETE", f"/v1/lease/{one}?resource={name}", {}),
                ("PUT", "/v1/leases", renewals),
            ]
            # No routes, which are not found, and may show no id either.
            for path in (f"/v1/leases/{one}", f"/v1/leases/{name}/{one}/", f"/v1/withdrawals/{name}/{one}"):
                for method in ("GET", "POST", "PUT", "DELETE"):
                    await api.request(method, path)
            for method, path, body in requests:
                answer = await api.request(method, path, json=body, headers={"Authorization": f"Bearer {INTRUDER}"})
                assert answer.status_code == 403, answer.text
        assert (await api.put(f"/v1/leases/{name}/{lease}", json={})).status_code == 200
        assert (await api.delete(f"/v1/leases/{name}/{lease}")).status_code == 204


def sequencer(scene: Scene, resource: str, token: str) -> str:
    """A proof of a token, whose signature is a secret."""
    text = Signer([KEY]).sign(resource, "exclusive", Token.parse(token))
    assert text is not None
    scene.secret(f"sequencer of {token}", text.rpartition(":")[2])
    return text


def presigned(scene: Scene, method: str, path: str, query: str) -> str:
    """Return a URL that any client can use."""
    origin = scene.stage.origin
    head = RequestHead(method, path.encode(), query.encode(), [(b"host", urlsplit(origin).netloc.encode())])
    signature = presign(
        head, StoreCredentials(ACCESS_KEY, SECRET_KEY, "us-east-1"), datetime.now(UTC), timedelta(minutes=5)
    )
    parameters = parse_qs(signature)
    scene.secret(f"signature of {method} {path} {query}", parameters["X-Amz-Signature"][0])
    scene.secret(f"credential of {method} {path} {query}", parameters["X-Amz-Credential"][0].partition("/")[2])
    return f"{origin}{path}?{signature}"


async def sinks(scene: Scene, tmp_path: Path) -> dict[str, str]:
    """All that can be read afterwards, by where it is read."""
    stage, found = scene.stage, {}
    async with httpx.AsyncClient(
        base_url=stage.origin, headers={"Authorization": f"Bearer {AUDITOR}"}, timeout=PATIENCE
    ) as auditor:
        for path in (
            *("/v1/rejections?limit=1000", "/v1/events?limit=1000", "/v1/rejections.csv", "/v1/rejections.ndjson"),
            *("/v1/events.csv", "/v1/events.ndjson", "/v1/metrics", f"/v1/reports/s3/bucket/{MARKER}"),
        ):
            found[path] = await text(auditor, path)
        login = await auditor.post("/ui/login", data={"api_key": AUDITOR}, headers={"Origin": stage.origin})
        assert login.status_code == 303
        for path in ("/ui/", "/ui/rejections", "/ui/events", f"/ui/resource?name=s3/bucket/{MARKER}"):
            found[path] = await text(auditor, path)
        kinds = (("rejections", "/ui/rejections/"), ("events", "/v1/events/"))
        for name, prefix in kinds:
            entries = json.loads(found[f"/v1/{name}?limit=1000"])[name]
            wanted = [entry["id"] for entry in entries if entry.get("kind", "rejection") in KINDS]
            found[f"{prefix}{{id}}"] = "\n".join([await text(auditor, f"{prefix}{one}") for one in wanted])
        scene.secret("session of the page", auditor.cookies["gateway_session"])
    key = tmp_path / "key"
    key.write_text(AUDITOR)
    options = ["--url", stage.origin, "--api-key-file", str(key)]
    for command, *more in (["search", "--json"], ["export"], ["tail", "--json", "--last", "50", "--limit", "20"]):
        result = await asyncio.to_thread(CliRunner().invoke, audit, [command, *more, *options])
        assert result.exit_code == 0, result.output
        found[f"gateway audit {command}"] = result.output
    rows = await stage.rows("SELECT r::text AS text FROM fencing.record AS r")
    found["fencing.record"] = "\n".join(row["text"] for row in rows)
    rows = await stage.rows("SELECT convert_from(body, 'UTF8') AS text FROM fencing.payload")
    found["fencing.payload"] = "\n".join(row["text"] for row in rows)
    count = len(await stage.rows("SELECT FROM fencing.record WHERE kind IN ('rejection', 'administration')"))
    await scene.receiver.until(lambda: len(scene.receiver.entries()) == count)
    found["webhooks"] = "\n".join(map(repr, scene.receiver.taken))
    await scene.collector.until("PATCH tables", "DELETE objects", "POST api", "POST page", "GET page")
    found["traces"] = "\n".join(map(repr, scene.collector.spans))
    found["log"] = scene.log.getvalue()
    return {name: plain(text) for name, text in found.items()}


async def text(client: httpx.AsyncClient, path: str) -> str:
    answer = await client.get(path)
    assert answer.status_code == 200, (path, answer.text)
    return answer.text


def plain(text: str) -> str:
    """Return the text, followed by the same text with its encodings undone."""
    return f"{text}\n{unquote(unquote(html.unescape(text)))}"


SILENT = {"/v1/metrics"}
"""Sinks that are told of no single request. All others have the marker that stands beside each credential."""


async def test_no_credential_is_repeated_anywhere(
    postgres_server: EmbeddedPostgres, log: io.StringIO, tmp_path: Path
) -> None:
    async with told(postgres_server, log) as scene:
        found = await sinks(scene, tmp_path)
    for sink, said in found.items():
        repeated = [name for name, secret in scene.secrets.items() if secret in said]
        assert not repeated, (sink, repeated)
    assert {sink for sink, said in found.items() if MARKER not in said} == SILENT
    assert "X-Amz-Credential=AKIAWRITER&" in found["/v1/rejections?limit=1000"], "what identifies a caller is kept"


def test_an_encoded_path_to_a_lease_shows_no_id() -> None:
    lease = "01890000-0000-7000-8000-000000000000"
    for path in (f"/v1/leases/order/5/{lease}", f"/v1/%6Ceases/order/5/{lease}"):
        assert "7000" not in shown_path("DELETE", path), path
