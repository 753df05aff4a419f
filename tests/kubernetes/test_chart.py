"""The chart, as Helm renders it without a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from gateway.config.sections import Server
from tests import ROOT
from tests.kubernetes.cluster import CHART, VALUES, helm_alone, only, rendered, template

MINIMAL = CHART / "ci/minimal-values.yaml"
SECRET = "/etc/gateway/secrets"
SEVERAL = [
    {"name": "north", "secret": {"name": "owner-north"}},
    {"name": "South_2", "secret": {"name": "owner-south", "key": "owner"}, "journalSecret": {"name": "journal-south"}},
]


def refused(tmp_path: Path, **values: Any) -> str:
    """Return Helm's words about values that differ from the least ones."""
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    done = template("--values", str(MINIMAL), "--values", str(tmp_path / "values.yaml"))
    assert done.returncode != 0, done.stdout
    return done.stderr


@pytest.mark.parametrize("values", [None, *VALUES], ids=lambda path: "defaults" if path is None else path.stem)
def test_lint_finds_nothing(values: Path | None) -> None:
    more = () if values is None else ("--values", str(values))
    done = helm_alone("lint", "--strict", str(CHART), *more)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"config": ""}, "config: is empty"),
        ({"existingConfigMap": "mine"}, "remove one of them"),
        ({"config": '[postgres]\ndsn = "postgresql://gateway:secret@db/app"'}, "has the secret dsn in clear"),
        ({"config": '[s3]\n  secret_access_key="x"'}, "has the secret secret_access_key in clear"),
        ({"config": 'callers = [{ name = "a", api_key = "0123456789" }]'}, "has the secret api_key in clear"),
        ({"config": 'callers = [{ name = "a#1", api_key = "0123456789" }]'}, "has the secret api_key in clear"),
        ({"config": "postgres.'dsn' = 'x'"}, "has the secret dsn in clear"),
        ({"env": [{"name": "gateway_s3__secret_access_key", "value": "x"}]}, "or use valueFrom"),
        ({"env": [{"name": "GATEWAY_DATABASES", "value": '[{"name": "a", "dsn": "x"}]'}]}, "has a secret within"),
        ({"secrets": {"values": {"../dsn": "x"}}}, "cannot be the name of a file"),
        ({"secrets": {"values": {"dsn": ""}}}, "minLength"),
        ({"migration": {"secret": {"name": ""}}}, "migration.secret.name: is empty"),
        ({"migration": {"databases": [{"name": "north", "secret": {"name": "a"}}]}}, "is set as well"),
        ({"migration": {"databases": [{"name": "north"}]}}, "secret"),
        ({"migration": {"databases": [{"name": "no/rth", "secret": {"name": "a"}}]}}, "does not match pattern"),
        (
            {"migration": {"secret": {"name": ""}, "journalSecret": {"name": "j"}, "databases": SEVERAL}},
            "several databases have a journalSecret each",
        ),
        ({"env": [{"name": "GATEWAY_POSTGRES__DSN", "valueFrom": {}}]}, "which the migration would use as well"),
        ({"tls": {"clientAuthorities": {"secretName": "a"}}}, "needs tls.secretName"),
        ({"tls": {"secretName": "a", "clientCertificates": "demand"}}, "needs tls.clientAuthorities.secretName"),
        ({"ingress": {"enabled": True}}, "ingress.hosts: is empty"),
        ({"networkPolicy": {"enabled": True}}, "neither its database nor its store"),
        ({"autoscaling": {"enabled": True, "minReplicas": 9}}, "is above maxReplicas"),
        ({"autoscaling": {"enabled": True}, "resources": {"requests": None}}, "is not set; set it"),
        ({"serviceMonitor": {"enabled": True}}, "serviceMonitor.apiKeySecret.name: is empty"),
        ({"image": {"digest": "sha256:abc"}}, "does not match pattern"),
        ({"image": {"repository": "evil image:\n- x"}}, "does not match pattern"),
        ({"replica": 3}, "additional properties 'replica' not allowed"),
        ({"port": 80}, "port"),
        ({"drainSeconds": 0}, "drainSeconds"),
        ({"workers": "all"}, "workers"),
        ({"labels": {"a": 1}}, "labels"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_with_the_reason(tmp_path: Path, values: dict[str, Any], said: str) -> None:
    assert said in refused(tmp_path, **values)


def test_an_older_cluster_is_refused() -> None:
    done = template("--values", str(MINIMAL), "--kube-version", "1.29.0")
    assert "incompatible with Kubernetes v1.29.0" in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "{{ .Values.image }}\n---\nkind: Secret\n",
        'x = """\n  \ttabs, "quotes", \\ and é\r\n"""\n',
        f'[postgres]\n# dsn = "postgresql://a:b@c/d"\ndsn_file = "{SECRET}/dsn"\n',
        "a: &b\n  - *b\n# }}\n",
    ],
)
def test_the_text_of_the_configuration_arrives_as_it_is(tmp_path: Path, text: str) -> None:
    (tmp_path / "values.yaml").write_text(json.dumps({"config": text}))
    found = rendered("--values", str(MINIMAL), "--values", str(tmp_path / "values.yaml"))
    assert only(found, "ConfigMap", component="gateway")["data"] == {"gateway.toml": text}
    assert only(found, "ConfigMap", component="migration")["data"] == {"gateway.toml": text}


