"""The observability of one gateway, as configured: its log, its metrics, its traces."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from gateway.config import Config
from gateway.errors import ConfigurationError
from gateway.fencing.decision import Enforcement
from gateway.observe.events import Observe, Sinks
from gateway.observe.gauges import StatusGauges
from gateway.observe.logs import log_requests
from gateway.observe.metrics import EventMetrics, Exposition

if TYPE_CHECKING:
    from gateway.observe.tracing import Tracing


class Observability:
    """Sinks of one gateway. ``observe`` gets all events; ``standing`` is filled before ``metrics`` are read."""

    def __init__(self, config: Config, observe: Observe) -> None:
        """``observe``: who else is told. Raises ``ConfigurationError`` where traces are wanted and cannot be had."""
        self._measures = EventMetrics()
        self.standing = StatusGauges(_version(), platform.python_version())
        self.announce(config)
        self.metrics = Exposition(self._measures, self.standing)
        sinks = [observe, *([log_requests] if config.telemetry.access_log else ()), self._measures]
        self._tracing = None
        if config.telemetry.traces is not None:
            self._tracing = _tracing(config.telemetry.traces, Sinks(*sinks))
            sinks.append(self._tracing)
        self.observe = Sinks(*sinks)

    def announce(self, config: Config) -> None:
        """Let the metrics have the names of a configuration, so that the first event of each is a change."""
        rules = [
            *(("tables", rule.name, _mode(rule.mode, config)) for rule in config.tables),
            *(("objects", rule.match, _mode(rule.mode, config)) for rule in config.objects),
        ]
        self.standing.rules.values = dict.fromkeys(rules, 1)
        self._measures.announce(
            [(plane, rule) for plane, rule, _ in rules],
            [webhook.name for webhook in config.webhooks],
            [alarm.name for alarm in config.alarms],
        )

    def around(self, app: ASGIApp) -> ASGIApp:
        """``app``, traced where that is wanted."""
        return app if self._tracing is None else self._tracing.around(app)

    async def close(self) -> None:
        """Hand over what has not been sent yet."""
        if self._tracing is not None:
            await self._tracing.close()


def _mode(mode: Enforcement | None, config: Config) -> str:
    return (mode or config.fencing.mode).value


def _version() -> str:
    try:
        return version("fencing-gateway")
    except PackageNotFoundError:  # from a folder, not installed
        return "unknown"


def _tracing(endpoint: str, observe: Observe) -> "Tracing":
    try:
        from gateway.observe.tracing import Tracing as Traces  # noqa: PLC0415 - not everybody has it, nor wants it
    except ImportError as error:
        raise ConfigurationError(
            "telemetry.traces: opentelemetry is not installed.",
            advice="In a clone of the gateway: pip install '.[tracing]'",
        ) from error
    return Traces(endpoint, version=_version(), observe=observe)
