"""Every durable step has a name, an operator can look it up, and these tests stop at it."""

import re
from typing import get_args

import pytest

from gateway.objects.run import runner
from gateway.observe.events import Plane, StepReached
from gateway.tables.execute import fast_path, transaction
from tests import ROOT
from tests.crash.kinds import EVERY, TABLES, Kind
from tests.crash.stage import Stage

_OPERATIONS = ROOT / "docs" / "operations.md"


def announced() -> set[str]:
    """All names the product can announce."""
    of_objects = {f"objects.{name}.{moment}" for name in runner._STEPS.values() for moment in ("before", "after")}
    of_paths = (*vars(fast_path).values(), *vars(transaction).values())
    of_tables = {value.name for value in of_paths if isinstance(value, StepReached)}
    of_refusals = {f"{plane}.reject.{moment}" for plane in get_args(Plane) for moment in ("before", "after")}
    return of_objects | of_tables | of_refusals


def test_every_step_is_stopped_at() -> None:
    assert {step for kind in EVERY for step in kind.path} == announced()


def test_every_step_is_documented() -> None:
    listed = re.findall(r"^\| `((?:objects|tables|api)\.[a-z-]+\.[a-z]+)` \|", _OPERATIONS.read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == announced()


@pytest.mark.parametrize("kind", EVERY, ids=str)
def test_an_unharmed_write_passes_its_steps(stage: Stage, kind: Kind) -> None:
    """So that no case below stops at a step that another path would have to itself."""
    _pass(stage, kind)


@pytest.mark.parametrize("kind", TABLES, ids=str)
def test_a_write_under_a_role_passes_the_same_steps(role_stage: Stage, kind: Kind) -> None:
    _pass(role_stage, kind)


def _pass(stage: Stage, kind: Kind) -> None:
    with stage.story() as story:
        kind.prepare(story)
        passed = story.unharmed(kind.token, kind.deed)
        if kind.deed.writes == 1:
            assert passed == list(kind.path)
        else:
            assert sorted(passed) == sorted(kind.path)
        story.resumed()
