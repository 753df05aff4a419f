"""Locks for programs without a lock service: leases with tokens that only grow.

The database decides (``db/schema/leases.sql``), by its own clock: a lock is a row, and a release hands it over in its
own transaction. This process carries questions in batches and sleeps beside its waiters. Its timers only say when to
look. A waiter does not poll: heartbeats of the process keep its place, and repair a lost announcement.

The API and assembly import ``service``.
"""
