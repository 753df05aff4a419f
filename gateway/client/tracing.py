"""The trace that a program is in goes along with what it asks of the gateway.

Only where the program uses opentelemetry itself; nothing is loaded for it. A ``traceparent`` that a caller has put into
a request by hand stays as it is.
"""

import sys
from collections.abc import MutableMapping

_NAMES = ("traceparent", "tracestate")


def carry(headers: MutableMapping[str, str]) -> None:
    """Add what tells the trace to the headers of a request, unless they tell of one already."""
    if "opentelemetry" not in sys.modules or any(name in headers for name in _NAMES):
        return
    try:
        from opentelemetry import propagate  # noqa: PLC0415 - a part of what is there already
    except ImportError:
        return
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    headers.update({name: value for name, value in carrier.items() if name in _NAMES})
