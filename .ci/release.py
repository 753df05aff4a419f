"""Make a release on this machine: `make release VERSION=1.0.1`, or with `DRY_RUN=1` a rehearsal. Publishes nothing.

It sets the version everywhere, moves the changelog's entries under it, and commits that. It builds the distributions, a
bill of materials and checksums into dist/VERSION, and makes the tags. All of it happens in a worktree beside this one.
Branch, tags and dist/VERSION change at the end, and if a step fails, none of them has changed.

Exit code 1: a step failed. 2: this tree, or this version, cannot be released; the message says why.
"""

import argparse
import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
BRANCH = "main"
NUMBER = r"[0-9]+\.[0-9]+\.[0-9]+"
GO = r"fencing-gateway\.example/fencing-gateway\.git/clients/go(?:/\w+)?"
UNRELEASED = "## Unreleased\n"

PLACES = {
    "pyproject.toml": rf'(?m)^version = "({NUMBER})"$',
    "clients/typescript/package.json": rf'(?m)^  "version": "({NUMBER})"',
    "clients/typescript/package-lock.json": rf'"name": "@fencing-gateway/client",\n +"version": "({NUMBER})"',
    "clients/go/go.work": rf"{GO} v({NUMBER})",
    "clients/go/*/go.mod": rf"{GO} v({NUMBER})",
    "deploy/**/Chart.yaml": rf'(?m)^(?:version|appVersion): "?({NUMBER})"?$',
}
"""The places of versions, and their form. All of them are the one of pyproject.toml."""

GO_MODULES = ("clients/go", "clients/go/awss3", "clients/go/pgxlock")
"""Modules that programs require. Go looks for a version of each under a tag of its own."""


class Refused(Exception):
    """Nothing can be released so; the message says what to do."""


