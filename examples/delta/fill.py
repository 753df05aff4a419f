"""Appends rows to the Delta table, each in a file of its own. Its keys come from the environment."""

import pyarrow as pa
from deltalake import write_deltalake

TABLE = "s3://reports/datasets/visits/delta"

for number in range(3):
    write_deltalake(TABLE, pa.table({"n": [number]}), mode="append", storage_options={"AWS_ALLOW_HTTP": "true"})
print("3 rows appended", flush=True)
