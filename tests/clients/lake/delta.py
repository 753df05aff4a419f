"""Deeds of delta-rs on one table: a line of JSON on the standard input names one, and the answer is a line.

It runs in the environment of requirements/tables.txt.
"""

import json
import sys
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake


def perform(deed: str, table: str, options: dict[str, str], number: int) -> Any:
    """Return what the deed found."""
    if deed == "append":
        write_deltalake(table, pa.table({"n": [number]}), mode="append", storage_options=options)
        return None
    opened = DeltaTable(table, storage_options=options)
    match deed:
        case "compact":
            return opened.optimize.compact()["numFilesRemoved"]
        case "checkpoint":
            return opened.create_checkpoint()
        case "vacuum":
            return opened.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
        case "read":
            rows = sorted(pa.table(opened.to_pyarrow_table())["n"].to_pylist())
            return {"rows": rows, "version": opened.version(), "files": opened.file_uris()}
    raise ValueError(deed)


for line in sys.stdin:
    asked = json.loads(line)
    found, error = None, ""
    try:
        found = perform(**asked)
    except Exception as failure:  # noqa: BLE001 - of any kind, it is the answer
        error = f"{type(failure).__name__}: {failure}"
    print(json.dumps({"found": found, "error": error}), flush=True)
