"""Everything at random, for a short while; for longer: ``python -m tests.crash.soak``.

Each kind of violation is found in a forged history by the judges of the soaks, and an honest one passes.
"""

import asyncio
import json
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.crash.history import REMOVAL, Attempt, Broken, Change, Commit, Deed, History, Row, Said, Seen, Span
from tests.crash.soak import losses
from tests.crash.soak.checker import Checker
from tests.crash.soak.proxy import Proxy
from tests.crash.soak.servers import Database
from tests.crash.soak.writers import play
from tests.postgres import memory_or_disk
from tests.waiting import PATIENCE

SEED = 6  # the store is as on AWS
KEY, JOB = "jobs/1/a", "job/1"


@pytest.mark.thorough
def test_the_promises_hold_whatever_happens() -> None:
    try:
        counted = play(SEED, 8)
    except Broken as broken:
        raise AssertionError(f"python -m tests.crash.soak --seed {SEED}") from broken
    assert counted["deeds"] > 0


@pytest.mark.nightly
@pytest.mark.thorough
def test_fresh_holders_are_accepted_soon_after_a_storm(tmp_path: Path) -> None:
    """None of these faults loses anything. Bytes that were there before come back, too."""
    storm = ("gateways", "requests", "statements", "crashes", "stores", "cuts")
    result = asyncio.run(losses.play(1500, SEED, "sync", storm, tmp_path / "history", losses.AT_LAST))
    assert result.verdict.violations == []
    assert result.counted[losses.NOT_HAD] == 0
    assert result.counted[losses.UNTIL_ALL] <= 10


@pytest.mark.nightly
@pytest.mark.thorough
def test_what_was_acknowledged_holds_though_the_database_goes_back(tmp_path: Path) -> None:
    played = losses.play(200, SEED, "sync", ("rewinds",), tmp_path / "history", patience=1)
    verdict = asyncio.run(played).verdict
    assert verdict.violations == []
    assert verdict.figures["rewinds"] > 0
    assert verdict.figures["answers: done"] > 0


@pytest.mark.nightly
@pytest.mark.thorough
def test_of_two_databases_one_goes_on_while_the_other_is_down(tmp_path: Path) -> None:
    """Gateways are paused and killed, and each server is ended and paused. After a rewind, its objects would wait."""
    faults = ("gateways", "outages", "statements")
    both = ("north", "south")
    played = losses.play(2500, SEED, "sync", faults, tmp_path / "history", patience=1, databases=both)
    verdict = asyncio.run(played).verdict
    assert verdict.violations == []
    assert verdict.figures["requests while another database was down"] >= losses.OTHERS
    assert verdict.figures["answers: done"] > 0


