"""Merges the files of a Delta table. It knows nothing of fencing: its keys come from the environment.

pip install deltalake
gateway run --lock dataset/visits -- python examples/delta/compact.py
"""

import os
import time

from deltalake import DeltaTable

TABLE = "s3://reports/datasets/visits/delta"

table = DeltaTable(TABLE, storage_options={"AWS_ALLOW_HTTP": "true"})
print(f"compacting version {table.version()}, process {os.getpid()}", flush=True)
time.sleep(float(os.environ.get("WORK", "0")))  # a large table takes longer
print(f"{table.optimize.compact()['numFilesRemoved']} files merged into one", flush=True)
