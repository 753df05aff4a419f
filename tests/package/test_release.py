"""``make release``: it makes all of a release or nothing, and the same commit gives the same bytes."""

import hashlib
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from email.message import Message
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest

from tests import ROOT

WHO = ("-c", "user.name=A tester", "-c", "user.email=tester@example.com")
NEWS = "- A new feature for a test."


def script(path: str) -> ModuleType:
    """A script as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release, image = script(".ci/release.py"), script("deploy/image/sbom.py")


def git(tree: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", tree, *WHO, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit(tree: Path) -> None:
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message", "A change")


def released(tree: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(tree / ".ci/release.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def state(tree: Path) -> tuple[str, ...]:
    """Return all that a release changes: references, files, and the folder of the artefacts."""
    dist = sorted(str(path) for path in (tree / "dist").rglob("*"))
    return (git(tree, "for-each-ref"), git(tree, "status", "--porcelain"), git(tree, "worktree", "list"), *dist)


def following(tree: Path) -> str:
    """The version after the one of a tree."""
    current = tomllib.loads((tree / "pyproject.toml").read_text())["project"]["version"]
    major, minor, patch = current.split(".")
    return f"{major}.{minor}.{int(patch) + 1}"


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A repository with the files of this one as they are now, and something to release."""
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("this is no checkout of git")
    tree = tmp_path / "scratch"
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    changelog = tree / "CHANGELOG.md"
    news = f"## Unreleased\n\n### Added\n\n{NEWS}\n\n## "
    changelog.write_text(re.sub(r"## Unreleased\n.*?\n## ", news, changelog.read_text(), count=1, flags=re.DOTALL))
    git(tree, "init", "--quiet", "--initial-branch", "main")
    git(tree, "config", "user.name", "A tester")
    git(tree, "config", "user.email", "tester@example.com")
    commit(tree)
    yield tree
    shutil.rmtree(tree)


def test_every_place_has_the_same_version() -> None:
    found = release.versions(ROOT)
    assert len(found) >= 7
    assert len(set(found.values())) == 1, found


def test_entries_move_under_the_version() -> None:
    before = "# Changelog\n\n## Unreleased\n\n### Fixed\n\n- It.\n\n## 1.0.0 - 2026-01-01\n\n- All.\n"
    after = release.moved(before, "1.0.1", "2026-02-03")
    assert after == before.replace("## Unreleased\n", "## Unreleased\n\n## 1.0.1 - 2026-02-03\n", 1)
    with pytest.raises(release.Refused, match="no entries"):
        release.moved(after, "1.0.2", "2026-02-04")
    with pytest.raises(release.Refused, match="Move these"):
        release.moved(before, "1.0.0", "2026-02-04")


def test_the_section_of_the_first_release_gets_its_day() -> None:
    before = "## Unreleased\n\n## 1.0.0 - 2026-01-01\n\n- All.\n"
    assert release.moved(before, "1.0.0", "2026-02-03") == "## Unreleased\n\n## 1.0.0 - 2026-02-03\n\n- All.\n"


def stated(**fields: str) -> Message:
    made = Message()
    for name, value in fields.items():
        made[name.replace("_", "-")] = value
    return made


@pytest.mark.thorough
def test_each_component_has_its_licence_as_in_the_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = re.findall(r"^([\w.-]+)==", (ROOT / "requirements/run.txt").read_text(), re.MULTILINE)
    bill = tmp_path / "bill.json"
    bill.write_text(json.dumps({"components": [{"name": name} for name in pins]}))
    release.add_licences(bill)
    found = {one["name"]: one["licenses"] for one in json.loads(bill.read_text())["components"]}
    assert found.keys() == set(pins)
    assert found["httpx"] == [{"expression": "BSD-3-Clause"}]
    assert found["sniffio"] == [{"expression": "MIT OR Apache-2.0"}]
    assert found["jinja2"] == [{"license": {"name": "BSD License"}}]
    expressions = [one["expression"] for one, *_ in found.values() if "expression" in one]
    assert len(expressions) > 0.8 * len(pins)
    # The import compiles grammars for a second, and each worker would do so.
    from cyclonedx.spdx import is_expression  # noqa: PLC0415

    assert [one for one in expressions if not is_expression(one)] == []
    long = stated(
        License="MIT License\n\nPermission is hereby granted", Classifier="License :: OSI Approved :: MIT License"
    )
    assert image.licences(long) == [{"license": {"name": "MIT License"}}]
    assert {one["name"]: one["licenses"] for one in map(image.python_component, map(distribution, pins))} == found
    monkeypatch.setattr(release, "metadata", lambda name: stated(Name=name))
    with pytest.raises(release.Refused, match="states no licence"):
        release.add_licences(bill)


