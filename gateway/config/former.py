"""Former keys of the configuration. For one minor version, a configuration that has one still starts, with a warning.

A former key whose loss would open something, or lose a promise, is an error instead. This module goes with the version.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, TypeAlias

from gateway.config.sections import FROM_FILE, Misplaced, read_secret
from gateway.fencing.record import EntryReason, Kind

Place: TypeAlias = tuple[str | int, ...]
Values: TypeAlias = MutableMapping[str, Any]

_COPIES = {
    "postgres": ("databases",),
    "postgres.roles": ("databases.roles",),
    "s3": ("stores",),
    "journal": ("databases.journal",),
}
"""Sections whose keys the entries of a list have as well."""


@dataclass(frozen=True, slots=True)
class Former:
    """A key that is no more. ``advice``: what to write instead, or what holds now.

    ``follow`` writes its value where it belongs now, into the whole configuration and the section of the key.
    ``is_lost`` says of a value that the gateway could not keep its promise. A message shows none that ``is_secret``.
    """

    advice: str
    follow: Callable[[Values, Values, Any], None] | None = None
    is_lost: Callable[[Any], bool] | None = None
    is_secret: bool = False

    @property
    def told(self) -> str:
        return f"It {self.advice}."


def _fixed(value: str, is_lost: Callable[[Any], bool] | None = None) -> Former:
    return Former(f"has no effect: {value}; remove it", is_lost=is_lost)


def _is_on(value: Any) -> bool:
    return str(value).lower() not in ("false", "0", "off", "no", "n", "f")


def _discreet(_: Values, section: Values, value: Any) -> None:
    if not _is_on(value):
        section["verbose"] = False


def _prefix_of_journal(_: Values, section: Values, value: Any) -> None:
    if section.get("bucket") is not None:
        section["bucket"] = f"{section['bucket']}/{value}"


def _keys(_: Values, section: Values, value: Any) -> None:
    if value is not None and section.setdefault("keys", value) != value:
        raise Misplaced(("issuers",), "an issuer has its keys in one place; keep one of keys, keys_url and keys_path")


def _of_resources(key: str) -> Former:
    """Return a former default of ``[[resources]]``, whose last rule may be for all others."""

    def follow(config: Values, _: Values, value: Any) -> None:
        rules = [{key: value, **rule} for rule in config.get("resources") or ()]
        rest = [] if any(rule.get("match") == "**" for rule in rules) else [{"match": "**", key: value}]
        config["resources"] = [*rules, *rest]

    return Former('is read as that of resources; write it into [[resources]], the last with match = "**"', follow)


def _more(key: str, former: str) -> Callable[[Values, Values, Any], None]:
    """Return what adds a former key's secrets, or those in its file, to a list of secrets."""

    def follow(_: Values, section: Values, value: Any) -> None:
        own, path = section.pop(key, None) or (), section.pop(key + FROM_FILE, None)
        more = read_secret(former, value).splitlines() if former.endswith(FROM_FILE) else value
        files = () if path is None else read_secret(key + FROM_FILE, path).splitlines()
        section[key] = [one for given in (own, files, more) for one in ([given] if isinstance(given, str) else given)]

    return follow


def _leave_out(section: Values, names: Iterable[str]) -> None:
    kinds = section.get("kinds", [Kind.REJECTION.value])
    section["kinds"] = kinds and list(dict.fromkeys([*kinds, *(f"not {name}" for name in names)]))


def _only(_: Values, section: Values, value: Any) -> None:
    if unknown := set(value or ()) - {reason.value for reason in EntryReason}:
        raise ValueError(f"there is no reason {min(unknown)}")
    _leave_out(section, [reason.value for reason in EntryReason if reason.value not in value] if value else [])


def _all_but(_: Values, section: Values, value: Any) -> None:
    _leave_out(section, value or ())


def _enforced_only(_: Values, section: Values, value: Any) -> None:
    _leave_out(section, () if _is_on(value) else ["observed"])


