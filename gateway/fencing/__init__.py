"""The rules, as values and functions without I/O: tokens, resources, decisions, leases, naming, ownership, the record.

A ``Token`` is an epoch and a number, compared in that order. ``decision.decide(fence, presented)`` is the rule of the
promise: a token raises its fence, holds it, or is refused. The functions of ``db/schema`` decide the same under a lock,
and tests compare both. A name is canonical: one resource has one text, by its bytes.

Everything may import these modules. They import ``errors`` only, and read no clock.
"""
