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

from tests.doubles.s3.app import ACCESS_KEY, REGION, SECRET_KEY, Exchange, S3Double, serve
from tests.doubles.s3.conditions import (
    UNCONDITIONAL,
    Behaviour,
    Condition,
    Refusal,
    refusal_of_delete,
    refusal_of_write,
)
from tests.doubles.s3.faults import Action, Details, Match, Moment, Rule
from tests.doubles.s3.objects import Content, Mutation, Origin, StoredObject
from tests.doubles.s3.process import DoubleProcess
from tests.doubles.s3.state import Store

__all__ = [
    "ACCESS_KEY",
    "REGION",
    "SECRET_KEY",
    "UNCONDITIONAL",
    "Action",
    "Behaviour",
    "Condition",
    "Content",
    "Details",
    "DoubleProcess",
    "Exchange",
    "Match",
    "Moment",
    "Mutation",
    "Origin",
    "Refusal",
    "Rule",
    "S3Double",
    "Store",
    "StoredObject",
    "refusal_of_delete",
    "refusal_of_write",
    "serve",
]