def _groups(_: Values, section: Values, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise TypeError("no list")
    section["callers"] = [*section.get("callers", ()), *(f"group:{name}" for name in value)]


def _allowed(_: Values, section: Values, value: Any) -> None:
    if value and ("claim" not in section or "role" in section):
        raise Misplaced(("postgres", "roles"), "allowed lists the roles that a claim may name; write claim and role")
    if value:
        section["role"] = value


def _pairs(config: Values, section: Values, value: Any) -> None:
    for pair in value:
        if sorted(name.removesuffix(FROM_FILE) for name in pair) != ["access_key_id", "secret_access_key"]:
            raise Misplaced(("callers",), "an access_key_id needs a secret_access_key; write both into their lists")
        for name, given in pair.items():
            _more(name.removesuffix(FROM_FILE), name)(config, section, given)


def _first(config: Values, section: Values, value: Any) -> None:
    if _is_on(value):
        others = [one for one in config["databases"] if one is not section]
        if any(_is_on(one.get("default", False)) for one in others):
            raise Misplaced(
                ("databases",), "exactly one database owns what no rule names; write it first, without default"
            )
        config["databases"] = [section, *others]


_EVIDENCE = "is no more; write its keys behind the secret into secret_access_key, a list, at all gateways of the store"

FORMER: Mapping[tuple[str, str], Former] = {
    ("server", "body_timeout"): _fixed("the value is 30 seconds"),
    ("postgres", "lock_timeout"): _fixed("the value is 10 seconds"),
    ("postgres", "idle_timeout"): _fixed("the value is 5 seconds"),
    ("postgres", "connect_timeout"): _fixed("the value is 5 seconds"),
    ("postgres", "listen"): _fixed("the gateway always listens"),
    ("postgres", "idempotency_retention"): _fixed("the value is 86400 seconds", lambda value: float(value) > 86400),
    ("postgres", "max_body"): _fixed("the value is 64 MiB", lambda value: int(value) != 64 << 20),
    ("s3", "timeout"): _fixed("the value is 60 seconds"),
    ("s3", "memory_threshold"): _fixed("the value is 8 MiB"),
    ("s3", "pending_wait"): _fixed("the value is 5 seconds"),
    ("s3", "sweep_interval"): _fixed("the value is 60 seconds", lambda value: float(value) == 0),
    ("postgres", "tx_override"): Former(
        "is no more; a write with 'Prefer: tx=rollback' is committed, so check writes in a database for tests",
        None,
        _is_on,
    ),
    ("postgres", "overrides"): Former(
        "is no more; raise PTnnn or PGRST in place of response.status and response.headers", None, _is_on
    ),
    ("postgres", "verbose_errors"): Former("is read as verbose; write verbose", _discreet),
    ("postgres", "openapi"): Former("is read as verbose; write verbose", _discreet),
    ("journal", "prefix"): Former('is read as the end of bucket; write bucket = "BUCKET/PREFIX/"', _prefix_of_journal),
    ("fencing", "max_jump"): _of_resources("max_jump"),
    ("fencing", "tokens"): _of_resources("tokens"),
    ("issuers", "keys_url"): Former("is read as keys; write keys", _keys),
    ("issuers", "keys_path"): Former("is read as keys; write keys", _keys),
    ("issuers", "algorithms"): _fixed("a signature is by any algorithm of the issuer's keys", lambda _: True),
    ("issuers", "leeway"): _fixed("the value is 30 seconds", lambda value: float(value) < 30),
    ("issuers.login", "title"): _fixed("the button has the name of the issuer"),
    ("webhooks", "former_secret"): Former("is read as more of secret; write a list", _more("secret", "former_secret")),
    ("webhooks", "former_secret_file"): Former(
        "is read as more of secret; write both into one file", _more("secret", "former_secret_file")
    ),
    ("callers", "api_keys"): Former("is read as more of api_key; write a list", _more("api_key", "api_keys")),
    ("callers", "api_keys_file"): Former(
        "is read as more of api_key; write all into one file", _more("api_key", "api_keys_file")
    ),
    ("webhooks", "reasons"): Former('is read as kinds with "not REASON" for all other reasons; write those', _only),
    ("webhooks", "except_reasons"): Former('is read as kinds with "not REASON"; write that', _all_but),
    ("webhooks", "observed"): Former('is read as kinds with "not observed"; write that', _enforced_only),
    ("telemetry", "sample"): _fixed(
        "set OTEL_TRACES_SAMPLER=parentbased_traceidratio and OTEL_TRACES_SAMPLER_ARG", lambda value: float(value) != 1
    ),
    ("telemetry", "service"): _fixed("set OTEL_SERVICE_NAME"),
    ("s3", "sweep_unconditionally"): _fixed("tombstones stay where the store ignores the condition of a delete"),
    ("leases", "max_wait"): _fixed("the value is 60 seconds"),
    ("tables", "unfiltered"): _fixed("a write needs a filter, if only one that all rows match, as id=not.is.null"),
    ("grants", "groups"): Former('is read as callers with "group:NAME"; write that', _groups),
    ("postgres.roles", "groups"): Former('is read as callers with "group:NAME"; write that', _groups),
    ("postgres.roles", "allowed"): Former("is read as role; write a list of roles beside claim", _allowed),
    ("issuers.login", "authorization_url"): _fixed("the issuer publishes its addresses"),
    ("issuers.login", "token_url"): _fixed("the issuer publishes its addresses"),
    ("databases", "default"): Former("is that of the first database; write the one with it on first", _first),
    ("callers", "keys"): Former("is read as more of access_key_id and secret_access_key; write two lists", _pairs),
    ("s3", "evidence_keys"): Former(_EVIDENCE, None, bool, is_secret=True),
    ("s3", "evidence_keys_file"): Former(_EVIDENCE, None, bool),
    ("ui", "trace_url"): _fixed("the page shows the id of a trace, without a link"),
    ("ui", "log_url"): _fixed("the page shows the id of a request, without a link"),
}
"""Each former key, by its section and name."""
SECTIONS = ("ui",)
"""Former sections, which have former keys alone."""


def found(values: Mapping[str, Any]) -> Iterator[tuple[Place, Former, Values]]:
    """Yield each former key that a configuration has, with its place, and the section that has it."""
    for (section, key), former in FORMER.items():
        for place, keys in _sections(values, section):
            if key in keys:
                yield (*place, key), former, keys


def _sections(values: Mapping[str, Any], section: str) -> Iterator[tuple[Place, Values]]:
    for path in (section, *_COPIES.get(section, ())):
        yield from _at((), values, path.split("."))


def _at(place: Place, value: Any, path: Sequence[str]) -> Iterator[tuple[Place, Values]]:
    """Yield the sections at a path below a value, and each entry of a list on it."""
    if isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            yield from _at((*place, number), entry, path)
    elif isinstance(value, MutableMapping):
        if not path:
            yield place, value
        elif path[0] in value:
            yield from _at((*place, path[0]), value[path[0]], path[1:])


def without_former(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration that has its former keys as they are written now.

    Raises ``Misplaced`` for a value that no other key keeps.
    """
    current = deepcopy(dict(values)) if any(found(values)) else dict(values)
    for place, former, section in list(found(current)):
        value = section.pop(str(place[-1]))
        if former.is_lost is not None and _is(former.is_lost, value):
            shown = "its value" if former.is_secret else value
            raise Misplaced(place, f"is a former key, and {shown} cannot be kept: it {former.advice}")
        if former.follow is not None:
            try:
                former.follow(current, section, value)
            except Misplaced:
                raise
            except (AttributeError, TypeError, ValueError) as error:
                raise Misplaced(place, f"is a former key, and its value cannot be read: it {former.advice}") from error
    for name in SECTIONS:
        if current.get(name) == {}:
            del current[name]
    return current


def _is(condition: Callable[[Any], bool], value: Any) -> bool:
    """Return whether it holds for a value, or the value is none that can be compared."""
    try:
        return condition(value)
    except (TypeError, ValueError):
        return True