def test_a_stopping_pod_gets_the_time_that_its_requests_have() -> None:
    for drain in ("1", str(Server().drain), "3600"):
        found = rendered("--values", str(MINIMAL), "--set", f"drainSeconds={drain}")
        spec = only(found, "Deployment")["spec"]["template"]["spec"]
        environment = {one["name"]: one["value"] for one in spec["containers"][0]["env"]}
        assert environment["GATEWAY_SERVER__DRAIN"] == drain
        before = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        # A worker that does not end is killed five seconds later.
        assert spec["terminationGracePeriodSeconds"] >= before + int(drain) + 10


def container(*arguments: str) -> dict[str, Any]:
    """Return the one container of the rendered gateways."""
    [found] = only(rendered(*arguments), "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_no_outage_restarts_a_gateway() -> None:
    """A restarted gateway forgets what it has acknowledged, and so does not notice a database that was put back."""
    for values in VALUES:
        probes = container("--values", str(values))
        assert {probes[name]["httpGet"]["path"] for name in ("livenessProbe", "startupProbe")} == {"/livez"}
        assert probes["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_where_certificates_are_demanded_probes_connect() -> None:
    given = "tls.secretName=a,tls.clientAuthorities.secretName=b,tls.clientCertificates=demand"
    probes = container("--values", str(MINIMAL), "--set", given)
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        assert probes[name]["tcpSocket"] == {"port": "http"}
        assert "httpGet" not in probes[name]


def migrations(*more: str) -> tuple[list[dict[str, Any]], dict[str, tuple[str, str]]]:
    """Return the containers that migrate, and the files with their DSNs: each with its Secret and its key."""
    spec = only(rendered("--values", str(MINIMAL), *more), "Job")["spec"]["template"]["spec"]
    [volume] = [one["projected"]["sources"] for one in spec["volumes"] if one["name"] == "migration"]
    files = {item["path"]: (one["secret"]["name"], item["key"]) for one in volume for item in one["secret"]["items"]}
    return spec["initContainers"], files


def test_no_dsn_is_an_argument() -> None:
    """Every user of a node can see arguments."""
    [one], files = migrations("--set", "migration.journalSecret.name=journal,migration.journalSecret.key=address")
    assert files == {"dsn": ("fencing-owner", "dsn"), "journal": ("journal", "address")}
    assert "--journal-dsn-file=/etc/gateway/migration/journal" in one["args"]
    assert not any("$(" in argument for argument in one["args"])
    assert {"name": "GATEWAY_POSTGRES__DSN_FILE", "value": "/etc/gateway/migration/dsn"} in one["env"]


def test_each_of_several_databases_is_migrated_by_its_own_owner(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(json.dumps({"migration": {"secret": {"name": ""}, "databases": SEVERAL}}))
    containers, files = migrations("--values", str(tmp_path / "values.yaml"))
    assert files == {
        "north/dsn": ("owner-north", "dsn"),
        "South_2/dsn": ("owner-south", "owner"),
        "South_2/journal": ("journal-south", "dsn"),
    }
    assert [one["name"] for one in containers] == ["migrate-0", "migrate-1"]
    at = "/etc/gateway/migration"
    assert containers[0]["args"][2:] == ["--database=north", f"--dsn-file={at}/north/dsn", "--grant-to=gateway"]
    assert containers[1]["args"][2:4] == ["--database=South_2", f"--dsn-file={at}/South_2/dsn"]
    assert containers[1]["args"][5] == f"--journal-dsn-file={at}/South_2/journal"
    for one in containers:
        # It would be a second database beside [[databases]].
        assert not any(variable["name"].startswith("GATEWAY_POSTGRES") for variable in one["env"])


def test_a_change_restarts_the_gateways_unless_they_are_to_reload_it() -> None:
    def annotations(*more: str) -> object:
        deployment = only(rendered("--values", str(MINIMAL), *more), "Deployment")
        return deployment["spec"]["template"]["metadata"]["annotations"]

    other = f"secrets.values.worker={'x' * 20}"
    assert annotations() == annotations()
    assert annotations() != annotations("--set", other)
    assert not annotations("--set", "reloadOnly=true", "--set", other)


def test_alerts_are_those_of_the_repository_and_ask_for_the_job_of_the_scrape() -> None:
    found, alerts = rendered("--values", str(CHART / "ci/full-values.yaml")), ROOT / "deploy/prometheus/alerts.yml"
    assert only(found, "PrometheusRule")["spec"] == yaml.safe_load(alerts.read_text())
    [endpoint] = only(found, "ServiceMonitor")["spec"]["endpoints"]
    [relabeling] = endpoint["relabelings"]
    assert f'job="{relabeling["replacement"]}"' in alerts.read_text()


def test_a_packaged_chart_is_the_same(tmp_path: Path) -> None:
    """Its alerts are a link, which leads nowhere in a package."""
    done = helm_alone("package", str(CHART), "--destination", str(tmp_path))
    assert done.returncode == 0, done.stderr
    [package] = tmp_path.glob("*.tgz")
    values = str(CHART / "ci/full-values.yaml")
    assert (
        helm_alone("template", "fence", str(package), "--values", values).stdout == template("--values", values).stdout
    )
