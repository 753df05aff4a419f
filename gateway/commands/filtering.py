"""Filters of the record as options: said once, for all commands that take them."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from gateway.commands.reading import Filters
from gateway.commands.report import moment
from gateway.fencing.record import Kind

Since = Annotated[str | None, typer.Option(metavar="TIME", help="From then on, e.g. 2026-03-01T04:05 (UTC).")]

WHAT: Mapping[str, Any] = {
    "kind": Annotated[list[Kind] | None, typer.Option("--kind", help="Only this kind; may be repeated.")],
    "resource": Annotated[str | None, typer.Option(help="Only this resource.")],
    "prefix": Annotated[str | None, typer.Option(help="Only resources whose name begins so.")],
    "holder": Annotated[str | None, typer.Option(help="Only of this holder.")],
    "caller": Annotated[str | None, typer.Option(help="Only of this caller.")],
    "reason": Annotated[str | None, typer.Option(help="Only refused for this reason, e.g. token-stale.")],
    "plane": Annotated[str | None, typer.Option(help="Only of tables, objects or api.")],
    "rule": Annotated[str | None, typer.Option(help="Only under the rule of this table, or this pattern of keys.")],
    "token": Annotated[str | None, typer.Option(help="Only with this token.")],
    "enforced": Annotated[
        bool | None, typer.Option("--enforced/--observed", help="Only what was refused, or only what was let pass.")
    ],
}
"""What entries are about."""

WHEN: Mapping[str, Any] = {
    "since": Since,
    "until": Annotated[str | None, typer.Option(metavar="TIME", help="Before then.")],
}
"""When they happened."""


def filtered(*options: Mapping[str, Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command these options in the place of its parameter ``filters``, in which it gets what was said.

    typer makes options of the parameters that a function says it has; so the function says what it would have, had they
    been written out.
    """
    hints = {name: hint for group in options for name, hint in group.items()}

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def unfiltered(**given: Any) -> None:
            said = {name: given.pop(name) for name in hints}
            command(**given, filters=_as_asked(said))

        signature = inspect.signature(command)
        parameters: list[inspect.Parameter] = []
        for one in signature.parameters.values():
            parameters += _parameters(hints) if one.name == "filters" else [one]
        # What inspect.signature, and so typer, takes for the signature of a function.
        unfiltered.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return unfiltered

    return decorated


def _parameters(hints: Mapping[str, Any]) -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=None, annotation=hint) for name, hint in hints.items()]


def _as_asked(said: Mapping[str, Any]) -> Filters:
    """Raises ``ConfigurationError`` for what is no time."""
    moments = {name: moment(f"--{name}", said[name]) for name in WHEN if name in said}
    return {**said, **{name: None if read is None else read.isoformat() for name, read in moments.items()}}
