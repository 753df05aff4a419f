"""An S3 for proving the gateway: AWS's conditional writes, strictly atomic, with switches for faults.

In process:

    double = S3Double(buckets=["bucket"])
    async with serve(double) as endpoint:
        late = double.hold(operation="PutObject", key="a")
        ...
        late.release()
        await late.finished.wait()

As a process of its own: `python -m tests.doubles.s3 --port 0 --bucket bucket`, or `DoubleProcess.start()`.
"""

from tests.doubles.s3.app import ACCESS_KEY, REGION, SECRET_KEY, S3Double, serve
from tests.doubles.s3.conditions import Condition, Refusal, refusal_of_delete, refusal_of_write
from tests.doubles.s3.faults import Rule
from tests.doubles.s3.objects import Mutation
from tests.doubles.s3.process import DoubleProcess

__all__ = [
    "ACCESS_KEY",
    "REGION",
    "SECRET_KEY",
    "Condition",
    "DoubleProcess",
    "Mutation",
    "Refusal",
    "Rule",
    "S3Double",
    "refusal_of_delete",
    "refusal_of_write",
    "serve",
]
