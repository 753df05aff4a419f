"""Observability: call sites report events, and sinks make a log, metrics and traces of them.

``events`` has every event as frozen data. No plane knows a library of metrics or traces, and tests see what is
measured. Names of durable steps are events, too, so that a crash test can stop a process there. No label has a value
that a caller could choose.

Everything may import ``events``, ``stages`` and ``repeats``. Only assembly imports the sinks.
"""
