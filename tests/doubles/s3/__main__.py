"""`python -m tests.doubles.s3`: the double as a process. Prints "ready ENDPOINT" when it listens; SIGTERM ends it."""

from __future__ import annotations

import argparse
import asyncio
import signal

import uvloop

from tests.doubles.s3.app import S3Double, serve


async def run(arguments: argparse.Namespace) -> None:
    """Serve until a signal comes."""
    double = S3Double(buckets=arguments.bucket)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with serve(double, arguments.port) as endpoint:
        print("ready", endpoint, flush=True)
        await stopped.wait()


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.doubles.s3", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--bucket", action="append", default=[], metavar="NAME", help="make it at the start")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
