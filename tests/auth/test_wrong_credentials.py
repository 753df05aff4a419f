"""Wrong credentials of every kind, at every route of every plane: refused, without effect and without a trace."""

import hashlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
import structlog

from gateway.api import ROUTES
from gateway.api.authorisation import About
from gateway.app import Gateway
from gateway.auth.grants import Action
from gateway.auth.sigv4 import RequestHead, StoreCredentials, presign, sign
from gateway.demo.embedded import EmbeddedPostgres
from gateway.objects.s3.operations import Operation
from gateway.observe import logs
from gateway.observe.events import ignore
from gateway.observe.telemetry import Observability
from tests.auth.test_authorisation import SCHEMA, TABLE_REQUESTS, body_of, target_of
from tests.doubles.s3 import S3Double
from tests.identity_provider import Provider, claims, rsa_key, shared_key, token
from tests.objects.object_gateway import Stage, staged
from tests.running import config, routes_of
from tests.tiers import first
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")
KEY, STRANGER = rsa_key("one"), rsa_key("one")
SECRET = "a-secret-that-is-shared-with-an-issuer"
MARKER = "a-mark-in-each-wrong-credential"
"""It stands in each wrong credential, and must be nowhere else afterwards."""
ALL = {"actions": [action.value for action in Action], "everything": True}
PAIR = ("AKIAROOT", "the-secret-key-of-root")
ROOT = {"api_key": "the-api-key-of-root", "access_key_id": PAIR[0], "secret_access_key": PAIR[1]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    """A gateway where each issuer's caller may do everything, so that a token that is taken would have an effect."""
    async with (
        Provider(KEY).running() as provider,
        staged(
            postgres_server,
            S3Double(buckets=["bucket", "scratch"]),
            callers=[{"name": "root", **ROOT}],
            issuers=[
                {"name": "id", "issuer": "https://issuer.example", "audiences": ["gateway"], "keys": provider.url},
                {"name": "app", "issuer": "https://app.example", "secret": SECRET, "audiences": ["gateway"]},
            ],
            grants=[{"callers": ["root", "id:ann", "app:ann"], **ALL}],
            tables=[{"name": "public.orders", "resource": "order/{id}"}],
            postgres={"functions": ["public.reckon", "public.audit_all"]},
            telemetry={"access_log": True},
            identity={"signing_keys": ["a-key-that-signs-temporary-keys-and-sessions"]},
        ) as one,
    ):
        for statement in SCHEMA:
            await one.rows(statement)
        yield one


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as one:
        yield one


def marked(subject: str = "ann", **more: Any) -> dict[str, Any]:
    """Claims of a token that would be taken if nothing were wrong with it."""
    return claims(subject, mark=MARKER, **more)


NOW = int(datetime.now(UTC).timestamp())
WRONG_TOKENS: dict[str, str] = {
    "expired": token(KEY, marked(exp=NOW - 600)),
    "of another issuer": token(STRANGER, marked(iss="https://stranger.example")),
    "signed by a stranger": token(STRANGER, marked()),
    "in the name of another issuer": token(shared_key(SECRET), marked(), "HS256", kid=None),
    "too large": token(KEY, marked(more="x" * 9000)),
}
WRONG_KEYS = {
    "unknown key": MARKER,
    "two keys": f"{ROOT['api_key']} {MARKER}",
    "access key": PAIR[0] + MARKER,
}
BEARERS = WRONG_TOKENS | WRONG_KEYS


@dataclass(frozen=True, slots=True)
class Request:
    """A request of any plane. ``path`` has its query."""

    method: str
    path: str
    body: Any = None


def of_the_api() -> list[Request]:
    found = []
    for one in ROUTES:
        if one.rule.about is not About.PUBLIC:
            target = one.path.replace("{resource:path}", "order/5").replace("{name}", "hook")
            target = target.replace("{lease}", str(uuid4())).replace("{id}", str(uuid4()))
            found.append(Request(one.method, target, body_of(one.path)))
    return found


def tables() -> list[Request]:
    rows = {"id": 5, "state": "stolen"}
    return [
        Request(method, path, rows if method in ("POST", "PATCH", "PUT") else None)
        for method, path, _ in TABLE_REQUESTS
    ] + [Request("GET", "/v1/tables/")]


def operations() -> list[Request]:
    return [Request(operation.method, target_of(operation), operation.copies) for operation in Operation]


async def state(stage: Stage) -> str:
    """Everything that a request could have changed."""
    counted = ("fence", "lock", "lease", "waiter", "intent", "upload", "object", "idempotency", "payload", "issuer")
    counts = ", ".join(f"(SELECT count(*) FROM fencing.{table})" for table in counted)
    rows = await stage.rows(f"SELECT {counts}, (SELECT json_agg(o ORDER BY id)::text FROM orders o)")
    stored = {bucket: sorted(stage.double.objects(bucket)) for bucket in ("bucket", "scratch")}
    return repr([tuple(row) for row in rows]) + repr(stored) + repr(stage.double.applied())


@pytest_asyncio.fixture(loop_scope="module")
async def unharmed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> AsyncIterator[list[str]]:
    """Check that nothing was written, and that no answer, line of the log, event or entry repeats a credential."""
    written = structlog.testing.CapturingLogger()
    monkeypatch.setattr(logs, "_logger", structlog.wrap_logger(written, processors=logs.PROCESSORS))
    before, seen, answers = await state(stage), len(stage.events), list[str]()
    yield answers
    assert await state(stage) == before
    for event in stage.events[seen:]:
        logs.log(event)
    rows = await stage.rows("SELECT to_jsonb(e)::text AS line FROM fencing.record AS e")
    told = {
        "log": repr(written.calls) + caplog.text,
        "events": repr(stage.events[seen:]),
        "record": "\n".join(row["line"] for row in rows),
        "answers": "\n".join(answers),
    }
    assert len(written.calls) >= len(answers) > 0, "the log has a line for each request"
    secrets = [MARKER, *(part for one in WRONG_TOKENS.values() for part in one.split(".")[1:] if part)]
    for place, text in told.items():
        assert not [one for one in secrets if one in text], place


async def asked(client: httpx.AsyncClient, request: Request, headers: dict[str, str]) -> httpx.Response:
    sent = {"Fencing-Token": "7", **headers}
    return await client.request(request.method, request.path, json=request.body, headers=sent)


some = pytest.mark.parametrize("step", first([7, 1]))
"""Each request goes with one in so many of the credentials, so that each of these has its turn."""


@some
async def test_no_wrong_key_or_token_opens_a_route(
    client: httpx.AsyncClient, unharmed: list[str], subtests: pytest.Subtests, step: int
) -> None:
    """Each of them is 401, whatever the route is about, and whichever header carries it."""
    bearers = [{"Authorization": f"Bearer {one}"} for one in BEARERS.values()]
    wrong: list[dict[str, str]] = [*bearers, {"apikey": MARKER}, {"Authorization": f"Basic {MARKER}"}]
    for number, request in enumerate([*of_the_api(), *tables()]):
        with subtests.test(request.method, path=request.path):
            for headers in (*wrong[number % step :: step], {}):
                answer = await asked(client, request, headers)
                expected = 200 if not headers and (request.method, request.path) in OPEN else 401
                assert answer.status_code == expected, (headers, answer.status_code, answer.text[:300])
                unharmed.append(answer.text + repr(answer.headers))


async def test_no_wrong_credential_opens_the_page(client: httpx.AsyncClient, unharmed: list[str]) -> None:
    pages = ["/ui/", "/ui/rejections", "/ui/events", "/ui/observe", "/ui/live", "/ui/no-such-page"]
    for number, one in enumerate(BEARERS.values()):
        bearer, cookie = {"Authorization": f"Bearer {one}"}, {"Cookie": f"gateway_session={one.replace(' ', '')}"}
        for path in pages[number % 3 :: 3]:
            for headers in (cookie, bearer):
                answer = await client.get(path, headers=headers)
                assert answer.status_code == 303, (path, answer.status_code)
                assert answer.headers["location"].startswith("/ui/login")
                assert (await client.get(path, headers={**headers, "HX-Request": "true"})).status_code == 401
        answer = await client.post(
            "/ui/login", data={"api_key": one}, headers={"Origin": str(client.base_url).rstrip("/")}
        )
        assert answer.status_code in (401, 403)
        assert "set-cookie" not in answer.headers
        unharmed.append(answer.text)


# S3 -----------------------------------------------------------------------------------------------------------------


Signing = Callable[[RequestHead], tuple[str, list[tuple[str, str]]]]
"""Returns the query and further headers of a request."""
REAL = StoreCredentials(*PAIR, "us-east-1")
EMPTY = hashlib.sha256(b"").hexdigest()


def signing(keys: StoreCredentials, late: timedelta = timedelta(), **more: str) -> Signing:
    """Sign in headers, ``late`` ago. ``more`` headers are signed, too."""

    def signed(head: RequestHead) -> tuple[str, list[tuple[str, str]]]:
        added = [(name.replace("_", "-"), value) for name, value in more.items()]
        raw = [*head.headers, *((name.encode(), value.encode()) for name, value in added)]
        shown = sign(
            RequestHead(head.method, head.raw_path, head.query_string, raw), EMPTY, keys, datetime.now(UTC) - late
        )
        return head.query_string.decode(), [*added, *shown]

    return signed


def presigning(keys: StoreCredentials, late: timedelta = timedelta()) -> Signing:
    """Sign in the query, for a minute."""

    def signed(head: RequestHead) -> tuple[str, list[tuple[str, str]]]:
        return presign(head, keys, datetime.now(UTC) - late, timedelta(minutes=1)), []

    return signed


def showing(**headers: str) -> Signing:
    return lambda head: (head.query_string.decode(), list(headers.items()))


FOREIGN = StoreCredentials(f"AKIA{MARKER}", MARKER, "us-east-1")
HOUR = timedelta(hours=1)
SIGNATURES: dict[str, tuple[Signing, set[int]]] = {
    "wrong secret": (signing(StoreCredentials(REAL.access_key_id, MARKER, "us-east-1")), {403}),
    "foreign access key": (signing(FOREIGN), {403}),
    "signed an hour ago": (signing(REAL, HOUR), {403}),
    "foreign session token": (signing(REAL, x_amz_security_token=MARKER), {400, 403}),
    "expired address": (presigning(REAL, HOUR), {403}),
    "identity token": (showing(Authorization=f"Bearer {token(KEY, marked())}"), {400, 401, 403}),
    "API key": (showing(Authorization=f"Bearer {ROOT['api_key']}"), {400, 401, 403}),
    "version 2": (showing(Authorization=f"AWS {REAL.access_key_id}:{MARKER}"), {400, 403}),
}


@some
async def test_no_wrong_signature_opens_an_operation(
    client: httpx.AsyncClient, unharmed: list[str], subtests: pytest.Subtests, step: int
) -> None:
    host = str(client.base_url.netloc, "ascii")
    signatures = list(SIGNATURES.items())
    for number, request in enumerate(operations()):
        with subtests.test(request.method, path=request.path):
            path, _, query = request.path.partition("?")
            headers = [("host", host), ("fencing-token", "7")]
            if request.body:
                headers.append(("x-amz-copy-source", "/scratch/other"))
            head = RequestHead(
                request.method,
                path.encode(),
                query.encode(),
                [(name.encode(), value.encode()) for name, value in headers],
            )
            for name, (signed, statuses) in signatures[number % step :: step]:
                shown, more = signed(head)
                answer = await client.request(
                    request.method, f"{path}?{shown}".rstrip("?"), headers=[*headers, *more], content=b""
                )
                assert answer.status_code in statuses, (name, answer.status_code, answer.text[:300])
                unharmed.append(_without_what_s3_repeats(answer.text))


def _without_what_s3_repeats(answer: str) -> str:
    """Leave out the access key id, which S3 repeats in an error, and which is no secret."""
    return answer.replace(FOREIGN.access_key_id, "")


async def test_a_good_credential_is_taken(stage: Stage, client: httpx.AsyncClient) -> None:
    """So the tests above are not refused for another reason."""
    for bearer in (
        ROOT["api_key"],
        token(KEY, marked()),
        token(shared_key(SECRET), marked(iss="https://app.example"), "HS256", kid=None),
    ):
        answer = await client.get("/v1/fences/order/5", headers={"Authorization": f"Bearer {bearer}"})
        assert answer.status_code == 200, answer.text
    host = str(client.base_url.netloc, "ascii")
    for signed in (signing(REAL), presigning(REAL)):
        shown, more = signed(RequestHead("GET", b"/bucket", b"list-type=2", [(b"host", host.encode())]))
        answer = await client.get(f"/bucket?{shown}", headers=more)
        assert answer.status_code == 200, answer.text


OPEN = {
    *(("GET", path) for path in ("/v1/docs", "/v1/health", "/v1/live", "/v1/openapi.json", "/v1/ready")),
    *(("HEAD", path) for path in ("/v1/docs", "/v1/openapi.json")),
    *((method, path) for method in ("GET", "HEAD") for path in ("/", "/healthz", "/livez", "/readyz")),
    *((method, "/ui/login") for method in ("GET", "HEAD", "POST")),
    *(("POST", path) for path in ("/ui/logout", "/ui/theme")),
    *((method, path) for method in ("GET", "HEAD") for path in ("/ui", "/ui/static/x")),
    *(("GET", "/metrics"), ("HEAD", "/metrics"), ("GET", "/v1/metrics")),
}
"""The answers that SECURITY.md lists. The tests ask on the host of the gateway, where metrics are open."""
STS = {("POST", "/"), ("POST", "/v1/sts")}
"""The proof of the caller is in the form."""
TABLES = ("/v1/tables/", "/v1/tables/users", "/v1/tables/rpc/f")


def served() -> set[tuple[str, str]]:
    settings = config("postgresql://none/")
    routes = routes_of(Gateway(settings, Observability(settings, ignore)))
    found = {(method, re.sub(r"\{[^}]+\}", "x", path)) for method, path in routes}
    return found | {(method, path) for method in ("GET", "HEAD", "POST", "PATCH", "DELETE") for path in TABLES}


async def test_a_client_without_credentials_gets_what_is_listed_and_nothing_else(client: httpx.AsyncClient) -> None:
    asked = served()
    assert OPEN - {("GET", "/ui"), ("HEAD", "/ui")} <= asked
    form = {"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleSessionName": "pod-1"}
    form |= {"RoleArn": "arn:aws:iam::000000000000:role/worker"}
    # Not base64, and a header that is no object but a list, or a text.
    for wrong in ("eyJ.e30.x", "WyJhbGciXQ.e30.x", "ImFsZyI.e30.x"):
        for method, path in sorted(STS):
            answer = await client.request(method, path, data={**form, "WebIdentityToken": wrong})
            assert (answer.status_code, "InvalidIdentityToken" in answer.text) == (400, True), (path, answer.text)
    for method, path in sorted(asked - OPEN - STS):
        answer = await client.request(method, path, content=b"{}" if method != "GET" else None)
        if path.startswith("/ui"):
            to_the_login = answer.headers.get("location", "").startswith("/ui/login")
            assert answer.status_code == 403 or to_the_login, (method, path, answer.status_code)
        else:
            assert answer.status_code == 401, (method, path, answer.text)
    to_the_page = await client.get("/", headers={"Accept": "text/html"})
    assert (to_the_page.status_code, to_the_page.headers["location"]) == (307, "/ui/")
    # curl's. A client of S3, which names no media type, asks for the public buckets.
    links = (await client.get("/", headers={"Accept": "*/*"})).json()
    assert links["page"] == "/ui/"
    for path in links.values():
        assert (await client.get(path)).status_code in (200, 204, 303, 401), path
    assert "<Code>AccessDenied</Code>" in (await client.get("/", headers={"Accept": ""})).text
    for path in ("/healthz", "/readyz", "/v1/health", "/v1/ready", "/v1/docs", "/v1/openapi.json", "/ui/login"):
        assert (await client.get(path)).status_code in (200, 204), path
    assert set((await client.get("/v1/health")).json()) == {"postgres", "s3"}
