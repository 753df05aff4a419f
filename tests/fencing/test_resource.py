"""Each resource has one name, and two resources never share one. A list or an error prints the name for a URL."""

import asyncio
import html
import http.client
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import httpx
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from gateway.app import Gateway
from gateway.client import FencedClient
from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import ConfigurationError, ResourceMalformed
from gateway.fencing.resource import (
    GRAMMAR,
    MAX_BYTES,
    PATTERN_GRAMMAR,
    Template,
    canonical,
    check_pattern,
    covers,
    escape,
    escape_path,
    includes,
    overlap,
)
from gateway.observe.telemetry import Observability
from tests.doctor.test_doctor import execute
from tests.doubles.s3 import S3Double, serve
from tests.objects.raw import send
from tests.postgres import fresh_database
from tests.running import API_KEY, PAIR, Events, config, routes_of, running
from tests.tiers import first
from tests.waiting import PATIENCE

values = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize(
    "name", ["a", "order/5", "s3/bucket/a//b", "x/%2F", "%25", "a" * MAX_BYTES, "t/", ".../.~", "..~/x", "%FF"]
)
def test_canonical_names_pass(name: str) -> None:
    assert canonical(name) == name


@pytest.mark.parametrize(
    "name",
    ["", "a b", "ü", "a\n", "a\x00", "%", "%2", "%2f", "%41", "a=b", "a,b", "a?b", "a#b", '"', "a\\b",
     "a" * (MAX_BYTES + 1), "\ud800", ".", "..", "a/./b", "../a", "a/.."],
    ids=ascii,
)  # fmt: skip
def test_other_names_do_not(name: str) -> None:
    with pytest.raises(ResourceMalformed):
        canonical(name)


@pytest.mark.parametrize(
    ("name", "spelling"),
    [("a b", "a%20b"), ("a%2fb", "a%2Fb"), ("%41", "A"), ("a/../b", "a/..~/b"), ("%2E/x", ".~/x"),
     ("a,b=c", "a%2Cb%3Dc"),
     ("ü", "%C3%BC"), ("%ff", "%FF"), ("50%", None), ("%zz", None), ("", None), ("\ud800", None), ("," * 200, None)],
    ids=ascii,
)  # fmt: skip
def test_the_advice_has_the_spelling_that_a_name_can_only_mean(name: str, spelling: str | None) -> None:
    with pytest.raises(ResourceMalformed) as refused:
        canonical(name)
    said = re.search(r"canonical spelling is ([^ ]+), which", refused.value.advice)
    assert (said and said[1]) == spelling
    if spelling is not None:
        assert canonical(spelling) == spelling


pieces = st.sampled_from(
    [".", "..", "/", "a", "~", ":", "%", "%%", " ", "ü", "\n", *(f"%{byte:02X}" for byte in range(256)), "%2f"]
)


@given(st.lists(pieces | st.sampled_from(["*", "**", "/*", "/**"]), max_size=6).map("".join))
def test_the_grammars_that_schemas_have_take_canonical_names_and_patterns_only(name: str) -> None:
    for grammar, check in ((GRAMMAR, canonical), (PATTERN_GRAMMAR, check_pattern)):
        try:
            check(name)
            is_fine = True
        except ResourceMalformed:
            is_fine = False
        assert bool(re.fullmatch(grammar, name)) == is_fine


dots = st.lists(st.sampled_from([".", "..", ".~", "~", "a", "/", "", "..~~"]), max_size=6).map("".join)


@given(dots | values, dots | values)
def test_escaping_keeps_values_apart(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)
    assert (escape_path(one) == escape_path(other)) == (one == other)


@given(dots)
def test_no_value_makes_a_segment_that_clients_fold(value: str) -> None:
    for name in (f"t/{escape(value)}", f"s3/b/{escape_path(value)}", Template.parse("t/a.{a}/x").fill({"a": value})):
        assert canonical(name) == name


@pytest.mark.parametrize("text", ["{a}.", ".{a}", ".{a}.", "t/{a}../x", "../{a}", "t/.", "t/./{a}"])
def test_templates_whose_names_clients_could_fold_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="segment"):
        Template.parse(text)


@given(values)
def test_escaped_values_are_canonical_and_have_no_slash(value: str) -> None:
    assert "/" not in escape(value)
    if value and len(escape(value)) <= MAX_BYTES:
        assert canonical(escape(value)) == escape(value)


