"""ETags of rows and conditions on them, which detect what a token cannot: two live writers of one row."""

import asyncio
import re
import time

import asyncpg
import httpx
import pytest

from gateway.db.database import Database
from gateway.errors import RequestMalformed
from gateway.fencing.resource import Template
from gateway.observe.events import CatalogWarning, Event
from gateway.tables.dialect.etags import MOST_TAGS, Preconditions, parse_preconditions, row_changed
from gateway.tables.naming import Rule
from gateway.tables.pipeline import Exposure
from tests.tables.asking import answered, change, row, rows
from tests.tables.conftest import RULES
from tests.waiting import waiting


def test_conditions(subtests: pytest.Subtests) -> None:
    for match, none_match, current, met in (
        (None, None, None, True), (None, None, "a", True), ("*", None, "a", True), ("*", None, None, False),
        ('"a"', None, "a", True), ('"a"', None, "b", False), ('"a"', None, None, False), ('"b", "a"', None, "a", True),
        ('"b",,  "a" ,', None, "a", True), ('"a,b"', None, "a,b", True), ('"a,b"', None, "a", False),
        ('""', None, "", True), ('W/"a"', None, "a", False), ('W/"a", "a"', None, "a", True), (None, "*", "a", False),
        (None, "*", None, True), (None, '"a"', "a", False), (None, 'W/"a"', "a", False), (None, '"a"', "b", True),
        (None, '"a"', None, True), ('"a"', '"b"', "a", True), ('"a"', '"a"', "a", False), ("*", '"a"', None, False),
    ):  # fmt: skip
        with subtests.test(match=match):
            wanted = parse_preconditions(match, none_match) or Preconditions()
            assert wanted.met_by(current) is met


def test_many_spaces_stop_nobody() -> None:
    """Sixty thousand of them, for which a head has room, took half a minute."""
    began = time.process_time()
    for header in (f"{' ' * 60_000}x", f'"a",{" " * 60_000}x'):
        with pytest.raises(RequestMalformed):
            parse_preconditions(header, None)
    wanted = parse_preconditions(f'{" " * 30_000}"a"{" " * 30_000}', None)
    assert wanted is not None
    assert wanted.met_by("a")
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "header", ["", " ", ",", "a", '"a', 'a"', "'a'", '"a" "b"', 'w/"a"', 'W/ "a"', '"a b"', '*, "a"', "**", '"\x7f"']
)
def test_headers_that_cannot_be_read(header: str) -> None:
    for given in ((header, None), (None, header)):
        with pytest.raises(RequestMalformed):
            parse_preconditions(*given)


def test_the_list_has_an_end() -> None:
    assert parse_preconditions(", ".join(f'"{n}"' for n in range(MOST_TAGS)), None)
    with pytest.raises(RequestMalformed):
        parse_preconditions(", ".join(f'"{n}"' for n in range(MOST_TAGS + 1)), None)


def test_the_error_has_the_tag_there_is() -> None:
    assert parse_preconditions(None, None) is None
    assert row_changed("a").facts == {"etag": '"a"'}
    assert row_changed(None).facts == {"etag": None}


ROW = "/accounts?id=eq.1"
MORE = """
CREATE TABLE documents (id bigint PRIMARY KEY, body text, version bigint, at timestamptz, size float8, data json);
INSERT INTO documents VALUES (1, 'x', 7, '2024-01-02 03:04:05.678+00', 0.1, '{"a":  1}'), (2, 'y', NULL, NULL, 2, NULL);
CREATE TABLE stamped (id bigint PRIMARY KEY, body text, at timestamptz);
INSERT INTO stamped VALUES (1, 'x', '2024-01-02 03:04:05.678+00');
CREATE TABLE mistaken (id bigint PRIMARY KEY, body text);
INSERT INTO mistaken VALUES (1, 'x');
CREATE TABLE parents (id bigint PRIMARY KEY, v int);
CREATE TABLE children () INHERITS (parents);
INSERT INTO parents VALUES (1, 1);
INSERT INTO children VALUES (1, 2);
CREATE TABLE "odd ""name" (
    id bigint PRIMARY KEY, gone int, "odd ""name" text, "row" point, twice bigint GENERATED ALWAYS AS (id * 2) STORED
);
INSERT INTO "odd ""name" VALUES (1, 1, 'x', '(1,2)');
ALTER TABLE "odd ""name" DROP COLUMN gone;
CREATE TABLE parted (id bigint PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE parted_low PARTITION OF parted FOR VALUES FROM (0) TO (100);
INSERT INTO parted VALUES (1, 1);
"""


