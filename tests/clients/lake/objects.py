"""Deeds of obstore, smart_open and Polars: a line of JSON on the standard input names one, and the answer is a line.

It runs in the environment of requirements/tables.txt. ``everything`` is ordinary use, in which nothing is refused. It
leaves what its library cannot delete. An error is found by its code.
"""

import json
import re
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import obstore
import polars
import smart_open
from obstore.store import S3Store

MEBIBYTE = 1024**2
REGION = "us-east-1"
Deeds = dict[str, Callable[[], Any]]


def expect(holds: bool, what: str) -> None:  # noqa: FBT001 - as the programs in other languages have it
    if not holds:
        raise ValueError(what)


def of_obstore(keys: dict[str, str], endpoint: str, bucket: str, prefix: str, file: str) -> Deeds:
    """It is object_store, the library below delta-rs and Polars."""
    store = S3Store(
        bucket, prefix=prefix, endpoint=endpoint, region=REGION, client_options={"allow_http": True},
        access_key_id=keys["AWS_ACCESS_KEY_ID"], secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        session_token=keys["AWS_SESSION_TOKEN"], copy_if_not_exists="multipart",
    )  # fmt: skip

    def names() -> list[str]:
        return sorted(found["path"] for page in store.list() for found in page)

    def in_parts(name: str) -> None:
        store.put(name, Path(file), chunk_size=8 * MEBIBYTE)

    def stream(name: str) -> None:
        with obstore.open_writer(store, name, buffer_size=5 * MEBIBYTE) as writer:
            writer.write(Path(file).read_bytes())

    def everything() -> None:
        first = store.put("a b+c/ü.txt", b"hello", mode="create", attributes={"Content-Type": "text/plain"})
        again = store.put("a b+c/ü.txt", b"hello")
        changed = store.put("a b+c/ü.txt", b"changed", mode={"e_tag": again["e_tag"]})
        expect(changed["e_tag"] != first["e_tag"], "an ETag")
        expect(bytes(store.get_range("a b+c/ü.txt", start=1, end=4)) == b"han", "a range")
        in_parts("parts")
        stream("stream")
        for name in ("parts", "stream"):
            expect(bytes(store.get(name).bytes()) == Path(file).read_bytes(), "what was uploaded")
        store.copy("parts", "copy")
        store.copy("a b+c/ü.txt", "new", overwrite=False)
        store.rename("copy", "renamed")
        expect(names() == ["a b+c/ü.txt", "new", "parts", "renamed", "stream"], f"a listing: {names()}")
        expect(store.list_with_delimiter()["common_prefixes"] == ["a b+c"], "a listing of one level")
        store.delete("new")
        store.delete(["a b+c/ü.txt", "parts", "renamed", "stream"])

    return {
        "everything": everything,
        "put": lambda: store.put("there", b"zombie"),
        "putOnCondition": lambda: store.put("new", b"zombie", mode="create"),
        "uploadInParts": lambda: in_parts("there"),
        "stream": lambda: stream("there"),
        "copy": lambda: store.copy("source", "there"),
        "copyOnCondition": lambda: store.copy("source", "new", overwrite=False),
        "rename": lambda: store.rename("source", "there"),
        "delete": lambda: store.delete("there"),
        "deleteMany": lambda: store.delete(["there", "source"]),
    }


