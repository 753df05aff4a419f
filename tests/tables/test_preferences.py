"""The ``Prefer`` header."""

import pytest

from gateway.errors import DialectError
from gateway.tables.dialect.preferences import Preferences, honoured, parse_preferences


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", Preferences()),
        ("return=representation", Preferences(returns="representation")),
        ("return=minimal,return=representation", Preferences(returns="minimal")),
        (
            " resolution=merge-duplicates , missing=default",
            Preferences(resolution="merge-duplicates", missing="default"),
        ),
        ("count=exact,tx=rollback,foo", Preferences(count="exact", tx="rollback", invalid=("foo",))),
        ("tx = commit , tx=rollback", Preferences(tx="commit")),
        ("timezone=America/Los_Angeles", Preferences(timezone="America/Los_Angeles")),
        ("timezone=Etc/GMT+5,timezone=UTC", Preferences(timezone="Etc/GMT+5")),
        ("timezone='; DROP", Preferences(invalid=("timezone='; DROP",))),
        ("timezone=", Preferences(invalid=("timezone=",))),
        ("handling=strict,max-affected=3", Preferences(strict=True, max_affected=3)),
        ("handling=strict,max-affected=-3", Preferences(strict=True, invalid=("max-affected=-3",))),
        ("max-affected=3", Preferences()),
        ("handling=lenient,max-affected=3", Preferences(strict=False)),
    ],
)
def test_preferences(header: str, expected: Preferences) -> None:
    assert parse_preferences(header) == expected


def test_strict_handling_refuses_what_is_unknown() -> None:
    with pytest.raises(DialectError) as caught:
        honoured(parse_preferences("handling=strict, tx=rollback, return=most"), tx_override=True, zones=())
    assert (caught.value.code, caught.value.status) == ("PGRST122", 400)
    assert caught.value.details == "Invalid preferences: return=most"


def test_strict_handling_never_commits_what_was_to_be_rolled_back() -> None:
    with pytest.raises(DialectError) as caught:
        honoured(parse_preferences("handling=strict, tx=rollback"), tx_override=False, zones=())
    assert caught.value.details == "Invalid preferences: tx=rollback"


def test_strict_handling_takes_a_commit_which_happens_anyway() -> None:
    assert honoured(parse_preferences("handling=strict, tx=commit"), tx_override=False, zones=()).tx is None


def test_who_is_not_strict_gets_what_there_is() -> None:
    asked = parse_preferences("tx=rollback, nonsense, return=minimal")
    assert honoured(asked, tx_override=True, zones=()) == asked
    assert honoured(asked, tx_override=False, zones=()).tx is None
    assert honoured(asked, tx_override=False, zones=()).returns == "minimal"


def test_a_zone_that_does_not_exist() -> None:
    asked = parse_preferences("timezone=Mars/Base, count=exact")
    assert honoured(asked, tx_override=False, zones={"UTC"}) == Preferences(count="exact")
    with pytest.raises(DialectError) as caught:
        honoured(parse_preferences("timezone=Mars/Base, handling=strict"), tx_override=False, zones={"UTC"})
    assert caught.value.details == "Invalid preferences: timezone=Mars/Base"
    assert honoured(parse_preferences("timezone=UTC"), tx_override=False, zones={"UTC"}).timezone == "UTC"


@pytest.mark.parametrize(
    ("header", "needed"),
    [
        ("return=representation,count=exact,tx=commit", False),
        ("tx=rollback", True),
        ("timezone=UTC", True),
        ("handling=strict,max-affected=1", True),
    ],
)
def test_what_needs_a_transaction_of_its_own(header: str, *, needed: bool) -> None:
    assert parse_preferences(header).need_a_transaction is needed