@pytest.fixture
def exposure() -> Exposure:
    rules = {
        "public.documents": Rule(version="version"),
        "public.stamped": Rule(version="at"),
        "public.mistaken": Rule(version="updated_at"),
        "public.pairs": Rule(Template.parse("pairs")),
    }
    return Exposure(rules={**RULES, **rules})


@pytest.fixture
async def more(tables: Database) -> None:
    await change(tables, MORE)


async def etag(client: httpx.AsyncClient, target: str = ROW) -> str:
    answer = await client.get(target)
    assert answer.status_code == 200, answer.text
    found: str = answer.headers["etag"]
    return found


async def patch(
    client: httpx.AsyncClient, condition: dict[str, str], token: int = 5, target: str = ROW, **headers: str
) -> httpx.Response:
    return await client.patch(
        target, json={"note": "changed"}, headers={"Fencing-Token": str(token), **condition, **headers}
    )


class TestReading:
    async def test_one_row_has_one_tag_whatever_is_selected(self, client: httpx.AsyncClient) -> None:
        first = await etag(client)
        assert re.fullmatch(r'"[0-9a-f]{32}"', first)
        # The last ones are read by recipe.
        for target in ("/accounts?id=eq.1&select=id", "/accounts?select=n:note,id&id=eq.1&balance=gt.0", ROW, ROW, ROW):
            assert await etag(client, target) == first
        one = await client.get(ROW, headers={"Accept": "application/vnd.pgrst.object+json"})
        head = await client.head(ROW)
        assert (one.headers["etag"], head.headers["etag"]) == (first, first)
        assert "Accept" in one.headers["vary"]
        assert await etag(client, "/accounts?id=eq.2") != first

    async def test_answers_without_an_etag(self, client: httpx.AsyncClient) -> None:
        for target in (
            "/accounts", "/accounts?owner=eq.ann", "/accounts?id=in.(1)", "/accounts?id=not.eq.2&owner=eq.ann",
            "/accounts?or=(id.eq.1)", "/accounts?and=(id.eq.1)", "/accounts?id=gt.1", "/accounts?id=eq(any).{1,2}",
            "/accounts?id=eq.99", "/accounts?id=eq.1&offset=1", "/pairs?a=eq.x", "/rich?id=eq.2", "/keyless?v=eq.1",
        ):  # fmt: skip
            answer = await client.get(target, headers={"If-None-Match": '"x"'})
            assert (answer.status_code, "etag" in answer.headers) == (200, False), target
        assert await etag(client, "/pairs?b=eq.y/z&a=eq.x")

    async def test_an_unchanged_row_is_not_sent_again(self, client: httpx.AsyncClient) -> None:
        known = await etag(client)
        for form in ("{0}", "W/{0}", '"other", {0}', "*"):
            for method in ("GET", "HEAD"):
                answer = await client.request(method, ROW, headers={"If-None-Match": form.format(known)})
                assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", known)

    async def test_a_changed_row_is_sent(self, client: httpx.AsyncClient) -> None:
        known = await etag(client)
        assert (await patch(client, {})).status_code == 204
        answer = await client.get(ROW, headers={"If-None-Match": known})
        assert (answer.status_code, answer.json()[0]["note"]) == (200, "changed")
        assert answer.headers["etag"] != known

    async def test_a_read_can_insist_on_a_version(self, client: httpx.AsyncClient) -> None:
        known = await etag(client)
        assert (await client.get(ROW, headers={"If-Match": known})).status_code == 200
        answered(await client.get(ROW, headers={"If-Match": '"other"'}), 412, "row-changed")
        answered(await client.get("/accounts", headers={"If-Match": known}), 400, "condition-unsupported")

    async def test_an_answer_in_another_time_zone_has_no_etag(self, client: httpx.AsyncClient) -> None:
        """The text of a row, from which the tag is made, is another one there."""
        answer = await client.get(ROW, headers={"Prefer": "timezone=Asia/Tokyo", "If-None-Match": "*"})
        assert (answer.status_code, "etag" in answer.headers) == (200, False)


