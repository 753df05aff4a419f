"""One cron job on three machines: one of them does the work."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from examples.telling import GATEWAY, Machine, Stage, machine, say, stage

LOCK = "job/nightly"
JOB = (str(Path(__file__).parent / "nightly.sh"),)
_THEN_THE_ROW = """
overwrite() { echo "UPDATE runs SET machine = :'machine' WHERE job = 'nightly' AND day = :'night'" | sql; }
trap overwrite EXIT
. "$0"
"""
CARELESS = ("sh", "-c", _THEN_THE_ROW, *JOB)
"""The same job without its care: after a failed upload, it writes its row all the same."""


def main() -> None:
    here = stage(__doc__)
    night = next_night(here)
    say(f"Three machines, one crontab line: gateway run --lock {LOCK} --wait 0 -- nightly.sh")
    (zombie if here.zombie else once)(here, night)
    row = here.get("/v1/tables/runs", job="eq.nightly", day=f"eq.{night}")[0]
    say(f"In the table: the night of {row['day']} was done by {row['machine']}.")
    say(f"In the bucket: {here.content(f'jobs/nightly/{night}.txt')}.")


def once(here: Stage, night: str) -> None:
    """Three o'clock. One of them gets the lock; the others find it held."""
    with ExitStack() as machines:
        started = [machines.enter_context(job(here, name, night)) for name in ("machine-a", "machine-b", "machine-c")]
        for one in started:
            one.end()


def zombie(here: Stage, night: str) -> None:
    """The first one is paused in the midst of its work, for longer than its lease lasts."""
    with here.refusals(LOCK, 2), job(here, "machine-a", night, work=5, command=CARELESS) as first:
        first.hear("working")
        first.pause()
        say(f"machine-a stands still (SIGSTOP). Its lease runs out after {here.ttl:g} s.")
        with job(here, "machine-b", night, wait=30) as second:
            second.end()
        say("machine-a wakes up (SIGCONT), knows nothing, and writes.")
        first.resume_job()
        first.hear("StaleFencingToken")
        say("nightly.sh ends here. In this play, machine-a writes its row all the same.")
        first.hear("has been overtaken")
        first.resume()
        first.end()


def job(
    here: Stage, name: str, night: str, wait: float = 0, work: float = 1, command: Sequence[str] = JOB
) -> AbstractContextManager[Machine]:
    options = ["--lock", LOCK, "--wait", f"{wait:g}", "--ttl", f"{here.ttl:g}", "--holder", name]
    return machine(here, name, [*GATEWAY, "run", *options, "--", *command], NIGHT=night, WORK=f"{work:g}")


def next_night(here: Stage) -> str:
    """Return the first night from today on that is not done: an example can be played several times a day."""
    done = here.get("/v1/tables/runs", job="eq.nightly", select="day", order="day.desc", limit=1)
    today = datetime.now(UTC).date()
    return str(max([today, *(date.fromisoformat(row["day"]) + timedelta(days=1) for row in done)]))


if __name__ == "__main__":
    main()