@given(st.tuples(values, values), st.tuples(values, values))
def test_two_rows_never_share_a_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    template = Template.parse("order/{a}/line-{b}")
    names = [template.fill({"a": a, "b": b}) for a, b in (one, other)]
    assert (names[0] == names[1]) == (one == other)


@pytest.mark.parametrize("text", ["", "{a}{b}", "x/{a}-{b}", "or der/{a}", "{", "a}b", "order/{a", "x={a}"])
def test_ambiguous_or_malformed_templates_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        Template.parse(text)


def test_a_template_may_have_no_fields_and_makes_no_name_that_is_too_long() -> None:
    assert Template.parse("stock").fill({}) == "stock"
    with pytest.raises(ResourceMalformed):
        Template.parse("x/{a}").fill({"a": "y" * MAX_BYTES})


# Patterns: which are about what another is about, and which have something in common --------------------------------


SEGMENTS = st.sampled_from(["a", "b", "", "*", "a*", "**"])
NAMES = st.lists(SEGMENTS, min_size=1, max_size=4).map("/".join).filter(bool)
ENDS = st.sampled_from(["", "/*", "/**"])
PATTERNS = (
    st.tuples(st.lists(st.sampled_from(["a", "b", "", "*"]), min_size=1, max_size=3).map("/".join), ENDS)
    .map("".join)
    .filter(bool)
)


@given(PATTERNS, PATTERNS, NAMES)
def test_what_a_pattern_includes_it_covers(pattern: str, other: str, name: str) -> None:
    check_pattern(pattern)
    check_pattern(other)
    if includes(pattern, other) and covers(other, name):
        assert covers(pattern, name)


@given(PATTERNS, PATTERNS, NAMES)
def test_what_two_patterns_cover_they_have_in_common(one: str, other: str, name: str) -> None:
    if covers(one, name) and covers(other, name):
        assert overlap(one, other)
        assert overlap(other, one)


@given(PATTERNS)
def test_a_pattern_includes_itself_and_everything_includes_all(pattern: str) -> None:
    assert includes(pattern, pattern)
    assert includes("**", pattern)
    assert overlap("**", pattern)


def test_what_is_left_out() -> None:
    for pattern, other in (
        *(("job/42", "job/*"), ("job/*", "job/**"), ("job/**", "job"), ("job/a/**", "job/**"), ("a/*", "b/*")),
        *(("job/**", "**"), ("*", "**"), ("s3/b/x/**", "s3/b/**"), ("s3/b/x/**", "s3/b/xy/**")),
    ):
        assert not includes(pattern, other), (pattern, other)
    for one, two in (("a/b", "a/c"), ("a/**", "a"), ("a/*", "a"), ("a/b/**", "a/b"), ("a/**", "b/**")):
        assert not overlap(one, two), (one, two)


# Names in paths: what a list or an error prints can be pasted into a URL. ---------------------------------------------

CALLER = {"name": "writer", "groups": ["admins"], **PAIR}

LEASE = "01890000-0000-7000-8000-000000000000"
"""A name that looks like the id of a lease. It is the same in each run, so that workers collect the same tests."""

VALUES = [
    *("c/d", "c", "50%", "%2F", "%2f", "a b", "a+b", "ü/漢 é", ".", "..", ".~", "a/../b", "./.", "...", ".~/..~~"),
    *("a//b", "/x", "x/", "", "q?x=1&y=2", "h#x", "p;v=1", "a,b=c", "it's", '"<>"', "~!$&'()*+,;=:@", "a\\b", "\n\x7f"),
    *("barrier", "x/barrier", "epoch", "x/epoch", "leases", "v1/fences/x/barrier", LEASE),
]
"""Values of keys; each makes a name as a row's, and one as an object's, whose slashes stay slashes."""

# Each spelling with the only name that it can mean.
SPELLINGS = [
    *(("c%2fd", "c%2Fd"), ("%41", "A"), ("a%2Bb", "a+b"), ("a%7Eb", "a~b"), ("a,b", "a%2Cb"), ("a=b", "a%3Db")),
    *(('"q"', "%22q%22"), ("[1]", "%5B1%5D"), ("a|b", "a%7Cb"), ("%c3%bc", "%C3%BC")),
    *(("..", "..~"), ("../b", "..~/b"), ("./b", ".~/b"), ("%2E%2e/b", "..~/b"), (".%2E", "..~"), ("a/./b", "a/.~/b")),
]
UNREADABLE = ["50%", "%zz", "%2", "x%", "x" * 513]