class TestVersionColumns:
    async def test_a_version_column_is_the_etag(self, client: httpx.AsyncClient, more: None) -> None:
        """As it stands in the JSON of the row, so that lists of rows show the tags as well."""
        assert await etag(client, "/documents?id=eq.1") == '"7"'
        assert await etag(client, "/stamped?id=eq.1") == '"2024-01-02T03:04:05.678+00:00"'

    async def test_a_digest_is_the_etag_without_a_version_column(
        self, client: httpx.AsyncClient, more: None, events: list[Event]
    ) -> None:
        """The version is NULL, or the column does not exist. The latter is announced."""
        for target in ("/documents?id=eq.2", "/mistaken?id=eq.1"):
            assert re.fullmatch(r'"[0-9a-f]{32}"', await etag(client, target))
        warned = [event for event in events if isinstance(event, CatalogWarning) and "version column" in event.warning]
        assert [event.table for event in warned] == ["public.mistaken"]

    async def test_a_condition_on_a_version_column(self, client: httpx.AsyncClient, more: None) -> None:
        headers = {"Fencing-Token": "5", "If-Match": '"7"'}
        first = await client.patch("/documents?id=eq.1", json={"version": 8}, headers=headers)
        assert (first.status_code, first.headers["etag"]) == (204, '"8"')
        answered(await client.patch("/documents?id=eq.1", json={"version": 9}, headers=headers), 412, "row-changed")


