"""Checks of the configured callers and grants: too much, too little, and what has no effect. Pure."""

from collections.abc import Iterable, Iterator

from gateway.auth.callers import rights_of
from gateway.auth.grants import Action
from gateway.config import Config
from gateway.config.access import GrantRule
from gateway.doctor.findings import Check, ok, warning
from gateway.fencing.record import ANONYMOUS


def check(config: Config) -> Iterable[Check]:
    """Yield what is to be said of the grants of a configuration."""
    if not config.grants:
        yield warning("grants", "there is none: every request is denied", "Add [[grants]] (docs/grants.md).")
        return
    yield ok("grants", str(len(config.grants)))
    rights = {caller.name: rights_of(config.grants, caller.name, caller.groups) for caller in config.callers}
    almighty = [name for name, granted in rights.items() if all(map(granted.anywhere, Action))]
    if almighty:
        yield warning("almighty callers", ", ".join(almighty), "Grant to each what it does, with limits.")
    if powerless := [name for name, granted in rights.items() if not granted.grants]:
        yield warning("callers without grants", ", ".join(powerless), "Grant them something, or remove them.")
    changing = {action for grant in rights_of(config.grants, ANONYMOUS).grants for action in grant.actions}
    if changing := changing - {Action.READ}:
        detail = f"requests without credentials may {', '.join(sorted(changing))}"
        yield warning("anonymous", detail, "Grant anonymous callers nothing but read, and that only to what is public.")
    yield from _without_effect(config)


def _without_effect(config: Config) -> Iterator[Check]:
    groups = {group for caller in config.callers for group in caller.groups}
    for number, grant in enumerate(config.grants, 1):
        if unknown := set(grant.groups) - groups:
            advice = "Give a caller this group, or remove it."
            yield warning("groups", f"[[grants]] number {number}: no caller is in {min(unknown)}", advice)
    for number, grant in enumerate(config.grants, 1):
        for other_number, other in enumerate(config.grants, 1):
            same = grant == other and number < other_number
            if number != other_number and not same and _includes(other, grant):
                yield warning(
                    "overlapping grants",
                    f"[[grants]] number {number} adds nothing to number {other_number}",
                    "Remove one of them.",
                )
                break


def _includes(wide: GrantRule, narrow: GrantRule) -> bool:
    """Return whether ``wide`` grants all that ``narrow`` does, to all whom ``narrow`` names. It may miss some cases."""
    named = set(narrow.callers) <= set(wide.callers) or ("*" in wide.callers and ANONYMOUS not in narrow.callers)
    grouped = set(narrow.groups) <= set(wide.groups) or "*" in wide.callers
    if not (named and grouped and set(narrow.actions) <= set(wide.actions)):
        return False
    if wide.everything or narrow.everything:
        return wide.everything
    if bool(wide.places) != bool(narrow.places):
        return False
    placed = all(set(patterns) <= set(wide.places.get(kind, ())) for kind, patterns in narrow.places.items())
    limited = bool(narrow.resources) and set(narrow.resources) <= set(wide.resources)
    return placed and (limited or not wide.resources)
