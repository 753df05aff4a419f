"""A job with the AWS CLI through fenced credentials: it needs no line of code for its token."""

from contextlib import AbstractContextManager
from pathlib import Path

from examples.telling import GATEWAY, Machine, Stage, machine, say, stage

LOCK = "job/export"
JOB = str(Path(__file__).parent / "export.sh")


def main() -> None:
    here = stage(__doc__)
    say(f"gateway run --lock {LOCK} -- export.sh, which uploads two parts with the AWS CLI")
    if here.zombie:
        zombie(here)
    else:
        with job(here, "machine-a") as only:
            only.end()
    for part in here.s3().list_objects_v2(Bucket="reports", Prefix="jobs/export/")["Contents"]:
        body = here.s3().get_object(Bucket="reports", Key=part["Key"])["Body"].read().decode().strip()
        say(f"s3://reports/{part['Key']}: {body}")


def zombie(here: Stage) -> None:
    """The first machine is paused between the two parts, for longer than its lease lasts."""
    with job(here, "machine-a", work=3) as first:
        first.hear("working")
        first.pause()
        say(f"machine-a stands still (SIGSTOP). Its lease runs out after {here.ttl:g} s.")
        with job(here, "machine-b", wait=30) as second:
            second.end()
        say("machine-a wakes up (SIGCONT), knows nothing, and uploads its second part.")
        first.resume_job()
        first.hear("StaleFencingToken")
        first.resume()
        first.end()
    here.refusals(LOCK)


def job(here: Stage, name: str, wait: float = 0, work: float = 0) -> AbstractContextManager[Machine]:
    options = ["--lock", LOCK, "--wait", f"{wait:g}", "--ttl", f"{here.ttl:g}", "--holder", name]
    return machine(here, name, [*GATEWAY, "run", *options, "--", JOB], WORK=f"{work:g}")


if __name__ == "__main__":
    main()