class TestWriting:
    async def test_a_write_of_the_version_that_was_read(self, client: httpx.AsyncClient) -> None:
        """Or of one of several versions, or of any. A weak tag matches nothing."""
        for form in ("{0}", '"x", {0}', "*"):
            answer = await patch(client, {"If-Match": form.format(await etag(client))})
            assert (answer.status_code, answer.headers["etag"]) == (204, await etag(client))
        answered(await patch(client, {"If-Match": f"W/{await etag(client)}"}), 412, "row-changed")
        answered(await patch(client, {"If-Match": "x"}), 400, "request-malformed")

    async def test_a_write_of_an_older_version_is_refused(self, client: httpx.AsyncClient, tables: Database) -> None:
        """Two writers of one holder have read the same row. The second to write learns that the first one has."""
        read = await etag(client)
        assert (await patch(client, {"If-Match": read})).status_code == 204
        fence = await row(tables, "SELECT * FROM fencing.fence")
        second = await client.patch(
            ROW,
            json={"note": "lost"},
            headers={"Fencing-Token": "6", "If-Match": read, "Prefer": "return=representation"},
        )
        answered(second, 412, "row-changed")
        now = await etag(client)
        assert second.headers["etag"] == now
        assert now in second.json()["details"]
        assert await rows(tables, "SELECT note FROM accounts WHERE id = 1") == [("changed",)]
        assert await row(tables, "SELECT * FROM fencing.fence") == fence, "the raise is undone too"

    async def test_other_filters_are_part_of_the_row(self, client: httpx.AsyncClient) -> None:
        known = {"If-Match": await etag(client)}
        answered(await patch(client, known, target="/accounts?id=eq.1&owner=eq.bob"), 412, "row-changed")
        assert (await patch(client, known, target="/accounts?id=eq.1&owner=eq.ann")).status_code == 204
        for condition in ("*", '"x"'):
            answer = await patch(client, {"If-Match": condition}, target="/accounts?id=eq.99")
            answered(answer, 412, "row-changed")
            assert "etag" not in answer.headers

    async def test_a_stale_token_is_told_first(self, client: httpx.AsyncClient, tables: Database) -> None:
        assert (await patch(client, {}, token=9)).status_code == 204
        for condition in ({"If-Match": '"other"'}, {"If-Match": await etag(client)}):
            answered(await patch(client, condition, token=8), 412, "token-stale")
        assert await rows(tables, "SELECT count(*) FROM fencing.rejection") == [(2,)]

    async def test_delete(self, client: httpx.AsyncClient, tables: Database) -> None:
        read = await etag(client)
        stale = {"Fencing-Token": "5", "If-Match": '"other"'}
        answered(await client.delete(ROW, headers=stale), 412, "row-changed")
        answer = await client.delete(ROW, headers={"Fencing-Token": "5", "If-Match": read})
        assert (answer.status_code, "etag" in answer.headers) == (204, False)
        answered(await client.delete(ROW, headers={"Fencing-Token": "5", "If-Match": read}), 412, "row-changed")
        assert await rows(tables, "SELECT count(*) FROM accounts") == [(2,)]

    async def test_put_replaces_what_was_read(self, client: httpx.AsyncClient) -> None:
        put = {"id": 1, "owner": "ann", "balance": 11, "note": "put", "extra": None}
        headers = {"Fencing-Token": "5", "If-Match": await etag(client)}
        answer = await client.put(ROW, json=put, headers=headers)
        assert (answer.status_code, answer.headers["etag"]) == (204, await etag(client))
        answered(await client.put(ROW, json=put, headers=headers), 412, "row-changed")

    async def test_put_creates_only(self, client: httpx.AsyncClient, tables: Database) -> None:
        headers = {"Fencing-Token": "5", "If-None-Match": "*", "Prefer": "return=representation"}
        new = {"id": 50, "owner": "new"}
        answer = await client.put("/accounts?id=eq.50", json=new, headers=headers)
        assert (answer.status_code, answer.headers["etag"]) == (201, await etag(client, "/accounts?id=eq.50"))
        again = await client.put("/accounts?id=eq.50", json={"id": 50, "owner": "other"}, headers=headers)
        answered(again, 412, "row-changed")
        assert again.headers["etag"] == answer.headers["etag"]
        assert await rows(tables, "SELECT owner FROM accounts WHERE id = 50") == [("new",)]

    async def test_a_written_row_that_is_returned_has_its_etag(self, client: httpx.AsyncClient) -> None:
        for token in (5, 5, 6):  # raised, held, raised
            answer = await patch(client, {}, token, Prefer="return=representation")
            assert (answer.status_code, answer.headers["etag"]) == (200, await etag(client))
        assert "etag" not in (await patch(client, {})).headers
        many = await patch(client, {}, target="/accounts?id=in.(1)", Prefer="return=representation")
        assert "etag" not in many.headers

    async def test_a_write_of_nothing(self, client: httpx.AsyncClient) -> None:
        known = await etag(client)
        answer = await client.patch(ROW, json={}, headers={"Fencing-Token": "5", "If-Match": known})
        assert (answer.status_code, answer.headers["etag"]) == (204, known)
        changed = await client.patch(ROW, json={}, headers={"Fencing-Token": "5", "If-Match": '"other"'})
        answered(changed, 412, "row-changed")

    async def test_conditions_on_what_is_not_one_row(
        self, client: httpx.AsyncClient, more: None, tables: Database
    ) -> None:
        before = await rows(tables, "SELECT * FROM accounts ORDER BY id")
        for method, target, condition in (
            ("PATCH", "/accounts?owner=eq.ann&id=in.(1,2)", {"If-Match": '"x"'}),
            ("PATCH", "/accounts?id=in.(1)", {"If-Match": '"x"'}),
            ("DELETE", "/accounts?id=in.(1,2)", {"If-Match": "*"}),
            ("DELETE", "/pairs?a=eq.x", {"If-Match": '"x"'}),
            ("POST", "/accounts", {"If-Match": '"x"'}),
            ("POST", "/accounts", {"If-None-Match": "*"}),
            ("PATCH", ROW, {"If-None-Match": "*"}),
            ("DELETE", ROW, {"If-None-Match": "*"}),
            ("PATCH", "/parents?id=eq.1", {"If-Match": "*"}),  # others inherit from it
        ):
            content = {"DELETE": None, "POST": {"id": 77}, "PATCH": {"v": 3} if "parents" in target else {"note": "x"}}
            headers = {"Fencing-Token": "5", **condition}
            answer = await client.request(method, target, json=content[method], headers=headers)
            answered(answer, 400, "condition-unsupported")
            assert answer.json()["hint"]
        assert await rows(tables, "SELECT * FROM accounts ORDER BY id") == before
        assert await rows(tables, "SELECT * FROM fencing.fence") == []

    async def test_conditions_work_on_every_kind_of_table(self, client: httpx.AsyncClient, more: None) -> None:
        changes: list[tuple[str, dict[str, object]]] = [
            ("/odd%20%22name?id=eq.1", {'odd "name': "y"}),
            ("/parted?id=eq.1", {"v": 2}),
        ]
        for target, body in changes:
            headers = {"Fencing-Token": "5", "If-Match": await etag(client, target)}
            answer = await client.patch(target, json=body, headers=headers)
            assert (answer.status_code, answer.headers["etag"]) == (204, await etag(client, target))
            answered(await client.patch(target, json=body, headers=headers), 412, "row-changed")

    async def test_a_time_zone_does_not_change_what_is_compared(self, client: httpx.AsyncClient, more: None) -> None:
        zone = {"Fencing-Token": "5", "Prefer": "timezone=Asia/Tokyo"}
        await client.patch("/documents?id=eq.1", json={"version": None}, headers=zone)
        known = await etag(client, "/documents?id=eq.1")
        answer = await client.patch("/documents?id=eq.1", json={"body": "z"}, headers={**zone, "If-Match": known})
        assert (answer.status_code, "etag" in answer.headers) == (204, False)

    async def test_in_observe_mode_the_condition_still_holds(self, client: httpx.AsyncClient) -> None:
        known = await etag(client, "/watched?id=eq.1")
        assert (await client.patch("/watched?id=eq.1", json={"v": 5}, headers={"If-Match": known})).status_code == 204
        answered(await client.patch("/watched?id=eq.1", json={"v": 6}, headers={"If-Match": known}), 412, "row-changed")


