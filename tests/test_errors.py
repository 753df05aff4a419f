"""Every error has a code of its own, a status, and advice; retrying is suggested only where it can help."""

from gateway.errors import DialectError, FenceRefusal, StoreError, Unavailable, kinds


def test_no_code_means_two_things() -> None:
    alike = [kind for kind in kinds(Unavailable) if kind is not Unavailable and kind.code == Unavailable.code]
    codes = [kind.code for kind in kinds() if kind not in (DialectError, StoreError, FenceRefusal, *alike)]
    assert len(set(codes)) == len(codes)


def test_only_passing_troubles_are_worth_a_retry() -> None:
    assert {kind.code for kind in kinds() if kind.retry_after is not None} == {
        "unavailable",
        "database-closed",
        "lock-held",
        "outcome-unknown",
        "too-many-readers",
    }