def main(arguments: list[str]) -> int:
    """Release; the exit code."""
    parser = argparse.ArgumentParser(description="Make a release on this machine. Publishes nothing.")
    parser.add_argument("version", help="the new version, such as 1.0.1")
    parser.add_argument("--dry-run", action="store_true", help="do everything but keep nothing")
    given = parser.parse_args(arguments)
    try:
        release(given.version, dry=given.dry_run)
    except Refused as refused:
        print(f"release: {refused}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"release: failed, and nothing was changed: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        print(error.stderr or error.stdout or "", file=sys.stderr)
        return 1
    return 0


def release(version: str, *, dry: bool) -> None:
    """Release this version. Raises ``Refused``, and ``CalledProcessError`` for a step that failed."""
    tags = [f"v{version}", *(f"{module}/v{version}" for module in GO_MODULES)]
    check(version, tags)
    with worktree() as (scratch, tree):
        prepare(tree, version)
        commit = git("rev-parse", "HEAD", at=tree)
        artefacts = scratch / "artefacts"
        build(tree, artefacts, version)
        for path in sorted(artefacts.iterdir()):
            print(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}")
        if dry:
            print(git("diff", "--stat", "HEAD", commit) or "The tree needs no change.")
            print(f"Dry run: {version} can be released, and nothing was kept.")
            return
        keep(artefacts, version, commit, tags)
    print(f"Released {version} on this machine: {commit[:12]}, {', '.join(tags)}, dist/{version}.")
    print(f"Publish it: git push --atomic origin {BRANCH} {' '.join(tags)}")
    print(f"            twine upload dist/{version}/*.whl dist/{version}/*.tar.gz")


def check(version: str, tags: list[str]) -> None:
    """Raise ``Refused`` unless this version of this tree can be released."""
    if not re.fullmatch(r"(?:0|[1-9][0-9]*)(?:\.(?:0|[1-9][0-9]*)){2}", version):
        raise Refused(f"{version!r} is no version. Name one of three numbers, such as 1.0.1.")
    if (branch := git("rev-parse", "--abbrev-ref", "HEAD")) != BRANCH:
        raise Refused(f"releases are made on {BRANCH}, and this is {branch}.")
    if changed := git("status", "--porcelain"):
        raise Refused(f"the tree is not clean. Commit or remove first:\n{changed}")
    existing = git("tag", "--list").split()
    if taken := sorted(set(tags) & set(existing)):
        raise Refused(f"{', '.join(taken)} exists. A version is released once: choose the next one.")
    released = [found[1] for tag in existing if (found := re.fullmatch(rf"v({NUMBER})", tag))]
    newest = max(released, key=order, default="0.0.0")
    if order(version) <= order(newest):
        raise Refused(f"{version} is not newer than {newest}, which is released.")
    if (ROOT / "dist" / version).exists():
        raise Refused(f"dist/{version} exists, though no tag does. Remove it first.")
    current = versions(ROOT)
    if len(set(current.values())) > 1:
        raise Refused(f"the versions differ. Make them equal first: {current}")
    if order(version) < order(current["pyproject.toml"]):
        raise Refused(f"{version} is older than {current['pyproject.toml']}, the version in pyproject.toml.")
    major = order(version)[0]
    path = (ROOT / "clients/go/go.mod").read_text().splitlines()[0]
    if major > 1 and not path.endswith(f"/v{major}"):
        raise Refused(f"Go wants /v{major} at the end of its module paths first (docs/guides/upgrade.md).")


def order(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, which compare as versions do."""
    return tuple(map(int, version.split(".")))


def files() -> Iterator[tuple[str, str]]:
    """Yield each file that has a version, and the pattern that finds it."""
    for places, pattern in PLACES.items():
        for path in sorted(ROOT.glob(places)):
            if "node_modules" not in path.parts:
                yield str(path.relative_to(ROOT)), pattern


def versions(tree: Path) -> dict[str, str]:
    """Return the version in each file. Raises ``Refused`` for a file without one."""
    found = {}
    for name, pattern in files():
        standing = set(re.findall(pattern, (tree / name).read_text()))
        if len(standing) != 1:
            raise Refused(f"{name} has {len(standing)} versions instead of one.")
        found[name] = standing.pop()
    return found


def prepare(tree: Path, version: str) -> None:
    """Set version and changelog in a worktree, and commit that. Raises ``Refused``."""
    for name, pattern in files():
        path = tree / name
        path.write_text(re.sub(pattern, lambda found: found[0].replace(found[1], version), path.read_text()))
    changelog = tree / "CHANGELOG.md"
    changelog.write_text(moved(changelog.read_text(), version, f"{datetime.now(UTC):%Y-%m-%d}"))
    if git("status", "--porcelain", at=tree):
        git("commit", "--quiet", "--all", "--message", f"Release {version}", at=tree)


def moved(changelog: str, version: str, day: str) -> str:
    """Return the changelog with the unreleased entries under the version. Raises ``Refused`` where there are none.

    The first release has its section before it is made. It gets the day.
    """
    before, found, rest = changelog.partition(UNRELEASED)
    if not found:
        raise Refused(f"CHANGELOG.md has no section {UNRELEASED.strip()!r}.")
    entries, sections = re.match(r"(.*?)((?:^## .*)?)\Z", rest, re.MULTILINE | re.DOTALL).groups()
    heading = re.compile(rf"^## {re.escape(version)} - .*$", re.MULTILINE)
    is_written = bool(heading.search(sections))
    if is_written and entries.strip():
        raise Refused(f"CHANGELOG.md has a section {version} and unreleased entries. Move these into it.")
    if is_written:
        return before + found + entries + heading.sub(f"## {version} - {day}", sections, count=1)
    if not entries.strip():
        raise Refused("CHANGELOG.md has no entries under Unreleased. Say there what users get.")
    return f"{before}{found}\n## {version} - {day}\n\n{entries.strip()}\n\n{sections}"


def build(tree: Path, artefacts: Path, version: str) -> None:
    """Build what is released from a committed tree, and check it. The same commit gives the same bytes."""
    epoch = {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct", at=tree)}
    python("hatchling", "build", "--target", "sdist", "--directory", artefacts, at=tree, more=epoch)
    (source,) = artefacts.glob("*.tar.gz")
    # The wheel comes from the source distribution, so that distribution has all that a wheel needs.
    with tempfile.TemporaryDirectory() as name, tarfile.open(source) as archive:
        archive.extractall(name, filter="data")
        (unpacked,) = Path(name).iterdir()
        python("hatchling", "build", "--target", "wheel", "--directory", artefacts, at=unpacked, more=epoch)
    (wheel,) = artefacts.glob("*.whl")
    python("twine", "check", "--strict", source, wheel, at=tree)
    bill = artefacts / f"fencing-gateway-{version}.cdx.json"
    options = ("--pyproject", "pyproject.toml", "--output-reproducible", "--output-file", bill)
    python("cyclonedx_py", "requirements", *options, "requirements/run.txt", at=tree, more=epoch)
    add_licences(bill)
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(artefacts.iterdir())]
    (artefacts / "SHA256SUMS").write_text("".join(sums))


def add_licences(bill: Path) -> None:
    """Add the licence of each component to a bill of materials. Raises ``Refused`` if one states none."""
    licences = runpy.run_path(str(ROOT / "deploy/image/sbom.py"))["licences"]
    document = json.loads(bill.read_text())
    for component in document["components"]:
        if not (stated := licences(metadata(component["name"]))):
            raise Refused(f"{component['name']} states no licence. Look for it, or replace the package.")
        component["licenses"] = stated
    bill.write_text(json.dumps(document, indent=2) + "\n")


def keep(artefacts: Path, version: str, commit: str, tags: list[str]) -> None:
    """Keep the artefacts, make the tags, and move the branch. All of it, or nothing."""
    kept, made = ROOT / "dist" / version, []
    try:
        shutil.copytree(artefacts, kept)
        for tag in tags:
            git("tag", "--annotate", "--message", f"Release {version}", tag, commit)
            made.append(tag)
        git("merge", "--quiet", "--ff-only", commit)
    except BaseException:
        for tag in made:
            git("tag", "--delete", tag)
        shutil.rmtree(kept, ignore_errors=True)
        raise


@contextmanager
def worktree() -> Iterator[tuple[Path, Path]]:
    """Make a worktree of this commit in a folder of its own; both are gone afterwards."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        tree = scratch / "tree"
        git("worktree", "add", "--quiet", "--detach", str(tree))
        try:
            yield scratch, tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*arguments: str, at: Path = ROOT) -> str:
    """Run git; its output."""
    done = subprocess.run(["git", "-C", at, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def python(module: str, *arguments: str | Path, at: Path, more: Mapping[str, str] | None = None) -> None:
    """Run a tool of this environment."""
    command = [sys.executable, "-m", module, *arguments]
    subprocess.run(command, cwd=at, env={**os.environ, **(more or {})}, capture_output=True, text=True, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
