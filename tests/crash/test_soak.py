"""Everything at random, for a short while; for longer: ``python -m tests.crash.soak``."""

import asyncio
from pathlib import Path

import pytest

from tests.crash.history import REMOVAL, Attempt, Broken, Deed, History, Said, Seen, Span
from tests.crash.replication import Change, Commit, Row
from tests.crash.soak import losses
from tests.crash.soak import storm as storms
from tests.crash.soak.run import play

SEED = 6  # the store is as on AWS
KEY, JOB = "jobs/1/a", "job/1"


@pytest.mark.thorough
def test_the_promises_hold_whatever_happens() -> None:
    try:
        counted = play(SEED, 8)
    except Broken as broken:
        raise AssertionError(f"python -m tests.crash.soak --seed {SEED}") from broken
    assert counted["deeds"] > 0


@pytest.mark.thorough
def test_fresh_holders_are_accepted_soon_after_a_storm() -> None:
    """For longer: ``python -m tests.crash.soak.storm``."""
    storm = storms.play(SEED, 15, 1)
    assert storm.deeds > 0
    storm.check()


@pytest.mark.thorough
def test_what_was_acknowledged_holds_though_the_database_goes_back(tmp_path: Path) -> None:
    played = losses.play(200, SEED, "sync", ("rewinds",), tmp_path / "history", patience=1)
    verdict = asyncio.run(played).verdict
    assert verdict.violations == []
    assert verdict.figures["rewinds"] > 0
    assert verdict.figures["answers: done"] > 0


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


# The soak is worth what its checks are worth -------------------------------------------------------------------------


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
        ("P2.*after", (OLD, deed(0, 34, Said.DONE, 0, 2, kind="barrier", place=JOB)), (mutation(3, 1),)),
        ("P2.*after", (OLD, deed(2, 34, Said.REPLAYED, 0, 2, **IN_ROW)), (mutation(3, 1),)),
        ("P2.*tags.*after", (OLD, NEW, deed(3, 33, Said.NOTHING, 0, 2**60, kind="tags")),
            (mutation(1, 1), mutation(3, 2), tagged(5, 3))),
        ("P3.*has the tags", (OLD, deed(2, 34, Said.DONE, 2, 4, kind="tags")),
            (mutation(1, 1), tagged(3, 2), mutation(5, 1))),
        ("P2.*removed", (OLD, NEW, deed(0, 33, Said.NOTHING, 0, 2**60, kind=REMOVAL)),
            (mutation(1, 1, version="a"), mutation(3, 2, version="b"), mutation(5, None, version="b"))),
        ("P3.*allows", (deed(1, 33, Said.REFUSED, 0, 2),), (mutation(1, 1),)),
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
