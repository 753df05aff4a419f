"""Two replicas of a worker with SQLAlchemy: one of them leads, and writes files and rows under one lock."""

import sys
from contextlib import AbstractContextManager
from pathlib import Path

from examples.telling import ACCESS_KEY, SECRET_KEY, Machine, Stage, machine, say, stage

LOCK = "dataset/clicks"


def main() -> None:
    here = stage(__doc__)
    (zombie if here.zombie else once)(here)
    row = here.get("/v1/tables/catalogue", dataset="eq.clicks")[0]
    say(f"The catalogue: {row['file']} has {row['rows']} clicks. The file says {here.content(row['file'])}.")


def once(here: Stage) -> None:
    """The leader is told to stop, and the other replica is elected."""
    with worker(here, "worker-a") as first:
        first.hear("published")
        with worker(here, "worker-b") as second:
            first.stop()
            second.hear("published")
            second.stop()


def zombie(here: Stage) -> None:
    """The leader is paused, for longer than its lease lasts, between its file and its row."""
    with here.refusals(LOCK), worker(here, "worker-a", work=5) as first:
        first.hear("publishing")
        first.pause()
        say(f"worker-a stands still (SIGSTOP). Its lease runs out after {here.ttl:g} s.")
        with worker(here, "worker-b") as second:
            second.hear("published")
            say("worker-a wakes up (SIGCONT), knows nothing, and writes.")
            first.resume()
            first.hear("leads no more")
            second.stop()
        first.hear("published")
        first.stop()


def worker(here: Stage, name: str, work: float = 1) -> AbstractContextManager[Machine]:
    more = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    program = str(Path(__file__).parent / "worker.py")
    return machine(here, name, [sys.executable, program], TTL=f"{here.ttl:g}", WORK=f"{work:g}", **more)


if __name__ == "__main__":
    main()
