"""The doctor's findings on writes under way, leftovers and side effects of writes."""

from collections.abc import Sequence
from datetime import timedelta

from gateway.config import Config, toml
from gateway.config.rules import TableRule
from gateway.db import catalog, intents, uploads
from gateway.db.database import Database
from gateway.fencing.decision import Cascades
from gateway.findings import Check, CheckStatus, attempt, ok, problem, warning
from gateway.objects.sweeper import LEFT_BEHIND
from gateway.table_rules import table_rules
from gateway.tables.catalog import Snapshot
from gateway.tables.reach import SideEffect, find_side_effects

_MOST_PENDING = 1000
_LONG_PENDING = timedelta(minutes=1)
_MANY = 10_000
_SWEEP = "Running gateways clear them away. Run gateway sweep to do it now."

UNKNOWN = problem("intents", "not known without the database", "")


async def check_leftovers(database: Database) -> Sequence[Check]:
    """Return the checks of writes that may be under way, and of leftovers of lost gateways."""
    return [
        *await attempt("intents", _of_intents(database)),
        *await attempt("uploads", _of_uploads(database)),
        *await attempt("tombstones", _of_tombstones(database)),
    ]


async def _of_intents(database: Database) -> Sequence[Check]:
    pending = await intents.list_pending(database, _MOST_PENDING)
    if not pending:
        return [ok("intents", "none")]
    age = await database.now() - pending[0].signed_at
    detail = f"{_counted(pending)}, the oldest for {age.total_seconds():.0f} s on {pending[0].bucket}/{pending[0].key}"
    if age < _LONG_PENDING:
        return [ok("intents", detail)]
    advice = (
        "Nothing to do: the next write or barrier of a newer holder settles them, or the sweeper, an hour later. Many "
        "mean that writers crash."
    )
    return [warning("intents", detail, advice)]


async def _of_uploads(database: Database) -> Sequence[Check]:
    left = await uploads.list_left_behind(database, LEFT_BEHIND.total_seconds(), _MOST_PENDING)
    if not left:
        return [ok("uploads", "none was left behind")]
    detail = f"{_counted(left)} left behind by gateways that went away, the oldest of {left[0].place.bucket}"
    return [warning("uploads", detail, _SWEEP)]


async def _of_tombstones(database: Database) -> Sequence[Check]:
    count, waiting = await intents.count_tombstones(database, await database.now())
    if not count:
        return [ok("tombstones", "none")]
    detail = f"{count}, {waiting} of them may not be swept yet: late requests may be waiting for absence"
    return [warning("tombstones", detail, _SWEEP) if count - waiting > _MANY else ok("tombstones", detail)]


def _counted(found: Sequence[object]) -> str:
    return f"{len(found)}{'' if len(found) < _MOST_PENDING else ' or more'}"


async def check_side_effects(config: Config, database: Database) -> Sequence[Check]:
    """Return a finding for each cascade, trigger, rule and child without a rule. Raise ``GatewayError``.

    An effect that the gateway refuses is in order.
    """
    rows = await catalog.relations(database, config.postgres.schemas)
    snapshot = Snapshot.from_rows(rows, await catalog.references(database))
    rules, default = table_rules(config)
    found = find_side_effects(snapshot, lambda schema, name: rules.get(f"{schema}.{name}", default))
    if not found:
        return [ok("reach", "no write of an exposed table reaches rows whose fences are not claimed")]
    return [
        ok(f"table {each.table}", each.text)
        if each.refused
        else Check(f"table {each.table}", CheckStatus.WARNING, each.text, each.advice, rules=_suggested(config, each))
        for each in found
    ]


def _suggested(config: Config, effect: SideEffect) -> tuple[str, ...]:
    """Return rules with one resource for both tables, and the rule that refuses such writes."""
    known = {rule.name: rule for rule in config.tables}

    def entry(name: str, **changed: object) -> str:
        return toml.entry("tables", known.get(name) or TableRule(name=name), **changed)

    rules = ["\n\n".join(entry(name, resource=template) for name, template in effect.shared)] if effect.shared else []
    return (*rules, entry(effect.table, cascades=Cascades.REFUSE)) if effect.refusable else tuple(rules)
