"""Plays the rows against a real PostgREST: ``python -m tests.conformance.tables.replay``.

It needs two addresses in the environment: ``POSTGREST_URL``, where PostgREST listens, and ``POSTGREST_DSN``, the
database behind it, as a user who may create schemas. The schemas ``cinema`` and ``archive`` are made anew, and dropped
at the end. PostgREST has to be told to serve them to a role that may use them, and nothing else that changes answers::

    db-schemas = "cinema, archive"
    db-anon-role = "postgres"

No fencing header is sent, and no difference is excused: what a row expects is what PostgREST does. The exit code is 1
where it does something else.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException

from tests.conformance.tables.asking import Asker, play
from tests.conformance.tables.row import ROWS, Row
from tests.conformance.tables.stage import Stage

_PATIENCE = 30.0
_FIRST = ROWS["selects: no select is everything"]


def replay(address: str, dsn: str, wanted: Callable[[Row], bool] = lambda _: True) -> Iterator[tuple[str, list[str]]]:
    """Each wanted row's name, and what is not as it expects."""
    with Stage(dsn) as stage:
        asker = Asker(address)
        _wait_for_tables(asker)
        for name, row in ROWS.items():
            if wanted(row):
                yield name, _played(row, stage, asker)
        asker.close()


def _played(row: Row, stage: Stage, asker: Asker) -> list[str]:
    try:
        return play(row, stage, asker)
    except (OSError, HTTPException) as error:
        return [f"no answer: {error!r}"]


def _wait_for_tables(asker: Asker) -> None:
    """PostgREST reads the schema again some time after it was told to."""
    give_up = time.monotonic() + _PATIENCE
    while asker.ask(_FIRST).status != 200:
        if time.monotonic() > give_up:
            raise SystemExit("The server does not serve the table cinema.directors: see the top of this file.")
        time.sleep(0.1)


def main() -> int:
    try:
        address, dsn = os.environ["POSTGREST_URL"], os.environ["POSTGREST_DSN"]
    except KeyError as missing:
        print(f"{missing.args[0]} is not set.\n\n{__doc__}", file=sys.stderr)
        return 2
    played = failed = 0
    for name, found in replay(address, dsn):
        played += 1
        if found:
            failed += 1
            print(f"{name}  ({ROWS[name].reference})", *found, sep="\n    ")
    print(f"{played} rows, {failed} of them otherwise than expected")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
