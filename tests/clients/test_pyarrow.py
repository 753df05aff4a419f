"""PyArrow's own file system, the AWS SDK for C++: Parquet files, as PyIceberg writes them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from tests.clients.gateway import BUCKET, REGION, Lock, Login


@pytest.fixture
def files(lock: Lock, login: Login) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        access_key=login.access_key_id,
        secret_key=login.secret_access_key,
        session_token=login.session_token,
        endpoint_override=lock.gateway.origin,
        region=REGION,
    )


@pytest.mark.thorough
def test_files(files: fs.S3FileSystem, lock: Lock, large: Path) -> None:
    place = f"{BUCKET}/{lock.prefix}"
    table = pa.table({"n": [1, 2, 3]})
    pq.write_table(table, f"{place}d/n.parquet", filesystem=files)
    assert pq.read_table(f"{place}d/n.parquet", filesystem=files).equals(table)
    with files.open_output_stream(f"{place}d/large") as stream:
        stream.write(large.read_bytes())
    assert lock.body("d/large") == large.read_bytes()
    files.move(f"{place}d/large", f"{place}d/moved")
    listed = files.get_file_info(fs.FileSelector(f"{place}d"))
    assert sorted(one.base_name for one in listed) == ["moved", "n.parquet"]
    files.delete_dir(f"{place}d")
    # PyArrow leaves a marker where a directory has become empty.
    assert set(lock.objects()) <= {""}
    assert lock.rejections() == []


def test_after_a_takeover_nothing_is_written(files: fs.S3FileSystem, lock: Lock) -> None:
    lock.seed(there=b"precious", source=b"source")
    place = f"{BUCKET}/{lock.prefix}"
    with lock.overtaken(refusals=3):
        with pytest.raises(OSError, match="overtaken"):
            pq.write_table(pa.table({"n": [1]}), f"{place}there", filesystem=files)
        with pytest.raises(OSError, match="overtaken"):
            files.copy_file(f"{place}source", f"{place}there")
        with pytest.raises(OSError, match="overtaken"):
            files.delete_file(f"{place}there")
