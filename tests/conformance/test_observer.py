"""The comparison itself: what differs by nature is no difference, and everything else is one."""

from typing import Any

import pytest

from tests.conformance.observer import Step, compare


def step(**seen: Any) -> Step:
    return {"operation": "get_object", "status": 200, "headers": {"etag": "e"}, "answer": {"Body": "x"}, **seen}


def test_the_same_is_the_same() -> None:
    assert compare([step(), step()], [step(), step()]) == []


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"status": 206}, "1 get_object status: 200 → 206"),
        ({"headers": {}}, "1 get_object headers etag: 'e' → absent"),
        ({"headers": {"etag": "e", "expires": "0"}}, "1 get_object headers expires: absent → '0'"),
        ({"answer": {"Body": "y"}}, "1 get_object answer Body: 'x' → 'y'"),
        ({"code": "NoSuchKey"}, "1 get_object code: absent → 'NoSuchKey'"),
    ],
)
def test_whatever_is_not_the_same_is_said(other: dict[str, Any], said: str) -> None:
    assert compare([step()], [step(**other)]) == [said]


def test_a_step_that_is_missing_is_said() -> None:
    assert compare([step(), step()], [step()]) == ["2 steps → 1 steps"]


def test_a_refusal_may_have_a_code_where_the_store_gives_none() -> None:
    refused = step(status=400, code=None)
    assert compare([refused], [refused | {"code": "MalformedXML"}]) == []
    assert compare([refused | {"code": "MalformedXML"}], [refused | {"code": "Other"}]) != []
