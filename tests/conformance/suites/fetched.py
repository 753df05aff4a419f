"""Fetches foreign suites at a pinned version. A name and a hash pin each, and nothing of them is kept here."""

import json
import shutil
import subprocess
from pathlib import Path

from tests.stores.store import StoreMissing, program

BUILD = Path(__file__).parents[3] / "build" / "suites"


def go_module(module: str, checksum: str) -> Path:
    """Return the source of a module, such as ``example.com/module@v1.0.0``, whose ``checksum`` begins with ``h1:``."""
    go = program("go", "the suite is built with it, see https://go.dev/dl")
    told = subprocess.run([go, "mod", "download", "-json", module], capture_output=True, text=True, check=False)
    found = json.loads(told.stdout) if told.stdout else {}
    if told.returncode:
        raise StoreMissing(f"{module} cannot be fetched: {found.get('Error', told.stderr)}")
    assert found["Sum"] == checksum, f"{module} is another one than was pinned: {found['Sum']}"
    return Path(found["Dir"])


def go_program(name: str, source: Path, *arguments: str) -> Path:
    """Return what ``go ARGUMENTS`` makes of a source. Go's cache has what did not change since the last time."""
    built = BUILD / name
    subprocess.run(
        [program("go", "see https://go.dev/dl"), *arguments[:1], "-o", built, *arguments[1:]], cwd=source, check=True
    )
    return built


def git_folder(checkout: Path, address: str, tag: str, commit: str, folder: str) -> Path:
    """Return a folder of a repository, as it is in the commit of a tag. Git checks the content by the commit's hash."""
    shutil.rmtree(checkout, ignore_errors=True)
    git = program("git", "the suite is fetched with it")
    clone = ["clone", "--quiet", "--depth=1", "--filter=blob:none", "--sparse", "-c", "advice.detachedHead=false"]
    cloned = subprocess.run(
        [git, *clone, f"--branch={tag}", address, checkout], stderr=subprocess.PIPE, text=True, check=False
    )
    if cloned.returncode:
        raise StoreMissing(f"{address} cannot be fetched: {cloned.stderr.strip()}")
    head = subprocess.run(
        [git, "-C", checkout, "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert head.strip() == commit, f"{tag} of {address} is another commit than was pinned: {head}"
    subprocess.run([git, "-C", checkout, "sparse-checkout", "set", folder], check=True)
    return checkout / folder