@pytest.mark.nightly
@pytest.mark.thorough
def test_a_release(scratch: Path, tmp_path: Path) -> None:
    version = following(scratch)
    before = state(scratch)
    rehearsed = released(scratch, version, "--dry-run")
    assert rehearsed.returncode == 0, rehearsed.stderr
    assert state(scratch) == before

    done = released(scratch, version)
    assert done.returncode == 0, done.stderr
    assert git(scratch, "status", "--porcelain") == ""
    head = git(scratch, "rev-parse", "main")
    for tag in ("v", "clients/go/v", "clients/go/awss3/v", "clients/go/pgxlock/v"):
        assert git(scratch, "cat-file", "-t", f"{tag}{version}") == "tag"
        assert git(scratch, "rev-parse", f"{tag}{version}^{{commit}}") == head
    assert set(release.versions(scratch).values()) == {version}
    changelog = (scratch / "CHANGELOG.md").read_text()
    assert re.search(rf"## Unreleased\n\n## {version} - \d{{4}}-\d\d-\d\d\n\n### Added\n\n{NEWS}\n", changelog)

    dist = scratch / "dist" / version
    lines = (line.split() for line in (dist / "SHA256SUMS").read_text().splitlines())
    sums = {name: digest for digest, name in lines}
    assert sums == {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in dist.iterdir() if path.name != "SHA256SUMS"
    }
    assert {f"fencing_gateway-{version}{end}" for end in (".tar.gz", "-py3-none-any.whl")} < sums.keys()
    # The import compiles grammars for a second, and each worker would do so.
    from cyclonedx.schema import SchemaVersion  # noqa: PLC0415
    from cyclonedx.validation.json import JsonStrictValidator  # noqa: PLC0415

    bill = (dist / f"fencing-gateway-{version}.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    pins = re.findall(r"^([\w.-]+)==([^ ;]+)", (scratch / "requirements/run.txt").read_text(), re.MULTILINE)
    assert {(one["name"], one["version"]) for one in json.loads(bill)["components"]} == set(pins)
    assert json.loads(bill)["metadata"]["component"]["version"] == version
    assert all(one["licenses"] for one in json.loads(bill)["components"])

    again, kept = released(scratch, version), state(scratch)
    assert again.returncode == 2
    assert "A version is released once" in again.stderr
    assert state(scratch) == kept

    # Another clone, at another time and another place, builds the same bytes.
    elsewhere = tmp_path / "elsewhere"
    git(tmp_path, "clone", "--quiet", "--branch", f"v{version}", str(scratch), str(elsewhere))
    release.build(elsewhere, tmp_path / "artefacts", version)
    for path in dist.iterdir():
        assert path.read_bytes() == (tmp_path / "artefacts" / path.name).read_bytes(), path.name
    # And a wheel that is built without the source distribution is the same, too.
    epoch = {"SOURCE_DATE_EPOCH": git(elsewhere, "log", "-1", "--format=%ct")}
    release.python("hatchling", "build", "--target", "wheel", "--directory", tmp_path / "w", at=elsewhere, more=epoch)
    (wheel,) = (tmp_path / "w").glob("*.whl")
    assert wheel.read_bytes() == (dist / wheel.name).read_bytes()


@pytest.mark.thorough
def test_what_cannot_be_released_is_refused(scratch: Path) -> None:
    version = following(scratch)

    def refused(reason: str, wanted: str = version) -> None:
        before = state(scratch)
        done = released(scratch, wanted)
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr
        assert state(scratch) == before

    refused("is no version", "1.1")
    refused("is no version", "v1.0.9")
    refused("is no version", "1٢.0.9")
    refused("is older than", "0.9.0")
    refused("Go wants /v2", "2.0.0")
    (scratch / "left-behind").touch()
    refused("left-behind")
    (scratch / "left-behind").unlink()
    git(scratch, "checkout", "--quiet", "-b", "feature")
    refused("this is feature")
    git(scratch, "checkout", "--quiet", "main")
    git(scratch, "tag", "v1.7.0")
    refused("is not newer than 1.7.0")
    git(scratch, "tag", "--delete", "v1.7.0")
    (scratch / "dist" / version).mkdir(parents=True)
    refused("exists, though no tag does")
    (scratch / "dist" / version).rmdir()
    changelog = scratch / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace(f"\n### Added\n\n{NEWS}\n", "", 1))
    commit(scratch)
    refused("no entries under Unreleased")
    package = scratch / "clients/typescript/package.json"
    package.write_text(re.sub(r'"version": "[^"]+"', '"version": "0.0.7"', package.read_text()))
    commit(scratch)
    refused("the versions differ")


@pytest.mark.thorough
def test_a_step_that_fails_changes_nothing(scratch: Path) -> None:
    version = following(scratch)
    # The third of the tags cannot be made: another one has its name as a folder.
    git(scratch, "tag", f"clients/go/awss3/v{version}/in-the-way")
    before = state(scratch)
    done = released(scratch, version)
    assert (done.returncode, "nothing was changed" in done.stderr) == (1, True), done.stderr
    assert state(scratch)[:3] == before[:3]
    assert not (scratch / "dist" / version).exists()

    (scratch / "requirements/run.txt").unlink()
    commit(scratch)
    before = state(scratch)
    assert released(scratch, version).returncode == 1
    assert state(scratch) == before
