"""Rules with their modes and their traffic."""

from gateway.config import Config
from gateway.db.traffic import RuleTraffic, WriteCounts
from gateway.fencing.decision import Enforcement
from gateway.web.observe_mode import rules_with_traffic

CONFIG = Config.model_validate(
    {
        "postgres": {"dsn": "postgresql://nowhere"},
        "fencing": {"mode": "observe"},
        "tables": [{"name": "public.a", "mode": "enforce"}, {"name": "public.b"}],
        "objects": [{"match": 'x"\\y/**'}],
    }
)


def of(plane: str, rule: str) -> RuleTraffic:
    return RuleTraffic(plane, rule, WriteCounts(1, 2, 3), None, None, None)


def test_rules_with_traffic_come_first() -> None:
    found = rules_with_traffic(CONFIG, [of("tables", "public.c"), of("tables", "public.b"), of("objects", "public.a")])
    assert [(one.rule.plane, one.rule.name, one.rule.mode, one.rule.configured) for one in found] == [
        ("tables", "public.c", Enforcement.OBSERVE, False),
        ("tables", "public.b", Enforcement.OBSERVE, True),
        ("objects", "public.a", Enforcement.OBSERVE, False),
        ("tables", "public.a", Enforcement.ENFORCE, True),
        ("objects", 'x"\\y/**', Enforcement.OBSERVE, True),
    ]
    assert [one.counts.refused for one in found] == [2, 2, 2, 0, 0]


def test_the_change_of_configuration_is_toml() -> None:
    changes = {one.rule.name: one.rule.change for one in rules_with_traffic(CONFIG, [of("tables", "public.c")])}
    assert changes["public.b"] == '[[tables]]\nname = "public.b"\nmode = "enforce"'
    assert changes['x"\\y/**'] == '[[objects]]\nmatch = "x\\"\\\\y/**"\nmode = "enforce"'
    assert changes["public.c"] == '[fencing]\nmode = "enforce"'