@dataclass(frozen=True, slots=True)
class World:
    """A gateway behind a socket, with the tables and buckets that it fences."""

    origin: str
    dsn: str
    api: httpx.AsyncClient
    routes: list[tuple[str, str]]
    """Each method and path of the gateway that has something variable in it."""

    async def named(self, prefix: str) -> set[str]:
        """Return the names that begin so, of all fences, locks and leases."""
        connection = await asyncpg.connect(self.dsn)
        try:
            found = await connection.fetch(
                "SELECT resource FROM (SELECT resource FROM fencing.fence UNION SELECT resource FROM fencing.lock "
                "UNION SELECT resource FROM fencing.lease) AS named WHERE starts_with(resource, $1)",
                prefix,
            )
        finally:
            await connection.close()
        return {row["resource"] for row in found}

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None, status: int = 200) -> Any:
        """Paste ``path`` behind the origin, as a program would. Return the answer's JSON, None if it has none."""
        answer = await self.api.request(method, f"{self.origin}{path}", json=body)
        assert answer.status_code == status, (path, answer.text)
        kind = answer.headers.get("content-type", "")
        return answer.json() if "json" in kind else answer.text

    async def acquired(self, name: str, **wish: Any) -> dict[str, Any]:
        lease: dict[str, Any] = await self.ask("POST", f"/v1/leases/{name}", {"holder": "a", **wish}, 201)
        assert lease["resource"] == name
        return lease

    async def holders(self, name: str) -> int:
        lock = await self.ask("GET", f"/v1/leases/{name}")
        assert lock["resource"] == name
        return len(lock["holders"])


