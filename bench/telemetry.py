"""The cost of measuring a write: the processor time of all events that the hot path announces for one write.

    python -m bench.telemetry

No database and no network: the events of a write, and the sinks of a gateway. Each figure is the least of several runs.
"""

from collections.abc import Callable
from time import perf_counter, process_time
from timeit import repeat

from gateway.observe.events import (
    BatchBegun,
    BatchSent,
    Observe,
    RequestAnswered,
    Sinks,
    StepReached,
    WriteAccepted,
)
from gateway.observe.logs import log
from gateway.observe.metrics import EventMetrics
from gateway.observe.stages import ORIGIN, REQUEST_ID
from gateway.record.flushing import Traffic

RUNS, ROUNDS = 7, 20_000
TRIP = 8
"""Writes that share a trip, on a busy gateway."""

_BEFORE, _AFTER = StepReached("tables.fast.before"), StepReached("tables.fast.after")
_ACCEPTED = WriteAccepted("tables", "public.accounts", "recipe")


def write(observe: Observe) -> None:
    """Announce the events of one write, as the middleware, the fast path and the batches do."""
    began = perf_counter()
    REQUEST_ID.set("0123456789abcdef")
    observe(_BEFORE)
    ORIGIN.get()
    perf_counter()
    observe(_AFTER)
    observe(_ACCEPTED)
    seconds = perf_counter() - began
    observe(RequestAnswered("id", "tables", "PATCH", "/x", 204, None, seconds, 0, "worker", "127.0.0.1", None))


def trip(observe: Observe) -> None:
    """Announce the events of a whole batch."""
    began = perf_counter()
    observe(BatchBegun(True, (None,) * TRIP))  # noqa: FBT003
    observe(BatchSent(True, TRIP, 0.001, perf_counter() - began))  # noqa: FBT003


def before(observe: Observe) -> None:
    """Announce the events that existed before the measurements."""
    observe(_BEFORE)
    observe(_AFTER)


def microseconds(work: Callable[[], object]) -> float:
    return min(repeat(work, number=ROUNDS, repeat=RUNS, timer=process_time)) / ROUNDS * 1e6


def main() -> None:
    measures = EventMetrics()
    measures.announce([("tables", "public.accounts")], [], [])
    baseline = microseconds(lambda: before(log))
    for name, sinks in (("metrics", Sinks(log, measures)), ("metrics and traffic", Sinks(log, measures, Traffic()))):
        # The sinks are bound to the loop's round before the next one begins.
        each = microseconds(lambda sinks=sinks: write(sinks)) + microseconds(lambda sinks=sinks: trip(sinks)) / TRIP  # type: ignore[misc]
        print(f"{name}: {each - baseline:.2f} µs a write")


if __name__ == "__main__":
    main()
