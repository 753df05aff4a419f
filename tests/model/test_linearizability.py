"""A checker from elsewhere agrees with the explorer, from what clients see alone.

Porcupine judges the answers of the clients and what one more client reads after each step. It knows no intents.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from gateway.fencing.intent import Duplicates
from tests.crash.porcupine import NotHere, Porcupine
from tests.model.client_history import Line, client_history, random_way
from tests.model.explorer import Explorer, Scope
from tests.model.test_protocol import SCOPES, STORIES, Weakened, tiered_weakened

pytestmark = pytest.mark.installed
WAYS = 6
"""Random ways through each scope, to its end."""
UNSEEN = "another ETag than the condition's"
"""The copy writes the same object again, with the same metadata, while nothing newer is there. No client can tell."""
ANSWERS_SUFFICE = {
    "forbidden ETags",
    "forbidding for bumps",
    "forbidding what a write settles",
    "marking what is being settled",
    "a settler's own write-id",
    "a tombstone",
    "waiting before bytes return",
}
"""In nearly all other cases, a client must have read the key before the late request took effect."""


@pytest.fixture(scope="module")
def porcupine(tmp_path_factory: pytest.TempPathFactory) -> Porcupine:
    try:
        return Porcupine.built(tmp_path_factory.mktemp("porcupine"))
    except NotHere as reason:
        pytest.skip(str(reason))


def written(path: Path, lines: Iterable[Line]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize("weakened", tiered_weakened())
def test_each_weakened_protocol_is_not_linearizable(
    weakened: Weakened, porcupine: Porcupine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explorer, broken = weakened.shortest_way(monkeypatch)
    read, unread = porcupine.judge(
        written(tmp_path / "read", client_history(explorer, broken.way)),
        written(tmp_path / "unread", client_history(explorer, broken.way, reading=False)),
    )
    assert bool(read.broken) is (weakened.without != UNSEEN)
    assert unread.broken or weakened.without not in ANSWERS_SUFFICE
    assert not read.undecided
    assert not unread.undecided


def test_the_protocol_is_linearizable(porcupine: Porcupine, tmp_path: Path) -> None:
    def ways(scope: Scope) -> Iterable[Path]:
        for number in range(WAYS):
            explorer = Explorer(scope)
            way = random_way(explorer, Random(f"{scope.name}/{number}"))
            yield written(tmp_path / f"{scope.name} {number}", client_history(explorer, way))

    copies = (replace(one, again=2, losses=0, duplicates=Duplicates.WAIT) for one in STORIES)
    histories = [path for scope in (*SCOPES, *copies) for path in ways(scope)]
    verdicts = porcupine.judge(*histories)
    assert [path.name for path, one in zip(histories, verdicts, strict=True) if not one.linearizable] == []
    assert len(verdicts) > 400
    assert sum(one.operations for one in verdicts) > 10_000
