"""The dashboard, the alert rules and the page of docs speak of metrics that there are, with the labels they have."""

import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml  # type: ignore[import-untyped]  # as in tests/deploy/test_deployment.py

from gateway.demo.embedded import EmbeddedPostgres
from gateway.findings import UNSEALED, UNSETTLED
from gateway.observe.gauges import Counter, Gauge, Histogram, StatusGauges
from gateway.observe.metrics import EventMetrics, codes
from tests import ROOT
from tests.observe.scene import Samples, load, scene, scrape

DASHBOARD = ROOT / "deploy/grafana/fencing-gateway.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
PAGE = (ROOT / "docs/observability.md").read_text()

# The labels that Prometheus adds to each sample of a scrape, and those of a histogram.
ADDED = {"job", "instance"}
# Metrics that are Prometheus' own.
OWN = {"up"}

_METRIC = re.compile(r"\b(?:gateway|process|python)_\w+|\bup\b")
_SELECTOR = re.compile(r"\b((?:gateway|process|python)_\w+|up)\s*(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
_BY = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def shown() -> Iterator[tuple[str, str]]:
    """Expressions of the dashboard, each with where it stands."""
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in dashboard()["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


EXPRESSIONS = [*shown(), *((rule["alert"], rule["expr"]) for rule in rules())]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def found(postgres_server: EmbeddedPostgres) -> AsyncIterator[Samples]:
    async with scene(postgres_server) as stage:
        await load(stage)
        yield await scrape(stage)


def labels_of(found: Samples, name: str) -> dict[str, set[str]]:
    """The labels of a metric, each with its values."""
    labels: dict[str, set[str]] = {}
    for sample in found[name]:
        for label, value in sample:
            labels.setdefault(label, set()).add(value)
    return labels


class TestExpressions:
    @pytest.mark.asyncio(loop_scope="module")
    async def test_each_metric_label_and_value_is_in_a_scrape(self, found: Samples) -> None:
        for where, expression in EXPRESSIONS:
            for name, matchers in _SELECTOR.findall(expression):
                assert name in found or name in OWN, f"{where}: {name}"
                labels = {} if name in OWN else labels_of(found, name)
                for label, operator, wanted in _MATCHER.findall(matchers):
                    assert label in labels or label in ADDED, f"{where}: {name} has no label {label}"
                    if label in labels and "!" not in operator:
                        values = wanted.split("|") if "~" in operator else [wanted]
                        known = labels[label] | (codes() if label in ("reason", "code") else set())
                        assert set(values) <= known, f"{where}: {label}={wanted}"

    @pytest.mark.asyncio(loop_scope="module")
    async def test_what_is_grouped_by_is_a_label_of_what_is_grouped(self, found: Samples) -> None:
        for where, expression in EXPRESSIONS:
            names = set(_METRIC.findall(expression)) - OWN
            known = {label for name in names if name in found for label in labels_of(found, name)} | ADDED
            for group in _BY.findall(expression):
                for label in re.split(r"[,\s]+", group.strip()):
                    assert label in known, f"{where}: by ({label})"

    @pytest.mark.asyncio(loop_scope="module")
    async def test_legends_and_texts_name_labels_that_are_left(self, found: Samples) -> None:
        for panel in panels():
            for target in panel["targets"]:
                used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
                assert used <= _left(found, target["expr"]), panel["title"]
        for rule in rules():
            used = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
            assert used <= _left(found, rule["expr"]), rule["alert"]

    def test_every_metric_of_ours_is_on_the_dashboard(self) -> None:
        text = " ".join(expression for _, expression in shown())
        for one in declared():
            name = f"{one.name}_" if isinstance(one, Histogram) else one.name
            assert re.search(rf"\b{name}" + ("" if isinstance(one, Histogram) else r"\b"), text), one.name

    @pytest.mark.installed
    @pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
    def test_prometheus_understands_them(self, tmp_path: Path) -> None:
        own = [(where, one) for where, one in shown() if not one.startswith("label_values(")]
        asked = [
            {"record": f"panel:{number}", "expr": one.replace("$__rate_interval", "1m")}
            for number, (_, one) in enumerate(own)
        ]
        written = tmp_path / "panels.yml"
        written.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": asked}]}))
        for arguments in (
            ["check", "rules", str(ALERTS)],
            ["check", "rules", "--lint=none", str(written)],
            ["check", "config", "--syntax-only", str(ALERTS.parent / "prometheus.yml")],
        ):
            checked = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
            assert checked.returncode == 0, checked.stdout + checked.stderr


def _left(found: Samples, expression: str) -> set[str]:
    """The labels that grouping leaves, or those of each metric where nothing is grouped."""
    groups = re.findall(r"\bby\s*\(([^)]*)\)", expression)
    grouped = {label for group in groups for label in re.split(r"[,\s]+", group.strip())} - {"le"}
    metrics = set(_METRIC.findall(expression)) - OWN
    return grouped or ADDED | {label for name in metrics for label in labels_of(found, name)}


class TestAlerts:
    @pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
    def test_it_says_what_is_wrong_and_where_to_read_on(self, rule: dict[str, Any]) -> None:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        notes = rule["annotations"]
        assert notes.keys() == {"summary", "description", "runbook_url"}
        assert all(notes.values())
        page, _, anchor = notes["runbook_url"].partition("#")
        assert (ROOT / page).is_file()
        assert anchor == rule["alert"].lower()
        assert f"\n### {rule['alert']}\n" in PAGE

    def test_people_are_woken_later_than_the_page_tells(self) -> None:
        """Most old intents and unsealed entries end without them."""
        expressions = {rule["alert"]: rule["expr"] for rule in rules()}
        for name, age in {"PendingIntentsOld": UNSETTLED, "RecordNotSealed": UNSEALED}.items():
            assert int(expressions[name].rpartition(" > ")[2]) > age.total_seconds()

    def test_each_name_is_given_once_and_each_runbook_belongs_to_one(self) -> None:
        names = [rule["alert"] for rule in rules()]
        assert len(set(names)) == len(names)
        runbooks = re.findall(r"^### (\w+)$", PAGE.partition("## Alert runbooks")[2], re.MULTILINE)
        assert sorted(runbooks) == sorted(names)


def declared() -> list[Counter | Gauge | Histogram]:
    return [*EventMetrics().instruments(), *StatusGauges("", "").instruments()]
