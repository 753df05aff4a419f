"""The lists: an address becomes filters; they are filtered without loading the page again, and go on page by page."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from gateway.errors import RequestMalformed
from gateway.fencing.record import Kind
from gateway.fencing.token import Token
from gateway.web.record_lists import read_filters
from tests.web import story
from tests.web.stage import Stage

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)


def test_fields_become_filters_and_those_that_say_nothing_do_not() -> None:
    asked = read_filters(
        [
            ("prefix", "public."),
            ("holder", ""),
            ("enforced", "false"),
            ("token", "2.34"),
            ("since", "2026-03-01T04:05"),
            ("junk", "x"),
        ],
        NOW,
        (Kind.REJECTION,),
    )
    assert asked.filters.prefix == "public."
    assert asked.filters.holder is None
    assert asked.filters.enforced is False
    assert asked.filters.token == Token(2, 34)
    assert asked.filters.since == datetime(2026, 3, 1, 4, 5, tzinfo=UTC)
    assert asked.filters.kinds == (Kind.REJECTION,)
    assert asked.fields == {"prefix": "public.", "enforced": "false", "token": "2.34", "since": "2026-03-01T04:05:00"}


def test_a_list_of_one_kind_is_of_no_other_and_a_span_ends_now_unless_a_time_is_given() -> None:
    assert read_filters([("kind", "raised")], NOW, (Kind.REJECTION,)).filters.kinds == (Kind.REJECTION,)
    assert read_filters([("kind", "raised"), ("kind", "barrier")], NOW).filters.kinds == (Kind.RAISED, Kind.BARRIER)
    assert read_filters([], NOW).filters.kinds == ()
    assert read_filters([("span", "7d")], NOW).filters.since == NOW - timedelta(days=7)
    asked = read_filters([("span", "7d"), ("since", "2026-03-08T13:00+02:00")], NOW)
    assert asked.filters.since == datetime(2026, 3, 8, 11, tzinfo=UTC)


def test_exports_get_moments_for_spans() -> None:
    sent = [("span", "1h"), ("caller", "a&b"), ("until", "2026-03-08T11:30:00.5Z"), ("kind", "raised")]
    asked = read_filters(sent, NOW)
    assert asked.exported == [
        ("caller", "a&b"),
        ("since", "2026-03-08T11:00:00+00:00"),
        ("until", "2026-03-08T11:30:00.500000+00:00"),
        ("kind", "raised"),
    ]


@pytest.mark.parametrize(
    "field",
    [
        ("since", "9999-12-31T23:59-23:00"),
        ("until", "0001-01-01T00:00"),
        ("since", "12"),
        ("span", "1w"),
        ("before", "1e3"),
        ("after", "٣"),
        ("token", "-1"),
        ("kind", "all"),
        ("enforced", "maybe"),
        ("reason", "bogus"),
        ("rule", "a\0b"),
        ("caller", "x" * 1025),
    ],
)
def test_an_unreadable_field_is_named(field: tuple[str, str]) -> None:
    with pytest.raises(RequestMalformed, match=f"^{field[0]}: "):
        read_filters([field], NOW)


AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


def rows(page: Page) -> list[str]:
    """The text of each row of the list."""
    return page.locator("#list tbody tr").all_inner_texts()


def test_filters_narrow_the_list_without_loading_the_page(visit: Callable[..., Page], stage: Stage) -> None:
    story.tell(stage, stage.now)
    page = visit("/ui/rejections")
    expect(page.get_by_role("status")).to_have_text("17 writes")
    page.evaluate("window.stayed = true")
    page.get_by_label("Resource begins with").fill("public.")
    expect(page.get_by_role("status")).to_have_text("5 writes")
    page.get_by_label("Outcome").select_option("Refused")
    expect(page.get_by_role("status")).to_have_text("1 write")
    assert "cron-green" in rows(page)[0]
    # The address says what is shown, and nothing else.
    expect(page).to_have_url(f"{stage.origin}/ui/rejections?prefix=public.&enforced=true")
    assert page.evaluate("window.stayed")
    page.reload()
    expect(page.get_by_role("status")).to_have_text("1 write")
    expect(page.get_by_label("Resource begins with")).to_have_value("public.")
    page.go_back()
    expect(page.get_by_role("status")).to_have_text("5 writes")
    page.get_by_role("link", name="Clear").click()
    expect(page.get_by_role("status")).to_have_text("17 writes")


def test_the_list_goes_on_page_by_page_both_ways(visit: Callable[..., Page], stage: Stage) -> None:
    stage.put_on_record(
        [
            story.rejection(AT + timedelta(seconds=index), f"public.orders/{index}", 1, "a-1", (2, "b-1"))
            for index in range(120)
        ]
    )
    page = visit("/ui/rejections")
    expect(page.get_by_role("status")).to_have_text("120 writes")
    seen = rows(page)
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_text("public.orders/69", exact=True)).to_be_visible()
    second = rows(page)
    page.get_by_role("link", name="Older").click()
    expect(page.get_by_text("public.orders/19", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Older")).to_have_count(0)
    resources = [re.search(r"public\.orders/\d+", row)[0] for row in [*seen, *second, *rows(page)]]  # type: ignore[index]
    assert resources == [f"public.orders/{index}" for index in reversed(range(120))]
    page.get_by_role("link", name="Newer").click()
    expect(page.get_by_text("public.orders/69", exact=True)).to_be_visible()
    assert rows(page) == second
    page.get_by_role("link", name="Newer").click()
    expect(page.get_by_text("public.orders/119", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Newer")).to_have_count(0)