class TestRaces:
    async def test_of_many_conditional_writers_one_wins(self, client: httpx.AsyncClient, tables: Database) -> None:
        """All of one holder, so that the fence lets them in side by side: only the row's lock stands between them."""
        known = await etag(client)
        headers = {"Fencing-Token": "5", "If-Match": known}
        answers = await asyncio.gather(*(
            client.patch(ROW, json={"note": str(n)}, headers=headers) for n in range(12)
        ))  # fmt: skip
        assert sorted(answer.status_code for answer in answers) == [204] + [412] * 11
        winner = next(n for n, answer in enumerate(answers) if answer.status_code == 204)
        assert await rows(tables, "SELECT note FROM accounts WHERE id = 1") == [(str(winner),)]
        now = await etag(client)
        assert {answer.headers["etag"] for answer in answers} == {now}

    async def test_of_many_conditional_creations_one_wins(self, client: httpx.AsyncClient, tables: Database) -> None:
        headers = {"Fencing-Token": "5", "If-None-Match": "*"}
        answers = await asyncio.gather(*(
            client.put("/accounts?id=eq.70", json={"id": 70, "owner": str(n)}, headers=headers) for n in range(12)
        ))  # fmt: skip
        assert sorted(answer.status_code for answer in answers) == [204] + [412] * 11
        winner = next(n for n, answer in enumerate(answers) if answer.status_code == 204)
        assert await rows(tables, "SELECT owner FROM accounts WHERE id = 70") == [(str(winner),)]

    async def test_a_row_that_is_being_changed(
        self, client: httpx.AsyncClient, tables: Database, stranger: asyncpg.Connection
    ) -> None:
        """Another session has changed the row and not committed yet. The gateway compares the row after that commit."""
        known = await etag(client)
        async with stranger.transaction():
            await stranger.execute("UPDATE accounts SET note = 'stranger' WHERE id = 1")
            ours = asyncio.create_task(patch(client, {"If-Match": known}))
            await waiting(tables)
        answered(await ours, 412, "row-changed")
        assert await rows(tables, "SELECT note FROM accounts WHERE id = 1") == [("stranger",)]

    async def test_a_row_created_after_the_check_refuses_the_write(
        self, client: httpx.AsyncClient, tables: Database, stranger: asyncpg.Connection
    ) -> None:
        """Another session inserts the row. Our insert waits until that session commits."""
        headers = {"Fencing-Token": "5", "If-None-Match": "*"}
        async with stranger.transaction():
            await stranger.execute("INSERT INTO accounts (id, owner) VALUES (80, 'stranger')")
            put = client.put("/accounts?id=eq.80", json={"id": 80, "owner": "us"}, headers=headers)
            ours = asyncio.create_task(put)
            await waiting(tables)
        answered(await ours, 412, "row-changed")
        assert await rows(tables, "SELECT owner FROM accounts WHERE id = 80") == [("stranger",)]
