"""Deeds of PyIceberg on one table: a line of JSON on the standard input names one, and the answer is a line.

It runs in the environment of requirements/tables.txt. The token is in variables, as ``gateway run`` gives it: the S3
keys in ``AWS_…``, and in ``PGOPTIONS`` the settings of each session with the catalog.
"""

import json
import os
import sys
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from sqlalchemy import event


def perform(deed: str, catalog: SqlCatalog, name: str, number: int, files: list[str]) -> Any:
    """Return what the deed found."""
    if deed == "create":
        catalog.create_namespace_if_not_exists("shop")
        catalog.create_table(name, schema=pa.schema([("n", pa.int64())]))
        return None
    table = catalog.load_table(name)
    match deed:
        case "append":
            return table.append(pa.table({"n": [number]}))
        case "compact":
            return table.overwrite(table.scan().to_arrow())
        case "compact, but stop before the row":
            stop_before_the_row(catalog)
            return table.overwrite(table.scan().to_arrow())
        case "remove":
            for file in files:
                table.io.delete(file)
            return None
        case "read":
            parts = sorted(task.file.file_path for task in table.scan().plan_files())
            rows = sorted(table.scan().to_arrow()["n"].to_pylist())
            return {"rows": rows, "parts": parts, "used": sorted(used(table)), "metadata": table.metadata_location}
    raise ValueError(deed)


def used(table: Table) -> set[str]:
    """Return the addresses of all files that the table needs, with those of its older snapshots."""
    found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    for snapshot in table.snapshots():
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found.update(entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io))
    return found


def stop_before_the_row(catalog: SqlCatalog) -> None:
    """Wait for a line on the standard input when all is written but the row of the catalog."""

    def stop(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE iceberg_tables"):
            print(json.dumps("written"), flush=True)
            sys.stdin.readline()

    event.listen(catalog.engine, "before_cursor_execute", stop)


for line in sys.stdin:
    asked = json.loads(line)
    os.environ.update(asked["environment"])
    found, error = None, ""
    try:
        catalog = SqlCatalog("lake", **asked["properties"])
        found = perform(asked["deed"], catalog, asked["table"], asked["number"], asked["files"])
        catalog.close()
    except Exception as failure:  # noqa: BLE001 - of any kind, it is the answer
        error = f"{type(failure).__name__}: {failure}"
    print(json.dumps({"found": found, "error": error}), flush=True)
