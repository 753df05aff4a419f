"""Columns of a terminal: they fit, and what matters most is kept longest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gateway.commands.columns import GAP, cut, fit, shorten


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("compactor-host-17", 17, "compactor-host-17"),
        ("compactor-host-17", 11, "compa…st-17"),
        ("写入者写入者", 12, "写入者写入者"),
        ("写入者写入者", 7, "写…者"),
        ("abc", 2, "…"),
        ("abc", 0, ""),
    ],
)
def test_a_long_name_loses_its_middle(text: str, width: int, shown: str) -> None:
    assert shorten(text, width) == shown


@given(st.text(), st.integers(0, 60))
def test_a_shortened_text_fits(text: str, width: int) -> None:
    assert cell_len(shorten(text, width)) <= width
    assert cell_len(cut(text, width)) <= max(width, 1)


@given(st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 300), min_size=1), st.integers(30, 250))
def test_columns_fit_and_those_that_are_needed_stay(wanted: dict[str, int], room: int) -> None:
    widths = fit(wanted, room, [name for name in "gfedc" if name in wanted], {"a": 19})
    assert sum(widths.values()) + GAP * (len(widths) - 1) <= room
    assert {"a", "b"} & wanted.keys() <= widths.keys()
    assert all(1 <= width <= wanted[name] for name, width in widths.items())


def test_nothing_shrinks_that_fits() -> None:
    wanted = {"a": 19, "b": 20, "c": 0, "d": 37}
    assert fit(wanted, 80, ["d"], {}) == {"a": 19, "b": 20, "d": 37}
    assert fit(wanted, 79, ["d"], {}) == {"a": 19, "b": 20, "d": 36}
    assert fit(wanted, 40, ["d"], {"a": 19, "b": 19}) == {"a": 19, "b": 19}
