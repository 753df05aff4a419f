"""The process that fuzzes one parser: ``python -m tests.fuzz.guided NAME FOLDER OPTION…``, with options of libFuzzer.

atheris counts the branches of the gateway that an input takes, and goes on from those that take new ones. An input that
is slow or that no error refuses goes into ``FOLDER/faulty``, one of each kind.
"""

import random
import sys
from pathlib import Path

import atheris  # type: ignore[import-untyped]  # only `make fuzz` installs it

with atheris.instrument_imports(include=["gateway"]):
    from tests.fuzz import parsers


def mutated(data: bytes, most: int, seed: int) -> bytes:
    """Return another input. Some have a part of the last one again and again, which shows time that grows too fast."""
    chance = random.Random(seed)
    if data and chance.random() < 0.01:
        begin = chance.randrange(len(data))
        part = data[begin : begin + chance.randint(1, 40)]
        return (data[:begin] + part * ((most - len(data)) // len(part)) + data[begin:])[:most]
    return bytes(atheris.Mutate(data, most))


def main() -> None:
    name, folder, *options = sys.argv[1:]
    target, faulty, seen = parsers.TARGETS[name], Path(folder) / "faulty", set[str]()

    def test(data: bytes) -> None:
        try:
            slow = parsers.seconds(target, target.take(data)) > parsers.LONGEST
            kind = f"slow-{len(data) // 4096}" if slow else ""
        except Exception as error:  # noqa: BLE001 - whatever a parser raises is a fault
            at = error.__traceback__
            while at is not None and at.tb_next is not None:
                at = at.tb_next
            kind = f"{type(error).__name__}-{0 if at is None else at.tb_lineno}"
        if kind and kind not in seen:
            seen.add(kind)
            (faulty / kind).write_bytes(data)

    atheris.Setup([sys.argv[0], *options], test, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
