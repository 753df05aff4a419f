"""A Delta table that is compacted under a lock, by a program that needs no line of code for its token."""

from contextlib import AbstractContextManager
from pathlib import Path

from examples.telling import GATEWAY, Machine, Stage, machine, say, stage

LOCK = "dataset/visits"
PYTHON = Path(__file__).resolve().parents[2] / ".venv-tables/bin/python"


def main() -> None:
    here = stage(__doc__)
    if not PYTHON.exists():
        raise SystemExit("Install the table formats first: make .venv-tables/.set-up")
    with job(here, "loader", "fill") as loader:
        loader.end()
    if here.zombie:
        with here.refusals(LOCK):
            zombie(here)
    else:
        with job(here, "compactor-a", "compact") as only:
            only.end()
    log = here.s3().list_objects_v2(Bucket="reports", Prefix="datasets/visits/delta/_delta_log/")["Contents"]
    say(f"The last version of the table: {max(one['Key'] for one in log)}")


def zombie(here: Stage) -> None:
    """The first compactor is paused when it has read the table, for longer than its lease lasts."""
    with job(here, "compactor-a", "compact", work=5) as first:
        first.hear("compacting")
        first.pause()
        say(f"compactor-a stands still (SIGSTOP). Its lease runs out after {here.ttl:g} s.")
        with job(here, "compactor-b", "compact", wait=30) as second:
            second.end()
        say("compactor-a wakes up (SIGCONT), knows nothing, and writes.")
        first.resume_job()
        first.hear("StaleFencingToken")
        first.resume()
        first.end()


def job(here: Stage, name: str, program: str, wait: float = 30, work: float = 0) -> AbstractContextManager[Machine]:
    options = ["--lock", LOCK, "--wait", f"{wait:g}", "--ttl", f"{here.ttl:g}", "--holder", name]
    command = [str(PYTHON), str(Path(__file__).parent / f"{program}.py")]
    return machine(here, name, [*GATEWAY, "run", *options, "--", *command], WORK=f"{work:g}")


if __name__ == "__main__":
    main()