def of_smart_open(keys: dict[str, str], endpoint: str, bucket: str, prefix: str, file: str) -> Deeds:
    """It has files only. Its users delete and copy with the client that they give it."""
    session: dict[str, Any] = {"region_name": REGION, **{name.lower(): value for name, value in keys.items()}}
    client = boto3.Session(**session).client("s3", endpoint_url=endpoint)

    def write(name: str, body: bytes, **more: Any) -> None:
        with smart_open.open(f"s3://{bucket}/{prefix}{name}", "wb", transport_params={"client": client, **more}) as to:
            to.write(body)

    def read(name: str) -> bytes:
        with smart_open.open(f"s3://{bucket}/{prefix}{name}", "rb", transport_params={"client": client}) as found:
            body: bytes = found.read()
        return body

    def everything() -> None:
        for body in (b"hello", b"hello", b"changed"):
            write("a b+c/ü.txt", body, multipart_upload=False)
            expect(read("a b+c/ü.txt") == body, "what was written")
        for _ in range(2):
            write("stream", Path(file).read_bytes(), min_part_size=5 * MEBIBYTE)
        expect(read("stream") == Path(file).read_bytes(), "what was uploaded")
        write("small", b"one part")
        write("packed.gz", b"packed")
        expect(read("packed.gz") == b"packed", "what was packed")
        more = {"session_kwargs": session, "client_kwargs": {"endpoint_url": endpoint}}
        found = sorted(key.removeprefix(prefix) for key, _ in smart_open.s3.iter_bucket(bucket, prefix, **more))
        expect(found == ["a b+c/ü.txt", "packed.gz", "small", "stream"], f"a listing: {found}")

    return {
        "everything": everything,
        "put": lambda: write("there", b"zombie", multipart_upload=False),
        "uploadInParts": lambda: write("there", Path(file).read_bytes(), min_part_size=5 * MEBIBYTE),
        "uploadSmall": lambda: write("there", b"zombie"),
    }


def of_polars(keys: dict[str, str], endpoint: str, bucket: str, prefix: str, file: str) -> Deeds:
    """It writes and reads tables, and deletes and copies nothing."""
    options = {"aws_endpoint_url": endpoint, "aws_region": REGION, "aws_allow_http": "true"}
    options |= {name.lower(): value for name, value in keys.items()}
    small = polars.DataFrame({"n": [1, 2, 3], "day": ["a", "a", "b"]})
    large = polars.DataFrame({"bytes": [Path(file).read_bytes()[at : at + MEBIBYTE] for at in range(20)]})

    def at(name: str) -> str:
        return f"s3://{bucket}/{prefix}{name}"

    def put(name: str, table: polars.DataFrame = small) -> None:
        table.write_parquet(at(name), storage_options=options, compression="uncompressed")

    def everything() -> None:
        for _ in range(2):
            put("one.parquet")
        expect(polars.read_parquet(at("one.parquet"), storage_options=options).equals(small), "what was written")
        put("large.parquet", large)
        expect(polars.read_parquet(at("large.parquet"), storage_options=options).equals(large), "what was uploaded")
        small.lazy().sink_csv(at("two.csv"), storage_options=options)
        small.lazy().sink_ndjson(at("three.ndjson"), storage_options=options)
        scanned = polars.scan_csv(at("*.csv"), storage_options=options).filter(polars.col("n") > 1).collect()
        expect(scanned["n"].to_list() == [2, 3], "a pattern")
        small.lazy().sink_parquet(polars.PartitionBy(at("days/"), key="day"), storage_options=options)
        days = polars.scan_parquet(at("days/"), storage_options=options).sort("n").collect()
        expect(days["day"].to_list() == ["a", "a", "b"], "partitions")

    return {
        "everything": everything,
        "put": partial(put, "there"),
        "uploadInParts": partial(put, "there", large),
        "sink": lambda: small.lazy().sink_csv(at("there"), storage_options=options),
    }


LIBRARIES = {"obstore": of_obstore, "smart_open": of_smart_open, "polars": of_polars}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        library, deed = LIBRARIES[asked.pop("library")], asked.pop("deed")
        found: list[str] = []
        error = ""
        try:
            library(**asked)[deed]()
        except Exception as failure:  # noqa: BLE001 - of any kind, it is the answer
            error = "".join(traceback.format_exception(failure))
            found = re.findall("StaleFencingToken", error)[:1]
        print(json.dumps({"found": found, "error": error}), flush=True)


main()
