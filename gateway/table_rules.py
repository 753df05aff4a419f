"""The rules of tables in the configuration: the resources of their rows, and the enforcement."""

from gateway.config import Config
from gateway.fencing.resource import Template
from gateway.tables.naming import Rule


def table_rules(config: Config) -> tuple[dict[str, Rule], Rule]:
    """Return the rules by ``schema.table``, and the rule of all other tables."""
    default = Rule(None, config.fencing.mode, config.fencing.equal, cascades=config.fencing.cascades)
    rules = {
        rule.name: Rule(
            None if rule.resource is None else Template.parse(rule.resource),
            rule.mode or default.mode,
            rule.equal or default.equal,
            rule.unfiltered,
            rule.version,
            rule.cascades or default.cascades,
        )
        for rule in config.tables
    }
    return rules, default
