"""For the doctor: what writes of exposed tables change beyond the rows they name, where no fence is claimed."""

from collections.abc import Sequence

from gateway.config import Config
from gateway.doctor.findings import Check, ok, warning
from gateway.store import catalog
from gateway.store.database import Database
from gateway.table_rules import table_rules
from gateway.tables import reach
from gateway.tables.catalog import Snapshot


async def reaching(config: Config, database: Database) -> Sequence[Check]:
    """A warning for each cascade, trigger, rule and child that nobody has mapped. Raises ``GatewayError``."""
    snapshot = Snapshot.from_rows(await catalog.relations(database, config.postgres.schemas))
    rules, default = table_rules(config)
    found = reach.warnings(snapshot, lambda schema, name: rules.get(f"{schema}.{name}", default))
    if not found:
        return [ok("reach", "no write of an exposed table reaches rows whose fences are not claimed")]
    return [warning(f"table {each.table}", each.text, each.advice) for each in found]