@pytest.mark.thorough
def test_a_proxy_sends_requests_twice_and_drops_the_second_answer() -> None:
    arrived: list[bytes] = []

    class Target(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            arrived.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(204)
            self.end_headers()

    with HTTPServer(("127.0.0.1", 0), Target) as server, Proxy(server.server_port) as proxy:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        proxy.repeat(PATIENCE)
        deadline, sent = time.monotonic() + PATIENCE, 0
        while len(arrived) == len(set(arrived)):
            assert time.monotonic() < deadline, "no request has come twice"
            sent += 1
            body = f"{sent}".encode()
            assert httpx.put(f"http://127.0.0.1:{proxy.port}/", content=body, timeout=PATIENCE).status_code == 204
            assert body in arrived
        server.shutdown()


@pytest.mark.nightly
@pytest.mark.thorough
def test_a_slow_disk_delays_each_commit(tmp_path: Path) -> None:
    def seconds(name: str) -> float:
        begun = time.monotonic()
        database.execute(*(f"CREATE TABLE {name}_{number} ()" for number in range(5)))
        return time.monotonic() - begun

    with tempfile.TemporaryDirectory(dir=memory_or_disk(), ignore_cleanup_errors=True) as directory:
        database = Database(Path(directory))
        try:
            with database.slow_disk():
                assert seconds("slow") >= 0.5
            assert min(map(seconds, ("fast", "quick", "swift"))) < 0.5
        finally:
            database.close()


# A soak is worth what its checks are worth. First the one with sight of all effects, tests/crash/history.py ----------


def deed(mark: int, token: int, said: Said, before: int, after: int, *, kind: str = "put", place: str = KEY) -> Deed:
    """One request, which was sent and answered at the same numbers in seconds as in steps of the store."""
    return Deed(kind, mark, place, [Attempt({JOB: (0, token)}, said, Span(before, after, before, after))])


def mutation(
    sequence: int, mark: int | None, *, tags: int | None = None, version: str | None = None
) -> dict[str, object]:
    """Return the log entry of a put, a copy, a completion or a delete. ``tags``: the mark of the deed that set them."""
    left = {"etag": None if mark is None else "e", "metadata": _marked(mark), "tags": _marked(tags)}
    return {"sequence": sequence, "operation": "PutObject", "key": KEY, "version_id": version, **left}


def tagged(sequence: int, tags: int) -> dict[str, object]:
    return {**mutation(sequence, None, tags=tags), "operation": "PutObjectTagging", "etag": "e"}


def _marked(mark: int | None) -> dict[str, str]:
    return {} if mark is None else {"soak": str(mark)}


def fence(token: int) -> Change:
    return Change("fencing.fence", None, {"resource": JOB, "epoch": "0", "value": str(token)})


def row(mark: int, before: int | None = None) -> Change:
    old: Row | None = None if before is None else {"id": "1", "job": "1", "mark": str(before)}
    return Change("public.entries", old, {"id": "1", "job": "1", "mark": str(mark)})


def check(
    *deeds: Deed,
    mutations: tuple[dict[str, object], ...] = (),
    commits: tuple[Commit, ...] = (),
    looks: tuple[Seen, ...] = (),
) -> None:
    history = History({KEY: JOB})
    history.deeds += deeds
    history.looks += looks
    history.check(mutations, commits)


OLD, NEW = deed(1, 33, Said.NOTHING, 0, 2**60), deed(2, 34, Said.DONE, 2, 4)
IN_ROW: dict[str, str] = {"kind": "row", "place": "row 1"}


def test_what_is_in_order_is_not_complained_of() -> None:
    raised = (Commit([fence(34)]),)
    looks = (Seen(KEY, 2, Span(5, 6, 5, 6)),)
    check(OLD, NEW, mutations=(mutation(1, 1), mutation(3, 2)), commits=raised, looks=looks)
    settled = (mutation(1, 1), tagged(3, 2), mutation(4, 1, tags=2))
    check(OLD, deed(2, 34, Said.DONE, 2, 4, kind="tags"), mutations=settled, commits=raised)
    uncovered = (mutation(1, 1, version="a"), mutation(3, 2, version="b"), mutation(5, None, version="b"))
    before_and_after = (Seen(KEY, 2, Span(3, 4, 3, 4)), Seen(KEY, 1, Span(6, 7, 6, 7)))
    removal = deed(0, 34, Said.DONE, 4, 6, kind=REMOVAL)
    check(OLD, NEW, removal, mutations=uncovered, commits=raised, looks=before_and_after)
    check(deed(1, 33, Said.DONE, 0, 9, **IN_ROW), commits=(Commit([fence(33), row(1)]),))


@pytest.mark.parametrize(
    ("promise", "deeds", "mutations"),
    [
        ("P2.*after", (OLD, NEW), (mutation(3, 2), mutation(5, 1))),
        ("P2.*removed", (OLD, NEW), (mutation(3, 2), mutation(5, None))),
        ("P2.*replaced", (OLD, deed(2, 34, Said.NOTHING, 0, 2**60)), (mutation(3, 2), mutation(5, 1))),
        ("P2.*after", (OLD, deed(2, 34, Said.REPLAYED, 0, 2, **IN_ROW)), (mutation(3, 1),)),
        ("P2.*tags.*after", (OLD, NEW, deed(3, 33, Said.NOTHING, 0, 2**60, kind="tags")),
            (mutation(1, 1), mutation(3, 2), tagged(5, 3))),
        ("P3.*has the tags", (OLD, deed(2, 34, Said.DONE, 2, 4, kind="tags")),
            (mutation(1, 1), tagged(3, 2), mutation(5, 1))),
        ("P2.*removed", (OLD, NEW, deed(0, 33, Said.NOTHING, 0, 2**60, kind=REMOVAL)),
            (mutation(1, 1, version="a"), mutation(3, 2, version="b"), mutation(5, None, version="b"))),
        ("P3.*allows", (deed(1, 33, Said.NOT_DONE, 0, 2),), (mutation(1, 1),)),
        ("P3.*without an effect", (NEW,), ()),
        ("P3.*twice", (OLD, deed(2, 33, Said.DONE, 2, 4)), (mutation(1, 1), mutation(3, 2), mutation(4, 1))),
        ("P3.*acknowledgement of", (deed(1, 34, Said.UNKNOWN, 0, 1), NEW), (mutation(3, 2), mutation(5, 1))),
    ],
)  # fmt: skip
def test_broken_promises_of_keys_are_seen(
    promise: str, deeds: tuple[Deed, ...], mutations: tuple[dict[str, object], ...]
) -> None:
    with pytest.raises(Broken, match=promise):
        check(*deeds, mutations=mutations)


def test_a_look_at_something_else_is_seen() -> None:
    with pytest.raises(Broken, match=r"P3.*not what was there"):
        check(OLD, NEW, mutations=(mutation(1, 1), mutation(3, 2)), looks=(Seen(KEY, 1, Span(5, 6, 5, 6)),))


@pytest.mark.parametrize(
    ("promise", "deeds", "commits"),
    [
        ("P1.*under", (deed(1, 33, Said.NOTHING, 0, 9, **IN_ROW),), (Commit([fence(34)]), Commit([row(1)]))),
        ("P1.*went from", (), (Commit([fence(34)]), Commit([fence(33)]))),
        ("P1.*asked for", (), (Commit([Change("public.entries", {"id": "1", "job": "1", "mark": "1"}, None)]),)),
        ("P1.*the fence of", (deed(0, 34, Said.DONE, 0, 9, kind="barrier", place=JOB),), (Commit([fence(33)]),)),
        ("P3.*refused", (deed(1, 33, Said.IDLE, 0, 9, **IN_ROW),), (Commit([fence(33), row(1)]),)),
        ("P3.*twice", (deed(1, 33, Said.DONE, 0, 9, **IN_ROW),), (Commit([fence(33), row(1)]), Commit([row(1, 1)]))),
        ("P3.*not committed", (deed(1, 33, Said.DONE, 0, 9, **IN_ROW),), (Commit([fence(33)]),)),
        (
            "P3.*sent later",
            (deed(1, 33, Said.DONE, 0, 1, **IN_ROW), deed(2, 33, Said.DONE, 2, 3, **IN_ROW)),
            (Commit([fence(33), row(2)]), Commit([row(1, 2)])),
        ),
    ],
)
def test_broken_promises_of_rows_are_seen(promise: str, deeds: tuple[Deed, ...], commits: tuple[Commit, ...]) -> None:
    with pytest.raises(Broken, match=promise):
        check(*deeds, commits=commits)


# The judge of the soak with losses, tests/crash/soak/checker.py ----------------------------------------------------

REWIND = {"line": "rewind", "storage": ["rows/"], "since": 10, "from": 20, "until": 21}
_requests = count()


def operation(
    answer: str, token: int, sent: float, answered: float | None, content: int | None = None, place: str = "rows/1"
) -> dict[str, Any]:
    """A write of the place; with no place, a barrier."""
    writes = [[place, JOB, content]] if place else []
    times = {"sent": sent, "answered": answered, "request": f"request {next(_requests)}"}
    return {"line": "operation", "answer": answer, "tokens": {JOB: [0, token]}, "writes": writes, **times}


def read(content: int | None, sent: float, answered: float, place: str = "rows/1") -> dict[str, Any]:
    return {"line": "read", "place": place, "content": content, "sent": sent, "answered": answered}


def final(fence: int, places: dict[str, int] | None = None, refusals: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"line": "final", "at": 99, "places": places or {}, "fences": {JOB: [0, fence]}, "refusals": refusals}


def mode(name: str) -> dict[str, Any]:
    return {"line": "mode", "mode": name, "late": 2}


def kinds(*lines: dict[str, Any]) -> list[str]:
    """The kinds of violations that are found."""
    return [one.kind for one in Checker(map(json.dumps, lines)).check().violations]


def at_end(content: int) -> dict[str, Any]:
    return final(2, {"rows/1": content})


def barrier(token: int, sent: float, answered: float) -> dict[str, Any]:
    return operation("done", token, sent, answered, place="")


FIRST, SECOND = operation("done", 1, 1, 2, 101), operation("done", 2, 3, 4, 102)


def test_an_honest_history_passes() -> None:
    stale = operation("stale", 1, 5, 6, 103)
    late = operation("nothing", 1, 1, None, 104)
    unknown = operation("unknown", 2, 7, 8, 105)
    removal = operation("done", 2, 9, 10)
    lines = (
        *(FIRST, late, SECOND, stale, unknown, removal),
        *(read(None, 0, 1), read(101, 1, 3), read(104, 1.5, 3.5), read(102, 3.5, 6), read(None, 9.5, 11)),
        final(2, refusals=(stale["request"],)),
    )
    assert kinds(mode("sync"), *lines) == []


@pytest.mark.parametrize(
    ("kind", "lines"),
    [
        # Effects of stale writes
        ("stale write took effect", (operation("nothing", 1, 5, None, 103), SECOND, read(103, 6, 7), at_end(102))),
        ("stale write took effect", (operation("nothing", 1, 3, None, 103), barrier(2, 1, 2), at_end(103))),
        ("stale write took effect",
            (operation("unknown", 1, 3, 5, 103, "objects/a"), barrier(2, 1, 2), read(103, 6, 7, "objects/a"),
             final(2))),
        ("stale write took effect",
            (operation("nothing", 1, 12, None, 103), barrier(2, 11, 12), REWIND, operation("nothing", 1, 30, None, 104),
             at_end(104))),
        # Effects of refused writes
        ("refused write took effect", (operation("not done", 2, 1, 2, 103), read(103, 3, 4), final(2))),
        ("refused write took effect", (operation("idle", 2, 1, 2, 103), at_end(103))),
        # Acknowledged writes that are gone
        ("acknowledged write lost", (FIRST, SECOND, read(101, 5, 6), at_end(102))),
        ("acknowledged write lost", (operation("done", 1, 1, 2, 101, "objects/a"), REWIND, final(2))),
        ("acknowledged write lost", (FIRST, REWIND, final(2))),
        ("acknowledged write lost", (FIRST, operation("done", 1, 3, 4), final(1, {"rows/1": 101}))),
        # Tokens that went back
        ("token went back", (SECOND, operation("done", 1, 5, 6, 103), at_end(103))),
        ("token went back", (barrier(2, 1, 2), operation("idle", 1, 3, 4), final(2))),
        ("token went back", (barrier(2, 1, 2), final(1))),
        ("token went back", (barrier(2, 11, 12), REWIND, barrier(1, 30, 31), final(2))),
        # Refusals without an entry
        ("refusal not on record", (SECOND, operation("stale", 1, 5, 6, 103), at_end(102))),
        ("refusal not on record", (operation("stale", 1, 5, 6, 103), REWIND, final(2))),
        # Contents without a writer
        ("phantom", (final(0, {"rows/1": 7}),)),
        ("phantom", (operation("done", 1, 5, 6, 7), read(7, 1, 2), final(1, {"rows/1": 7}))),
        ("incomplete", (SECOND,)),
    ],
)  # fmt: skip
def test_a_violation_is_found(kind: str, lines: tuple[dict[str, Any], ...]) -> None:
    assert kind in kinds(mode("sync"), *lines)


@pytest.mark.parametrize("name", ["off", "async", "sync"])
def test_a_rewind_may_take_rows_and_refusals_in_every_mode(name: str) -> None:
    gone = operation("done", 1, 11, 12, 103)
    stale = operation("stale", 0, 11, 12, 104)
    assert kinds(mode(name), FIRST, gone, stale, REWIND, read(103, 13, 14), final(1, {"rows/1": 101})) == []


def test_a_read_while_the_storage_goes_back_proves_nothing() -> None:
    assert kinds(mode("sync"), FIRST, REWIND, read(None, 20.5, 20.6), final(1, {"rows/1": 101})) == []


@pytest.mark.parametrize(
    ("name", "early", "late"), [("off", True, True), ("async", False, True), ("sync", False, False)]
)
def test_a_rewind_may_take_the_tokens_that_the_mode_does_not_keep(name: str, *, early: bool, late: bool) -> None:
    """``early``: acknowledged seconds before the loss; ``late``: right before it."""
    stale = operation("done", 1, 30, 31, 103)
    for answered, forgiven in ((12, early), (19.5, late)):
        history = (barrier(2, 11, answered), REWIND, stale, final(1, {"rows/1": 103}))
        assert (kinds(mode(name), *history) == []) is forgiven


def test_a_rewind_of_the_database_takes_the_tokens_of_objects() -> None:
    """An overtaken holder may then replace an object that is still there. No object is lost."""
    place = "objects/1"
    newer, older = operation("done", 2, 12, 13, 102, place), operation("done", 1, 25, 26, 103, place)
    lines = (newer, REWIND, older, read(103, 27, 28, place), final(1, {place: 103}))
    assert kinds(mode("off"), *lines) == []
    assert "stale write took effect" in kinds(mode("sync"), *lines)
    assert kinds(mode("off"), newer, REWIND, read(None, 27, 28, place), final(2, {place: 102})) == [
        "acknowledged write lost"
    ]


def test_what_a_rewind_cannot_have_taken_counts_in_every_mode() -> None:
    """It was acknowledged before the backup, or after the loss."""
    for sent in (5, 25):
        history = (barrier(2, sent, sent + 1), REWIND, operation("done", 1, 30, 31, 103), at_end(103))
        assert "token went back" in kinds(mode("off"), *history)


def of(resource: str, told: dict[str, Any]) -> dict[str, Any]:
    """Return the same operation about another resource, and about rows of its own."""
    writes = [[f"south/{place}", resource, content] for place, _, content in told["writes"]]
    return {**told, "tokens": {resource: told["tokens"][JOB]}, "writes": writes}


def test_a_rewind_of_one_database_takes_nothing_of_another() -> None:
    rewind = {**REWIND, "storage": ["south/rows/"], "resources": ["south/"]}
    gone, stale = of("south/1", operation("done", 2, 11, 12, 103)), of("south/1", operation("stale", 0, 11, 12, 104))
    end = {**final(2, {"rows/1": 102}), "fences": {JOB: [0, 2], "south/1": [0, 0]}}
    assert kinds(mode("off"), FIRST, SECOND, gone, stale, rewind, end) == []
    for here in (SECOND, barrier(2, 11, 12)):
        again = operation("done", 1, 30, 31, 105)
        assert "token went back" in kinds(mode("off"), here, rewind, again, final(2, {"rows/1": 105}))
    lost = operation("done", 2, 11, 12, 102)
    assert "acknowledged write lost" in kinds(mode("off"), FIRST, lost, rewind, final(2, {"rows/1": 101}))
    unrecorded = operation("stale", 0, 11, 12, 106)
    assert kinds(mode("off"), unrecorded, rewind, final(0)) == ["refusal not on record"]


@pytest.mark.parametrize(
    ("requests", "few", "found"), [(3, 1, []), (4, 1, ["outage"]), (3, 0, ["outage"])], ids=["good", "idle", "failing"]
)
def test_in_an_outage_another_database_has_to_go_on(requests: int, few: int, found: list[str]) -> None:
    outage = {"line": "outage", "resources": ["job/"], "from": 10, "until": 20, "requests": requests, "few": few}
    meanwhile = (operation("done", 2, 11, 12, 102), operation("unknown", 2, 13, 14), operation("stale", 1, 15, 16))
    others = (operation("not done", 2, 9, 12), operation("not done", 2, 19, 21), operation("nothing", 2, 11, None))
    down = of("south/1", operation("not done", 1, 12, 15))
    end = final(2, {"rows/1": 102}, (meanwhile[2]["request"],))
    assert [kind.split()[1] for kind in kinds(mode("sync"), *meanwhile, *others, down, outage, end)] == found
