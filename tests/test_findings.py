"""Each question of the list is asked by each rendering that the list names for it, and by no other."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gateway import serving, targets
from gateway.changes import ownership
from gateway.commands import serve
from gateway.commands.serve import Origin
from gateway.demo.embedded import EmbeddedPostgres
from gateway.doctor import examination
from gateway.fencing.incident import Notable
from gateway.findings import QUESTIONS, Rendering, asked_by, plain, question
from gateway.objects.store.operations import Upstream
from gateway.observe import logs
from gateway.observe.events import LINES, BypassFound, GuardRefused, ServiceUnreachable
from gateway.observe.gauges import DatabaseGauges
from gateway.web.overview_verdict import assess
from tests.observe.scene import scene
from tests.running import config
from tests.web.test_overview import EARLIER, IDLE, NOW, QUIET, UNSEALED, UNSETTLED, said

PROVOKED: dict[str, dict[str, Any]] = {
    "postgres": {"health": {"postgres": "unreachable"}},
    "run": {"journal": "missing"},
    "s3": {"health": {"s3": "unreachable"}},
    "buckets": {"buckets": {"reports": "it ignores If-Match"}},
    "intents": {"standing": UNSETTLED},
    "uploads": {"standing": replace(IDLE, left=1, left_in="reports")},
    "sealing": {"standing": UNSEALED},
    "bypasses": {"bypasses": Notable(1, NOW, "orders/1")},
    "counted refusals": {"guard": Notable(1, NOW - timedelta(minutes=1), None)},
    "webhooks": {"webhooks": {"pager": EARLIER}},
    "alarms": {"alarms": {"storm": EARLIER}},
}
LOGGED = {
    "postgres": ServiceUnreachable,
    "s3": ServiceUnreachable,
    "guard": BypassFound,
    "bypasses": BypassFound,
    "counted refusals": GuardRefused,
}


def names(rendering: Rendering) -> set[str]:
    return {one.name for one in asked_by(rendering)}


def test_each_question_has_a_name_of_its_own_and_follows_the_one_that_it_needs() -> None:
    asked: list[str] = []
    for one in QUESTIONS:
        assert one.name not in asked
        assert not one.needs or one.needs in asked
        assert set(one.shown.split()) <= {"doctor", "ready", "metrics", "page", "log", "start"}
        asked.append(one.name)


def test_the_doctor_has_a_look_for_each_and_a_section() -> None:
    assert names("doctor") == examination._LOOKS.keys()
    assert all(bool(one.section) is (one in asked_by("doctor")) for one in QUESTIONS)


def test_what_has_a_gauge_is_in_the_metrics() -> None:
    gauges = {name for one in QUESTIONS for name in one.gauges.split()}
    assert names("metrics") == {one.name for one in QUESTIONS if one.gauges}
    assert gauges <= vars(DatabaseGauges()).keys()


async def test_readiness_and_metrics_show_each_of_theirs(postgres_server: EmbeddedPostgres) -> None:
    async with scene(postgres_server) as stage, stage.api() as api:
        answered = await api.get("/v1/health")
        metrics = (await api.get("/v1/metrics")).text
    assert names("ready") == answered.json().keys() - {"journal", "buckets"}
    standing = DatabaseGauges()
    for one in asked_by("metrics"):
        assert all(f"\n{getattr(standing, name).name}" in metrics for name in one.gauges.split()), one.name


def test_the_page_says_the_words_of_each_of_its_own() -> None:
    assert names("page") == PROVOKED.keys()
    for name, wrong in PROVOKED.items():
        (finding,) = assess(replace(QUIET, **wrong))
        words = question(name).words
        assert words is not None
        fixed = [piece for piece in words.said.replace("}", "{").split("{")[::2] if piece]
        assert all(piece in said(finding) for piece in fixed), name
        assert words.advice.rpartition("}")[2] in plain(finding.advice)


def test_the_log_has_a_line_for_each_of_its_own() -> None:
    assert names("log") == LOGGED.keys()
    assert all(event in LINES for event in LOGGED.values())


def test_a_start_asks_each_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = {
        "patterns of objects": (targets, "unreadable_rules"),
        "schema": (serving, "check_schema"),
        "postgres": (targets, "unknown_in_database"),
        "rules": (targets, "unknown_in_database"),
        "grants": (targets, "unknown_in_grants"),
        "ownership": (ownership, "check_agreement"),
        "s3": (Upstream, "look"),
        "rules of buckets": (targets, "unknown_buckets"),
    }
    asked = []
    for place, name in set(looks.values()):

        async def answer(*_: object, name: str = name, **__: object) -> list[str]:
            asked.append(name)
            return []

        def answer_at_once(*_: object, name: str = name) -> list[str]:
            asked.append(name)
            return []

        monkeypatch.setattr(place, name, answer_at_once if name == "unreadable_rules" else answer)
    monkeypatch.setattr(logs, "log", lambda event: pytest.fail(str(event)))
    serve._check_at_start(Origin(None, None, allow_missing=False), config("postgresql://x@127.0.0.1:1/x", "http://x"))
    assert names("start") == looks.keys()
    assert set(asked) == {name for _, name in looks.values()}
