"""The gateway's memory for large bodies: many at once, and one of the largest that S3 takes in a request."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import MEBIBYTE, peak_memory
from bench.objects import BUCKET, presigned
from bench.services import KEYS, Services, running
from tests.doubles.s3 import ACCESS_KEY, SECRET_KEY, DoubleProcess
from tests.stores.store import Store, User

GIBIBYTE = 1024 * MEBIBYTE


@contextmanager
def front() -> Iterator[Services]:
    """Run a gateway in front of a store that accepts every object and keeps no bytes."""
    with DoubleProcess.start(buckets=[BUCKET]) as double:
        double.behave(keeps_bodies=False)
        with running(Store("double", double.endpoint, User("gateway", ACCESS_KEY, SECRET_KEY))) as services:
            yield services


def peak(services: Services, size: int, count: int) -> float:
    """MiB that were resident at most while ``count`` bodies of ``size`` bytes were put, all at once."""
    with ExitStack() as stack:
        file = Path(stack.enter_context(TemporaryDirectory(prefix="bench"))) / "zeros"
        with file.open("wb") as zeros:
            zeros.truncate(size)
        seen = stack.enter_context(peak_memory(services.gateway_pid))
        user = User("bench", *KEYS)
        urls = [presigned(services.gateway, user, "put_object", f"{size}-{number}") for number in range(count)]
        command = ["curl", "--silent", "--show-error", "--fail", "--header", "Expect:", "--upload-file", str(file)]
        uploads = [subprocess.Popen([*command, url], stdout=subprocess.DEVNULL) for url in urls]
        outcomes = [upload.wait() for upload in uploads]
        assert not any(outcomes), "a body was not taken"
    return seen.mebibytes


def table() -> Iterator[str]:
    """Yield the lines of the table, in Markdown."""
    yield "| PutObject of | the gateway's memory at most |"
    yield "|---|--:|"
    with front() as services:
        for name, size, count in (
            ("64 MiB, 64 at once", 64 * MEBIBYTE, 64),
            ("5 GiB, one", 5 * GIBIBYTE, 1),
        ):
            yield f"| {name} | {peak(services, size, count):.0f} MiB |"
