"""What the repository ships for running it elsewhere fits together. There is no container engine to try it with."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes with the AWS CLI; only this test reads YAML

from gateway.config import Config, load

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return dict(loaded["services"])


@pytest.fixture(scope="module")
def example() -> Config:
    return load(ROOT / "gateway.example.toml")


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
    assert set(sources) == kept
    assert all((ROOT / source).exists() for source in sources)


def test_services_wait_for_services_that_say_when_they_are_healthy(services: dict[str, Any]) -> None:
    for service in services.values():
        for name, dependency in service.get("depends_on", {}).items():
            assert (dependency["condition"] == "service_healthy") == ("healthcheck" in services[name])
    assert "/v1/ready" in str(services["gateway"]["healthcheck"]["test"])


def test_every_foreign_image_is_pinned(services: dict[str, Any]) -> None:
    for service in services.values():
        if "build" not in service:
            assert service["image"].rpartition(":")[2] not in ("", "latest")


def test_the_example_configuration_loads_and_fits_the_services(services: dict[str, Any], example: Config) -> None:
    assert example.s3 is not None
    assert example.s3.endpoint == "http://s3:8333"
    environment = services["postgres"]["environment"]
    user, password, database = (environment[f"POSTGRES_{key}"] for key in ("USER", "PASSWORD", "DB"))
    assert example.postgres.dsn.get_secret_value() == f"postgresql://{user}:{password}@postgres/{database}"
    assert services["gateway"]["ports"] == [f"127.0.0.1:8080:{example.server.port}"]
    assert {rule.resource for rule in (*example.tables, *example.objects)} == {"account/{id}"}


def test_the_gate_can_be_run() -> None:
    assert os.access(ROOT / ".ci/run", os.X_OK)
