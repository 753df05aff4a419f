"""What is known, anywhere in the code, of the request in whose service it runs. Pure: context variables and no I/O.

Each request is served in a task of its own, and tasks take the values along. Work that is done for many requests at
once must run in a context of its own (``contextvars.Context()``), or it would pass for the work of whoever came first.
"""

from contextvars import ContextVar
from typing import TypeAlias

Headers: TypeAlias = tuple[tuple[str, str], ...]

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request; None outside of any."""

ORIGIN: ContextVar[object | None] = ContextVar("origin", default=None)
"""Where in a trace this is; None where there is no trace. Only ``gateway.observe.tracing`` looks into it."""

SENT_ALONG: ContextVar[Headers] = ContextVar("sent_along", default=())
"""Headers that go along with requests to other services, so that they can carry the trace on. They are not signed: what
stands on the way may change them.
"""

TRACE_IDS: dict[str, str] = {}
"""The trace of each request under way, by the id of the request; nothing where nobody traces."""
