"""The rules of the configuration with their modes, and what has been written under each. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.config import Config
from gateway.db.traffic import Counts, OfRule
from gateway.fencing.rules import Mode


@dataclass(frozen=True, slots=True)
class Rule:
    """``name``: the table, or the pattern of keys. ``configured``: it has a rule of its own, not that of all others."""

    plane: str
    name: str
    mode: Mode
    configured: bool = True

    @property
    def change(self) -> str:
        """What to write into the configuration, so that the rule is enforced."""
        if not self.configured:
            return '[fencing]\nmode = "enforce"'
        key = "name" if self.plane == "tables" else "match"
        quoted = self.name.replace("\\", "\\\\").replace('"', '\\"')
        return f'[[{self.plane}]]\n{key} = "{quoted}"\nmode = "enforce"'


@dataclass(frozen=True, slots=True)
class Busy:
    """A rule, and the writes under it in a span; None where there were none."""

    rule: Rule
    traffic: OfRule | None

    @property
    def counts(self) -> Counts:
        return Counts() if self.traffic is None else self.traffic.counts


def rules(config: Config) -> list[Rule]:
    """All rules that stand in the configuration."""
    general = config.fencing.mode
    return [
        *(Rule("tables", rule.name, rule.mode or general) for rule in config.tables),
        *(Rule("objects", rule.match, rule.mode or general) for rule in config.objects),
    ]


def busy(config: Config, found: Sequence[OfRule]) -> list[Busy]:
    """Rules with their traffic: those with writes in the order they were found, then those without."""
    known = {(rule.plane, rule.name): rule for rule in rules(config)}
    listed = []
    for traffic in found:
        own = known.pop((traffic.plane, traffic.rule), None)
        general = Rule(traffic.plane, traffic.rule, config.fencing.mode, configured=False)
        listed.append(Busy(own or general, traffic))
    return [*listed, *(Busy(rule, None) for rule in known.values())]
