"""The files of the repository that run it elsewhere fit together. Tests in `containers` and `kubernetes` try them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest
import yaml  # type: ignore[import-untyped]  # comes with the AWS CLI; only this test reads YAML  # type: ignore[import-untyped]
from pydantic import BaseModel, SecretStr
from typer.main import get_group

from gateway.cli import application
from gateway.config import Config, load
from gateway.config.former import FORMER
from gateway.config.sections import FROM_FILE, Section, Server
from tests import ROOT


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return dict(loaded["services"])


@pytest.fixture(scope="module")
def trial() -> Config:
    return load(ROOT / "deploy/compose.toml")


def test_every_file_that_is_mounted_or_built_from_is_there(services: dict[str, Any]) -> None:
    mounted = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", ())]
    built = [service["build"]["dockerfile"] for service in services.values() if "build" in service]
    files = [path for path in mounted if path.startswith("./")] + built
    assert len(files) >= 6
    for path in files:
        assert (ROOT / path).is_file(), path


def test_the_image_is_built_from_files_that_are_there_and_not_ignored() -> None:
    lines = (ROOT / "deploy/Dockerfile").read_text().splitlines()
    sources = [
        source for line in lines if line.startswith("COPY ") and "--from" not in line for source in line.split()[1:-1]
    ]
    kept = {line[1:] for line in (ROOT / "deploy/Dockerfile.dockerignore").read_text().splitlines() if line[0] == "!"}
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(Path(source).is_relative_to(one) for one in kept), source
    for one in kept:
        assert any(Path(source).is_relative_to(one) for source in sources), one


def test_services_wait_for_services_that_say_when_they_are_healthy(services: dict[str, Any]) -> None:
    for service in services.values():
        for name, dependency in service.get("depends_on", {}).items():
            assert (dependency["condition"] == "service_healthy") == ("healthcheck" in services[name])
    assert services["gateway"]["healthcheck"]["test"] == ["CMD", "gateway", "health"]


def test_our_containers_have_no_right_that_they_do_not_need(services: dict[str, Any]) -> None:
    ours = [service for service in services.values() if "build" in service]
    assert len(ours) == 3
    for service in ours:
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "cap_add", "user", "network_mode", "tmpfs"} & service.keys()


def test_all_that_the_image_installs_from_elsewhere_is_pinned_by_hash() -> None:
    text = (ROOT / "deploy/Dockerfile").read_text().replace("\\\n", " ")
    installs = [part for line in text.splitlines() for part in line.split(";") if "pip" in part and " install " in part]
    assert len(installs) == 3
    assert all("--require-hashes" in one or "--no-index" in one for one in installs)
    for name in ("run", "build"):
        lines = (ROOT / f"requirements/{name}.txt").read_text().splitlines()
        assert all(line.startswith("    --hash=sha256:") or re.match(r"[\w.-]+==", line) for line in lines)
    dev = (ROOT / "requirements/dev.txt").read_text().splitlines()
    build = [line for line in (ROOT / "requirements/build.txt").read_text().splitlines() if "==" in line]
    assert set(build) <= set(dev), "make lock pins both"
    user = next(line for line in text.splitlines() if line.startswith("USER "))
    assert re.fullmatch(r"USER [1-9]\d*:[1-9]\d*", user), "Kubernetes runAsNonRoot needs numbers"


def test_what_ends_by_itself_is_waited_for_to_its_end(services: dict[str, Any]) -> None:
    """``up --wait`` takes a service that has ended for a failure, unless another one waits for just that."""
    awaited = {
        name
        for service in services.values()
        for name, dependency in service.get("depends_on", {}).items()
        if dependency["condition"] == "service_completed_successfully"
    }
    assert awaited == {name for name, service in services.items() if "healthcheck" not in service}


def test_the_commands_are_the_gateways_own_and_read_what_is_mounted(services: dict[str, Any]) -> None:
    lines = (ROOT / "deploy/Dockerfile").read_text().splitlines()
    entrypoint, served = (
        json.loads(next(line for line in lines if line.startswith(f"{word} ")).removeprefix(word))
        for word in ("ENTRYPOINT", "CMD")
    )
    assert entrypoint == ["gateway"]
    commands = get_group(application).commands
    for name in ("gateway", "migrate"):
        command, *options = services[name].get("command", served)
        given = commands[command].make_context(command, options).params["config"]
        assert f"./deploy/compose.toml:{given}:ro" in services[name]["volumes"]
    script, *configuration = services["bucket"]["entrypoint"][1:]
    mounted = {volume.split(":")[1] for volume in services["bucket"]["volumes"]}
    assert {script, *configuration} == mounted


def test_a_gateway_gets_the_time_to_stop_and_foreign_images_are_pinned(services: dict[str, Any]) -> None:
    assert int(services["gateway"]["stop_grace_period"].removesuffix("s")) > Server().drain
    for service in services.values():
        assert "build" in service or service["image"].rpartition(":")[2] not in ("", "latest")


def test_the_configuration_of_the_trial_loads_and_fits_the_services(services: dict[str, Any], trial: Config) -> None:
    assert trial.s3 is not None
    assert trial.s3.endpoint == "http://s3:8333"
    environment = services["postgres"]["environment"]
    user, password, database = (environment[f"POSTGRES_{key}"] for key in ("USER", "PASSWORD", "DB"))
    assert trial.default.postgres.dsn.get_secret_value() == f"postgresql://{user}:{password}@postgres/{database}"
    assert services["gateway"]["ports"] == [f"127.0.0.1:${{GATEWAY_PORT:-8080}}:{trial.server.port}"]
    assert {rule.resource for rule in (*trial.tables, *trial.objects)} == {"account/{id}"}


def test_the_trial_contacts_nobody_outside(services: dict[str, Any], trial: Config) -> None:
    """A trial must not report to others. Secrets are looked at as well, because one of them is an address."""
    here = {*services, "127.0.0.1", "localhost"}
    addresses = [urlsplit(text) for text in texts(trial) if "://" in text]
    assert {"postgresql", "http"} <= {address.scheme for address in addresses}
    assert {address.hostname for address in addresses} <= here
    assert (trial.webhooks, trial.telemetry.traces, trial.leases.issuer) == ((), None, None)


def texts(value: object) -> Iterator[str]:
    """All texts in a configuration."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from texts(getattr(value, name))
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from texts(one)
    elif isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, str):
        yield value


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
    secret |= {key for section, key in FORMER if (section, key + FROM_FILE) in FORMER}
    [refused] = re.findall(r'\$secret := "([\w|]+)"', (CHART / "templates/_checks.tpl").read_text())
    assert set(refused.split("|")) == secret


def test_alerts_have_one_source() -> None:
    assert (CHART / "files/alerts.yml").resolve() == ROOT / "deploy/prometheus/alerts.yml"
