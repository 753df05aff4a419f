"""The inputs that fuzzing has found for each parser: kept, and searched for more of them.

``fuzz`` gives each target its share of the time, in a process of its own (``guided.py``). It checks all that is new
once more without atheris, whose counters make a parser slow.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.fuzz.parsers import TARGETS, Target, check, run

CORPUS = Path(__file__).with_name("corpus")
_GATEWAY = f"{os.sep}gateway{os.sep}"
_LONGEST_KEPT = 1024
_MOST_KEPT = 6 * 1024
"""Bytes of a target's corpus in the repository."""
_SHORTEST = 5
"""Seconds for a target: to import the gateway with counters takes about as long again."""


def entries(name: str) -> list[bytes]:
    """Return the corpus of a target: a file of JSON strings, whose characters stand for bytes."""
    path = CORPUS / f"{name}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line).encode("latin-1") for line in lines]


def keep(name: str, found: Iterable[bytes]) -> None:
    CORPUS.mkdir(exist_ok=True)
    lines = sorted({json.dumps(one.decode("latin-1")) for one in found}, key=lambda line: (len(line), line))
    (CORPUS / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def fuzz(minutes: float, names: Iterable[str], seed: int, *, keeps: bool) -> bool:
    """Fuzz these targets, or all, and print faults. Return whether there are any. ``keeps``: extend the corpus."""
    chosen = list(names) or list(TARGETS)
    share = max(_SHORTEST, int(60 * minutes / len(chosen)))
    faults = []
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="fuzz") as folder:
            found = _fuzzed(name, Path(folder), share, seed, keeps=keeps)
        print("".join(f"{one}\n" for one in found), end="", flush=True)
        faults += found
    return bool(faults)


def _fuzzed(name: str, folder: Path, share: int, seed: int, *, keeps: bool) -> list[str]:
    target, corpus, faulty = TARGETS[name], folder / "corpus", folder / "faulty"
    for one in (corpus, faulty):
        one.mkdir()
    known = {*target.seeds, *entries(name)}
    for data in known:
        (corpus / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    words = folder / "words"
    # libFuzzer takes no empty file.
    words.write_text("".join(f'"{_escaped(one)}"\n' for one in target.words or (b" ",)), encoding="ascii")
    child = [sys.executable, "-m", "tests.fuzz.guided", name, str(folder)]
    options = [
        f"-max_total_time={share}",
        f"-max_len={target.largest}",
        "-len_control=100",
        f"-seed={seed}",
        "-timeout=300",  # by the clock, also while the machine stops the process
    ]
    options += [f"-dict={words}", f"-artifact_prefix={faulty}/", "-rss_limit_mb=2048", str(corpus)]
    ran = subprocess.run([*child, *options], capture_output=True, text=True, errors="replace", check=False)
    runs = next((line.split()[1] for line in ran.stderr.splitlines() if line.startswith("Done ")), None)
    print(f"{name}: {runs or 'an unknown number of'} inputs in {share} s", flush=True)
    found = {one.read_bytes() for one in (*corpus.iterdir(), *faulty.iterdir())} - known
    faults = [] if runs else [f"{name}: the fuzzer ended with {ran.returncode}: {ran.stderr[-2000:]}"]
    sound = set[bytes]()
    for data in sorted(found, key=len):
        try:
            check(target, data)
        except Exception as error:  # noqa: BLE001 - whatever a parser raises is a fault
            faults.append(f"{name}: {error!r} at {data[:300]!r}, {len(data)} bytes")
        else:
            sound.add(data)
    if keeps:
        keep(name, _smallest(target, (sound | known) - set(target.seeds)))
    return faults


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def _smallest(target: Target, found: Iterable[bytes]) -> list[bytes]:
    """Return the inputs that take a way which no shorter one takes, as many as a corpus has room for."""
    kept, left, taken = [], _MOST_KEPT, {way for data in target.seeds for way in _ways(target, data)}
    for data in sorted(found, key=len):
        ways = _ways(target, data) - taken if len(data) <= min(left, _LONGEST_KEPT) else set()
        if ways:
            kept.append(data)
            taken |= ways
            left -= len(data)
    return kept


def _ways(target: Target, data: bytes) -> set[tuple[CodeType, int, int]]:
    """Return the steps from line to line of the gateway that an input takes."""
    ways, before = set[tuple[CodeType, int, int]](), dict[FrameType, int]()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if _GATEWAY not in frame.f_code.co_filename:
            return None
        if event == "line":
            ways.add((frame.f_code, before.get(frame, 0), frame.f_lineno))
            before[frame] = frame.f_lineno
        return trace

    given = target.take(data)
    sys.settrace(trace)
    try:
        run(target, given)
    finally:
        sys.settrace(None)
    return ways