TABLES = """
CREATE TABLE txt (id text PRIMARY KEY, v text);
CREATE TABLE places (place text, id text, PRIMARY KEY (place, id));
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(postgres_server: EmbeddedPostgres) -> AsyncIterator[World]:
    async with (
        fresh_database(postgres_server) as dsn,
        serve(S3Double(buckets=["bucket"])) as endpoint,
    ):
        await execute(dsn, TABLES)
        # Any name of two parts is that of a row. So the second one may have an encoded slash.
        rule = {"name": "public.places", "resource": "{place}/{id}"}
        settings = config(dsn, endpoint, callers=[{**CALLER, "api_key": API_KEY}], tables=[rule])
        routes = variable(Gateway(settings, Observability(settings, Events())))
        async with (
            running(settings) as origin,
            httpx.AsyncClient(headers={"Authorization": f"Bearer {API_KEY}"}, timeout=PATIENCE) as api,
        ):
            yield World(origin, dsn, api, routes)


def variable(gateway: Gateway) -> list[tuple[str, str]]:
    """Return methods and paths of all routes with parameters."""
    return [(method, path) for method, path in routes_of(gateway) if "{" in path and method != "HEAD"]


async def _acquire(world: World, name: str) -> None:
    lease = await world.acquired(name, barrier=True)
    assert (await world.ask("GET", f"/v1/fences/{name}"))["token"] == lease["token"]


async def _inspect(world: World, name: str) -> None:
    await world.acquired(name)
    assert await world.holders(name) == 1


async def _renew(world: World, name: str) -> None:
    lease = await world.acquired(name, ttl=40)
    renewed = await world.ask("PUT", f"/v1/leases/{name}/{lease['lease']}", {"ttl": 100})
    assert (renewed["resource"], renewed["expires_in"] > 50) == (name, True)


async def _release(world: World, name: str) -> None:
    lease = await world.acquired(name)
    await world.ask("DELETE", f"/v1/leases/{name}/{lease['lease']}", status=204)
    assert await world.holders(name) == 0


async def _withdraw(world: World, name: str) -> None:
    await world.acquired(name, request="r")
    await world.ask("POST", f"/v1/withdrawals/{name}", {"holder": "a", "request": "r"}, 204)
    assert await world.holders(name) == 0


async def _break(world: World, name: str) -> None:
    lease = await world.acquired(name)
    broken = await world.ask("POST", f"/v1/breaks/{name}", {"expected": lease["token"], "reason": "a test"})
    assert (broken["resource"], broken["holders"]) == (name, [])


async def _read(world: World, name: str) -> None:
    fence = await world.ask("GET", f"/v1/fences/{name}")
    assert (fence["resource"], fence["token"]) == (name, None)


async def _raise(world: World, name: str) -> None:
    raised = await world.ask("POST", f"/v1/fences/{name}/barrier", {"token": "34"})
    assert (raised["resource"], raised["token"]) == (name, "34")
    assert await world.ask("GET", f"/v1/fences/{name}") == raised
    refused = await world.ask("POST", f"/v1/fences/{name}/barrier", {"token": "33"}, 412)
    assert refused["resource"] == name


async def _begin(world: World, name: str) -> None:
    await world.ask("POST", f"/v1/fences/{name}/barrier", {"token": "34"})
    begun = await world.ask("POST", f"/v1/fences/{name}/epoch", {"expected": "34", "reason": "a test"})
    assert (begun["resource"], begun["token"][:2]) == (name, "1.")


async def _report(world: World, name: str) -> None:
    report = await world.ask("GET", f"/v1/reports/{name}")
    assert f">{name}</bdi>" in html.unescape(report), "it is about this name"


Use: TypeAlias = Callable[[World, str], Awaitable[None]]

USES: dict[tuple[str, str], Use] = {
    ("POST", "/v1/leases/{resource:path}"): _acquire,
    ("GET", "/v1/leases/{resource:path}"): _inspect,
    ("PUT", "/v1/leases/{resource:path}/{lease}"): _renew,
    ("DELETE", "/v1/leases/{resource:path}/{lease}"): _release,
    ("POST", "/v1/withdrawals/{resource:path}"): _withdraw,
    ("POST", "/v1/breaks/{resource:path}"): _break,
    ("GET", "/v1/fences/{resource:path}"): _read,
    ("POST", "/v1/fences/{resource:path}/barrier"): _raise,
    ("POST", "/v1/fences/{resource:path}/epoch"): _begin,
    ("GET", "/v1/reports/{resource:path}"): _report,
}

OTHERS = {
    ("GET", "/v1/rejections/{id}"),
    ("GET", "/v1/events/{id}"),
    ("GET", "/v1/incidents/{id}"),
    ("POST", "/v1/incidents/{id}/acknowledgements"),
    ("POST", "/v1/webhooks/{name}/test"),
    ("GET", "/ui/rejections/{id}"),
    ("GET", "/ui/events/{id}"),
    ("GET", "/ui/incidents/{id}"),
    ("POST", "/ui/incidents/{id}/acknowledge"),
    ("GET", "/ui/static/{path:path}"),
}
"""Ids of entries, names of webhooks, files: what else stands in paths."""

BODIES: dict[str, dict[str, Any]] = {
    "{lease}": {},
    "leases": {"holder": "a"},
    "withdrawals": {"holder": "a", "request": "r"},
    "breaks": {"expected": "1", "reason": "a test"},
    "barrier": {"token": "34"},
    "epoch": {"expected": "34", "reason": "a test"},
}

of_each_route = pytest.mark.parametrize("route", first(USES), ids=" ".join)


async def test_every_route_that_takes_a_name_is_tried_here(world: World) -> None:
    assert set(world.routes) == {*USES, *OTHERS}


@pytest.mark.thorough
@of_each_route
async def test_a_name_in_a_path_is_taken_as_it_is(world: World, route: tuple[str, str]) -> None:
    place, used = f"r{uuid4().hex}", set()
    for value in VALUES:
        for name in (f"{place}/{escape(value)}", f"{place}/s3/{escape_path(value)}"):
            if name not in used:
                await USES[route](world, name)
                used.add(name)
    assert await world.named(place) - used == set(), "nothing else was touched"


@of_each_route
async def test_another_spelling_is_refused_with_the_one_to_use(world: World, route: tuple[str, str]) -> None:
    for sent, spelling in SPELLINGS:
        place = f"r{uuid4().hex}"
        answer = await asyncio.to_thread(asked, world.origin, route, f"{place}/{sent}")
        assert (answer["status"], answer["code"]) == (400, "resource-malformed"), sent
        assert re.findall(r"\S+/\S*[^\s,]", answer["advice"])[0] == f"{place}/{spelling}"
        await USES[route](world, f"{place}/{spelling}")
    for sent in UNREADABLE:
        answer = await asyncio.to_thread(asked, world.origin, route, f"{place}/{sent}")
        assert (answer["status"], answer["code"]) == (400, "resource-malformed"), sent
        assert "spelling" not in answer["advice"]


@pytest.mark.parametrize("sent", ["a b", "h#x", "ü", "a\tb", "a\x01b"])
async def test_what_cannot_stand_in_a_path_at_all(world: World, sent: str) -> None:
    name = f"r{uuid4().hex}/{sent}"
    body = b'{"holder": "a", "token": "1"}'
    head = f"Host: g\r\nAuthorization: Bearer {API_KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    for path in (f"/v1/leases/{name}", f"/v1/fences/{name}/barrier"):
        reply = await send(world.origin, f"POST {path} HTTP/1.1\r\n{head}".encode() + body)
        assert reply is not None
        assert reply.status == 400
    assert await world.named(name[:33]) == set()


@pytest.mark.parametrize("value", first(VALUES), ids=ascii)
async def test_a_zombie_is_stopped_by_the_name_that_the_list_of_fences_prints(world: World, value: str) -> None:
    """The story of a takeover of a row: list the fences, paste the name, and the old holder is refused."""
    row, key = {"id": value, "v": "old"}, {"id": f"eq.{value}"}
    path, old = f"{world.origin}/v1/tables/txt", {"Fencing-Token": "33", "Fencing-Holder": "old"}
    written = await world.api.post(path, params={"on_conflict": "id"}, json=row, headers=old)
    assert written.status_code == 201, written.text
    fences = (await world.ask("GET", "/v1/fences?limit=1000"))["fences"]
    (listed,) = (fence["resource"] for fence in fences if fence["resource"] == f"public.txt/{escape(value)}")
    raised = await world.ask("POST", f"/v1/fences/{listed}/barrier", {"token": "34", "holder": "new"})
    assert (raised["resource"], raised["token"], raised["raised_by"]) == (listed, "34", "new")
    zombie = await world.api.patch(path, params=key, json={"v": "late"}, headers=old)
    assert (zombie.status_code, zombie.json()["code"]) == (412, "token-stale"), zombie.text
    assert (await world.ask("GET", f"/v1/rejections?{httpx.QueryParams(resource=listed)}"))["rejections"]
    page = await world.api.get(f"{world.origin}/v1/fences", params={"prefix": listed, "limit": 1})
    assert page.json()["fences"][0]["resource"] == listed, "in a query it is encoded like any other value"


async def test_the_client_library_locks_by_the_same_names(world: World) -> None:
    place = f"r{uuid4().hex}"
    async with FencedClient(world.origin, api_key=API_KEY) as client:
        for value in VALUES:
            name = f"{place}/{escape(value)}"
            async with client.lock(name, wait=0) as lock:
                fence = await world.ask("GET", f"/v1/fences/{name}")
                assert (fence["resource"], fence["token"]) == (name, lock.headers["Fencing-Token"])
                assert await world.holders(name) == 1
            assert await world.holders(name) == 0


def asked(origin: str, route: tuple[str, str], name: str) -> dict[str, Any]:
    """Ask with a path that a library would not send so, and return the problem."""
    method, path = route
    body = next(
        (httpx.Request("POST", "http://g", json=body).content for word, body in BODIES.items() if word in path), b""
    )
    where = path.replace("{resource:path}", name).replace("{lease}", LEASE)
    connection = http.client.HTTPConnection(urlsplit(origin).netloc, timeout=PATIENCE)
    try:
        headers = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json"}
        connection.request(method, where, body if method != "GET" else None, headers)
        answer = connection.getresponse()
        problem: dict[str, Any] = httpx.Response(answer.status, content=answer.read()).json()
    finally:
        connection.close()
    return problem


@pytest.mark.parametrize("piece", ["/", "./", 'W/"', "%2F", "job/"])
def test_a_name_that_is_far_too_long_takes_no_time(piece: str) -> None:
    """A head has room for sixty thousand characters. Their right spelling would be too long, too."""
    name = piece * (60_000 // len(piece))
    began = time.process_time()
    for _ in range(10):
        with pytest.raises(ResourceMalformed, match="at most 512 bytes"):
            canonical(name)
    assert time.process_time() - began < 0.05
