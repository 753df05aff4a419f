"""Webhooks and alarms: entries of the record, sent to receivers in order, at least once.

The outbox of a webhook is a position in the record, so recording costs nothing more while a receiver is down. An alarm
is an entry, too. ``messages``, ``signing`` and ``rate`` are pure. No write waits for any of this. Assembly imports it,
and the configuration checks secrets by ``signing``.
"""
