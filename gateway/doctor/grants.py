"""Checks of the configured callers and grants: too much, too little, and what has no effect. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from gateway.auth.callers import rights_of
from gateway.auth.grants import EVERYTHING, Action, Limits, PlaceKind, Rights, covers_name
from gateway.config.access import GrantRule
from gateway.config.databases import DatabaseConfig
from gateway.config.explanations import nearest
from gateway.config.sections import GROUP
from gateway.errors import first_few
from gateway.fencing.decision import Enforcement
from gateway.fencing.record import ANONYMOUS
from gateway.fencing.resource import includes, overlap
from gateway.findings import Check, ok, warning
from gateway.objects.key_rules import DEFAULT_TEMPLATE, KeyRule


def check(config: DatabaseConfig) -> Iterable[Check]:
    """Yield what is to be said of the grants of a configuration."""
    if not config.grants:
        yield warning("grants", "there is none: every request is denied", "Add [[grants]] (docs/grants.md).")
        return
    yield ok("grants", str(len(config.grants)))
    if almighty := list(_almighty(config)):
        yield warning("almighty callers", ", ".join(almighty), "Grant to each what it does, with limits.")
    rights = {caller.name: rights_of(config.grants, caller.name, caller.groups) for caller in config.callers}
    if powerless := [name for name, granted in rights.items() if not granted.grants]:
        yield warning("callers without grants", ", ".join(powerless), "Grant them something, or remove them.")
    named = {name for rule in config.grants for name in (*rule.callers, *rule.groups)}
    for issuer in config.issuers:
        if not any(name.startswith(f"{issuer.name}:") for name in named):
            detail = f"{issuer.name}: no grant names a caller or a group of it"
            yield warning("issuers without grants", detail, "Grant its callers something, or remove the issuer.")
    changing = {action for grant in rights_of(config.grants, ANONYMOUS).grants for action in grant.actions}
    if changing := changing - {Action.READ}:
        detail = f"requests without credentials may {', '.join(sorted(changing))}"
        yield warning("anonymous", detail, "Grant anonymous callers nothing but read, and that only to what is public.")
    yield from _without_callers(config)
    yield from _without_target(config)
    yield from _overlapping(config)
    yield from observed(config)


def reach_objects(config: DatabaseConfig, caller: str, groups: Sequence[str]) -> bool:
    """Return whether a grant lets a configured caller use objects, in a bucket or by their resources alone."""
    return any(
        grant.everything or grant.buckets or (grant.resources and not (grant.tables or grant.functions))
        for grant in rights_of(config.grants, caller, groups).grants
        if grant.actions & {Action.READ, Action.WRITE, Action.ADMINISTER}
    )


def _almighty(config: DatabaseConfig) -> Iterator[str]:
    """Yield the callers that may do everything, and the groups and patterns of callers of issuers."""
    for caller in config.callers:
        if all(map(rights_of(config.grants, caller.name, caller.groups).anywhere, Action)):
            yield caller.name
    names = dict.fromkeys(name for rule in config.grants for name in rule.callers if config.is_of_issuer(name))
    for name in names:
        if all(map(rights_of(config.grants, name, identified=True).anywhere, Action)):
            yield name
    groups = dict.fromkeys(group for rule in config.grants for group in rule.groups if config.is_of_issuer(group))
    for group in groups:
        if all(map(rights_of(config.grants, "", [group], identified=True).anywhere, Action)):
            yield f"the group {group}"


def observed(config: DatabaseConfig) -> Iterator[Check]:
    """Yield the callers that a rule refuses although it observes, and those that it lets pass without a grant.

    Observe mode opens no place: the gateway writes with its own rights, which would be lent to all callers.
    """
    rights = {caller.name: rights_of(config.grants, caller.name, caller.groups) for caller in config.callers}
    for name in dict.fromkeys(name for rule in config.grants for name in rule.callers if config.is_of_issuer(name)):
        rights[name] = rights_of(config.grants, name, identified=True)
    for name, held in rights.items():
        if not (held.have(Action.WRITE) or held.have(Action.CALL)):
            continue
        found = list(_observed(config, held))
        if closed := [place for place, _, limits in found if not limits.placed]:
            advice = "Observe mode opens no place. If the caller writes there today, add it to a grant."
            yield warning("refused in observe mode", f"{name}: no grant names {first_few(closed)}", advice)
        passing = [
            f"{names} at {place}"
            for place, names, limits in found
            if names and limits.placed and not any(includes(pattern, names) for pattern in limits.patterns)
        ]
        if passing:
            advice = "Such writes pass, and are denied once the rule enforces. Grant the resource, or add a rule."
            yield warning("passed in observe mode", f"{name}: no grant covers {first_few(passing)}", advice)


def _observed(config: DatabaseConfig, rights: Rights) -> Iterator[tuple[str, str, Limits]]:
    """Yield each place whose rule observes, a pattern of the names there, and what is granted at it.

    Names are empty where a caller chooses them.
    """
    for table in config.tables:
        if _observes(config, table.mode):
            limits = rights.table(Action.WRITE, table.name)
            yield f"table {table.name}", _pattern_of(table.resource or f"{table.name}/{{key}}", path="{key}"), limits
    for rule in config.objects:
        if _observes(config, rule.mode):
            limits = rights.keys(Action.WRITE, partial(_overlap, _pattern_of(rule.match)))
            names = KeyRule.compile(rule.match, rule.resource).names.text
            yield f"objects {rule.match}", _pattern_of(names, path="{key}"), limits
    if not _observes(config, None):
        return
    for name in config.postgres.functions:
        yield f"function {name}", "", rights.function(name)
    ruled = [_pattern_of(rule.match) for rule in config.objects]
    for grant in rights.grants:
        for pattern in grant.buckets if Action.WRITE in grant.actions else ():
            keys = _keys(pattern)
            # The other keys here have the names of the default rule.
            if not any(includes(one, keys) for one in ruled):
                limits = rights.keys(Action.WRITE, partial(_overlap, keys))
                yield f"objects {keys} without a rule", f"s3/{keys}", limits


def _overlap(keys: str, pattern: str) -> bool:
    """Return whether a pattern of buckets or keys is about some of these keys."""
    return overlap(_keys(pattern), keys)


def _keys(pattern: str) -> str:
    return pattern if "/" in pattern else f"{pattern}/**"


def _observes(config: DatabaseConfig, mode: Enforcement | None) -> bool:
    return (mode or config.fencing.mode) is Enforcement.OBSERVE


def _without_callers(config: DatabaseConfig) -> Iterator[Check]:
    """Yield the groups in grants that no caller can be in."""
    groups = {group for caller in config.callers for group in caller.groups}
    listing = {issuer.name: bool(issuer.groups_claim) for issuer in config.issuers}
    for number, grant in enumerate(config.grants, 1):
        for group in sorted(set(grant.groups) - groups):
            issuer = group.partition(":")[0]
            if not config.is_of_issuer(group):
                known = groups | {f"{name}:{group.partition(':')[2]}" for name in listing}
                advice = nearest(group, known).strip() or "Give a caller this group, or remove it."
                yield warning("groups", f"[[grants]] number {number}: no caller is in {group}", advice)
            elif not listing[issuer]:
                detail = f"[[grants]] number {number}: no caller is in {group}, since {issuer} has no groups_claim"
                yield warning("groups", detail, f"Set groups_claim of the issuer {issuer}, or remove the group.")


def _without_target(config: DatabaseConfig) -> Iterator[Check]:
    """Yield the patterns in grants that match nothing, as far as the configuration alone can tell."""
    for number, grant in enumerate(config.grants, 1):
        for pattern in grant.functions:
            schema = pattern.partition(".")[0]
            if schema in config.other_schemas or (schema == "*" and config.other_schemas):
                continue
            if not any(covers_name(pattern, name) for name in config.postgres.functions):
                advice = nearest(pattern, config.postgres.functions).strip() or "Add it to [postgres] functions."
                yield without_target(number, f"no function that can be called is {pattern}", advice)
        if grant.buckets and config.s3 is None and not config.other_buckets:
            yield without_target(number, "it names buckets, and no object store is configured", "Configure [s3].")
        # A call claims what its caller names, and a lock may have any name. A write claims names that rules make.
        # With several databases, the names may be those of another one.
        if Action.WRITE in grant.actions and Action.CALL not in grant.actions and not config.other_schemas:
            names = _names(config, grant)
            for pattern in grant.resources:
                if not any(overlap(pattern, name) for name in names) and not _may_be_default(config, grant, pattern):
                    advice = nearest(pattern, names).strip() or "Correct it, or grant locks without write."
                    yield without_target(number, f"no rule here makes names like {pattern}: it grants no write", advice)


def without_target(number: int, detail: str, advice: str) -> Check:
    """Return the warning that a part of a grant matches nothing."""
    return warning("grants without target", f"[[grants]] number {number}: {detail}", advice)


def _names(config: DatabaseConfig, grant: GrantRule) -> list[str]:
    """Return patterns of the resources that rules make at the places of a grant, and of those with a policy."""
    ruled = [rule for rule in config.tables if rule.resource is not None and _has_table(grant, rule.name)]
    names = [rule.match for rule in config.resources] + [_pattern_of(rule.resource or "") for rule in ruled]
    if config.s3 is not None and (grant.buckets or not grant.places):
        templates = [DEFAULT_TEMPLATE, *(rule.resource for rule in config.objects if rule.resource is not None)]
        names += [_pattern_of(template, path="{key}") for template in templates]
    return names


def _may_be_default(config: DatabaseConfig, grant: GrantRule, pattern: str) -> bool:
    """Return whether rows of a table without a rule may have such a name: ``schema.table/primary key``."""
    first, slash, _ = pattern.partition("/")
    if first == EVERYTHING or (first == "*" and slash):
        return bool(grant.tables) or not grant.places
    named = {rule.name for rule in config.tables if rule.resource is not None}
    served = first.partition(".")[0] in config.postgres.schemas and first not in named
    return bool(slash) and served and _has_table(grant, first)


def _has_table(grant: GrantRule, name: str) -> bool:
    """Return whether a grant is about a table: it names the table, or no places at all."""
    return not grant.places or any(covers_name(pattern, name) for pattern in grant.tables)


def _pattern_of(template: str, path: str | None = None) -> str:
    """Return the pattern of the names that a template makes. ``path``: the field whose values span segments."""
    pattern: list[str] = []
    for segment in template.split("/"):
        if path is not None and path in segment:
            return "/".join([*pattern, "**"])
        pattern.append("*" if "{" in segment else segment)
    return "/".join(pattern)


def _overlapping(config: DatabaseConfig) -> Iterator[Check]:
    for number, grant in enumerate(config.grants, 1):
        for other_number, other in enumerate(config.grants, 1):
            same = grant == other and number < other_number
            if number != other_number and not same and _includes(config, other, grant):
                yield warning(
                    "overlapping grants",
                    f"[[grants]] number {number} adds nothing to number {other_number}",
                    "Remove one of them.",
                )
                break


def _includes(config: DatabaseConfig, wide: GrantRule, narrow: GrantRule) -> bool:
    """Return whether ``wide`` grants all that ``narrow`` does, to all whom ``narrow`` names. It may miss some cases."""
    named = all(_covers_caller(config, wide.callers, name) for name in narrow.callers)
    if not (named and set(narrow.actions) <= set(wide.actions)):
        return False
    if wide.everything or narrow.everything:
        return wide.everything
    if bool(wide.places) != bool(narrow.places):
        return False
    placed = all(
        any(_covers_place(kind, one, pattern) for one in wide.places.get(kind, ()))
        for kind, patterns in narrow.places.items()
        for pattern in patterns
    )
    limited = bool(narrow.resources) and all(
        any(includes(one, pattern) for one in wide.resources) for pattern in narrow.resources
    )
    return placed and (limited or not wide.resources)


def _covers_caller(config: DatabaseConfig, names: Sequence[str], caller: str) -> bool:
    if caller in names:
        return True
    if (group := caller.removeprefix(GROUP)) != caller:
        return (f"{group.partition(':')[0]}:*" if config.is_of_issuer(group) else "*") in names
    if config.is_of_issuer(caller):
        return any(name.endswith("*") and ":" in name and caller.startswith(name[:-1]) for name in names)
    return "*" in names and caller != ANONYMOUS


def _covers_place(kind: PlaceKind, wide: str, narrow: str) -> bool:
    if kind is not PlaceKind.BUCKET:
        return covers_name(wide, narrow)
    if "/" not in wide:
        return wide in (narrow.partition("/")[0], "*")
    # A pattern of keys does not cover the bucket itself.
    return "/" in narrow and includes(wide, narrow)
