"""How things stand at a gateway at one moment: what is read, and not counted. Pure; ``vitals`` reads it.

What is in the database is the same at each gateway: take the maximum over all of them, not the sum.
"""

from collections.abc import Iterable

from gateway.fencing.record import Kind
from gateway.observe.instruments import Counter, Gauge

MOST_COUNTED = 10_000
"""Rows of a table that are counted: who has so many of what should be few knows enough."""


class Standing:
    """What is read of one gateway."""

    def __init__(self, version: str, python: str, rules: Iterable[tuple[str, str, str]] = ()) -> None:
        """``rules``: plane, name and mode of each that is configured."""
        self.build = Gauge("gateway_build_info", "Which version this is; always 1.", ("version", "python"))
        self.build.values = {(version, python): 1}
        self.rules = Gauge(
            "gateway_rule_info", "The mode of each configured rule; always 1.", ("plane", "rule", "mode")
        )
        self.rules.values = dict.fromkeys(rules, 1)

        # Of this process.
        self.connections = Gauge("gateway_connections", "Connections of clients that are open.")
        self.sessions = Gauge(
            "gateway_sessions",
            "Sessions with Postgres; shared: for statements that share a trip.",
            ("pool", "state"),
        )
        self.sessions_limit = Gauge("gateway_sessions_limit", "The most sessions there may be.", ("pool",))
        self.sessions_waiting = Gauge(
            "gateway_sessions_waiting", "Requests that wait for a session with Postgres.", ("pool",)
        )
        self.streams = Gauge("gateway_streams", "Streams of the record that are being followed.")
        self.lock_waits = Gauge("gateway_lease_waiting", "Places in queues of locks that are waited with here.")
        self.memory = Gauge("gateway_body_memory_bytes", "Memory that bodies of objects have reserved.")
        self.memory_limit = Gauge("gateway_body_memory_limit_bytes", "The most there may be of it.")

        # Of all gateways with this database and this store.
        self.up = Gauge("gateway_service_up", "Whether a service behind the gateway answers: 1, or 0.", ("service",))
        self.intents = Gauge(
            "gateway_intents_pending", f"Object writes that are announced and not over; counted up to {MOST_COUNTED:,}."
        )
        self.oldest_intent = Gauge("gateway_intent_oldest_seconds", "The age of the oldest of them; 0 without any.")
        self.tombstones = Gauge(
            "gateway_tombstones", f"Keys at which a tombstone may stand; counted up to {MOST_COUNTED:,}."
        )
        self.uploads = Gauge(
            "gateway_uploads_staged", f"Uploads open for large bodies; counted up to {MOST_COUNTED:,}."
        )
        self.position = Gauge("gateway_record_position", "The position of the last entry of the record.")
        self.entries = Counter(
            "gateway_record_entries_total",
            "Entries of the record, of all gateways, since this one was scraped first.",
            ("kind",),
            [(kind.value,) for kind in Kind],
        )
        self.unsealed = Gauge(
            "gateway_record_unsealed_entries", f"Entries that are not sealed yet; counted up to {MOST_COUNTED:,}."
        )
        self.oldest_unsealed = Gauge(
            "gateway_record_unsealed_oldest_seconds", "The age of the oldest of them; 0 without any."
        )
        self.held = Gauge("gateway_leases_held", f"Leases that last; counted up to {MOST_COUNTED:,}.")
        self.waiters = Gauge(
            "gateway_lease_waiters", f"Places in queues of locks, at all gateways; counted up to {MOST_COUNTED:,}."
        )
        self.webhook_behind = Gauge(
            "gateway_webhook_behind_entries", "Entries of the record not looked at for a webhook yet.", ("webhook",)
        )
        self.webhook_failing = Gauge(
            "gateway_webhook_failing_seconds", "For how long no message has been taken; 0 if all is well.", ("webhook",)
        )
        self.alarm = Gauge("gateway_alarm_active", "Whether an alarm is on: 1, or 0.", ("alarm",))

    def instruments(self) -> list[Gauge | Counter]:
        """All of them, in the order in which they are declared."""
        return list(vars(self).values())
