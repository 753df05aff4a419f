"""Rules with their modes and their traffic."""

import tomllib

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


def test_the_change_of_configuration_is_the_whole_rule() -> None:
    """A rule that is pasted without its resource gives rows other names, and forgets their fences."""
    config = Config.model_validate(
        {
            "postgres": {"dsn": "postgresql://nowhere"},
            "fencing": {"mode": "observe", "max_jump": 5},
            "tables": [
                {"name": "public.b", "resource": "order/{id}", "version": "changed", "equal": "strict"},
                {"name": "public.w", "resource": "w", "unfiltered": True, "mode": "observe"},
            ],
            "objects": [{"match": 'x"\\y/{id}/**', "resource": "order/{id}"}],
        }
    )
    listed = rules_with_traffic(config, [of("tables", "public.c")])
    for one in listed:
        pasted = Config.model_validate({"postgres": {"dsn": "x"}, **tomllib.loads(one.rule.change)})
        if one.rule.configured:
            rule = next(
                each for each in (*config.tables, *config.objects) if one.rule.name in each.model_dump().values()
            )
            assert (*pasted.tables, *pasted.objects) == (rule.model_copy(update={"mode": Enforcement.ENFORCE}),)
        else:
            assert pasted.fencing == config.fencing.model_copy(update={"mode": Enforcement.ENFORCE})
    assert len(listed) == 4
