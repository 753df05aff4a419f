"""The files of the Helm chart fit together. The tests that need Helm are in ``tests/kubernetes``."""

import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any, get_args

import yaml  # type: ignore[import-untyped]
from pydantic import BaseModel

from gateway.config import Config
from gateway.config.section import Section
from tests import ROOT

CHART = ROOT / "deploy/helm/fencing-gateway"
ROW = re.compile(r"^\| `([\w.]+)` \| (?:`(.*?)`)? *\|", re.MULTILINE)


def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return loaded


def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return loaded


def leaves(value: Any, described: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values with their paths. A map in the words of Kubernetes is one value."""
    if not isinstance(value, dict) or "properties" not in described or path.endswith(("Probe", "resources")):
        yield path, value
        return
    for name, one in value.items():
        yield from leaves(one, described["properties"][name], f"{path}.{name}".lstrip("."))


def test_every_value_is_in_the_table_with_its_default() -> None:
    found = dict(leaves(values(), schema()))
    rows = dict(ROW.findall((CHART / "README.md").read_text()))
    assert list(rows) == list(found)
    for name, default in rows.items():
        assert (yaml.safe_load(default) if default else "") == found[name], name


def test_the_schema_knows_every_value_and_no_other() -> None:
    def compare(given: dict[str, Any], described: dict[str, Any], path: str) -> None:
        assert described["additionalProperties"] is False, path
        # `global` is what a chart that contains this one may pass.
        optional = {"global"} if not path else set()
        assert set(described["properties"]) - optional == set(given), path
        for name, one in given.items():
            below = described["properties"][name]
            if isinstance(one, dict) and "properties" in below and not name.endswith(("Probe", "resources")):
                compare(one, below, f"{path}.{name}")

    compare(values(), schema(), "")


def test_no_secret_can_stand_in_the_config_map() -> None:
    """The chart refuses every key of the configuration that holds a secret."""

    def sections(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
        yield kind
        for field in kind.model_fields.values():
            for part in (field.annotation, *get_args(field.annotation)):
                for one in (part, *get_args(part)):
                    if isinstance(one, type) and issubclass(one, BaseModel):
                        yield from sections(one)

    secret = {key for kind in sections(Config) if issubclass(kind, Section) for key in kind.secret_keys()}
    [refused] = re.findall(r'\$secret := "([\w|]+)"', (CHART / "templates/_checks.tpl").read_text())
    assert set(refused.split("|")) == secret


def test_the_chart_is_of_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["appVersion"] == package


def test_alerts_have_one_source() -> None:
    assert (CHART / "files/alerts.yml").resolve() == ROOT / "deploy/prometheus/alerts.yml"
