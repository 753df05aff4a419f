"""How a lock reaches a session of PostgreSQL: settings, the options of libpq, connection strings, the environment.

All of it is text. The guard of a table reads the settings (docs/guard.md). Names of resources and holders may contain
quotes, spaces, backslashes and percent signs, so each form has its escape here.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import quote, unquote

RESOURCE, TOKEN, HOLDER, HELD = "fencing.resource", "fencing.token", "fencing.holder", "fencing.held"

LONGEST_NAME = 63
"""Bytes of an application_name; PostgreSQL cuts the rest off."""

_SPACE = " \t\n\r\v\f"
_TAG = re.compile(r"fencing-[0-9a-f]{16}")
_URL = ("postgresql://", "postgres://")

# The variables of libpq for the parameters of a connection string, where the name in capitals is not enough.
_VARIABLES = {
    "dbname": "PGDATABASE",
    "application_name": "PGAPPNAME",
    "krbsrvname": "PGKRBSRVNAME",
}
_PARAMETERS = frozenset((
    "host", "hostaddr", "port", "dbname", "user", "password", "passfile", "service", "options", "application_name",
    "sslmode", "sslcompression", "sslcert", "sslkey", "sslrootcert", "sslcrl", "sslcrldir", "sslsni", "sslnegotiation",
    "ssl_min_protocol_version", "ssl_max_protocol_version", "requirepeer", "krbsrvname", "gsslib", "gssencmode",
    "gssdelegation", "channel_binding", "require_auth", "connect_timeout", "client_encoding", "target_session_attrs",
    "load_balance_hosts",
))  # fmt: skip


def declare(lock: Mapping[str, str], others: Iterable[Mapping[str, str]] = ()) -> dict[str, str]:
    """Return the settings of a session that holds ``lock``, and ``others``, each as the headers of a request say it.

    Empty settings are there, too: they replace those of another lock.
    """
    held = {one["Fencing-Resource"]: {"token": one["Fencing-Token"], **_holder(one)} for one in others}
    held.pop(lock["Fencing-Resource"], None)
    return {
        RESOURCE: lock["Fencing-Resource"],
        TOKEN: lock["Fencing-Token"],
        HOLDER: lock.get("Fencing-Holder", ""),
        HELD: json.dumps(held, separators=(",", ":")) if held else "",
    }


def declared(options: str) -> list[dict[str, str]]:
    """Return the locks that the options of another run say, as the headers of a request have them.

    Raise ``ValueError`` if ``fencing.held`` among them cannot be read.
    """
    settings = dict(_settings(options))
    held: dict[str, dict[str, str]] = {}
    if settings.get(RESOURCE) and settings.get(TOKEN):
        held[settings[RESOURCE]] = {"token": settings[TOKEN], "holder": settings.get(HOLDER, "")}
    try:
        held |= json.loads(settings.get(HELD) or "{}")
        return [_headers(resource, one["token"] + "", one.get("holder")) for resource, one in held.items()]
    except (ValueError, TypeError, KeyError, AttributeError):
        raise ValueError(f"The options of libpq have {HELD}, which is not JSON of held tokens.") from None


def extend(options: str, lock: Mapping[str, str], others: Iterable[Mapping[str, str]] = ()) -> str:
    """Return libpq's ``options`` with the settings of ``lock`` behind them. Locks that they say already stay held.

    The last of several settings of one name counts.
    """
    settings = declare(lock, [*declared(options), *others])
    added = " ".join(f"-c {name}={_escape(value)}" for name, value in settings.items())
    return f"{options} {added}".lstrip()


def name(own: str, lock: Mapping[str, str], tag: str) -> str:
    """Return an ``application_name`` with the tag of a lock, and as much of the lock's and the program's name as fits.

    The record of refusals shows it: docs/guard.md. Tags of locks around this one stay.
    """
    tags = " ".join((*_TAG.findall(own), tag))
    shown = f"{_TAG.sub('', own).strip()} {lock['Fencing-Resource']}={lock['Fencing-Token']}"
    room = LONGEST_NAME - len(tags) - 1
    return f"{shown[-room:] if room > 0 else ''} {tags}"[-LONGEST_NAME:].strip()


def connection_string(
    dsn: str, lock: Mapping[str, str], others: Iterable[Mapping[str, str]], tag: str, inherited: str
) -> str:
    """Return the connection string, a URL or ``key=value``, whose sessions hold these locks.

    ``inherited``: the options that libpq would have used, if the string has none. Raise ``ValueError`` if the string
    cannot be read.
    """
    known = parameters(dsn)
    options = extend(known.get("options", inherited), lock, others)
    named = name(known.get("application_name", ""), lock, tag)
    if not dsn.startswith(_URL):
        # Of a parameter that is repeated, the last one counts.
        return f"{dsn} options={_quote(options)} application_name={_quote(named)}".lstrip()
    address, _, query = dsn.partition("?")
    kept = [pair for pair in query.split("&") if pair and unquote(pair.partition("=")[0]) not in _OURS]
    added = (f"options={quote(options, safe='')}", f"application_name={quote(named, safe='')}")
    return f"{address}?{'&'.join((*kept, *added))}"


_OURS = ("options", "application_name")


def is_connection_string(text: str) -> bool:
    """Return whether a text names a database: a URL of PostgreSQL, or ``key=value``."""
    return text.startswith(_URL) or ("=" in text and "://" not in text)


def parameters(dsn: str) -> dict[str, str]:
    """Return the parameters that a connection string gives. Raise ``ValueError`` if it cannot be read."""
    return dict(_of_url(dsn) if dsn.startswith(_URL) else _of_pairs(dsn))


def environment(dsn: str) -> dict[str, str]:
    """Return the variables with which libpq connects as this string says.

    Raise ``ValueError`` if it cannot be read, or has a parameter that libpq has no variable for.
    """
    variables = {}
    for key, value in parameters(dsn).items():
        if key not in _PARAMETERS:
            raise ValueError(f"The connection string has the parameter {key!r}, which is none of libpq's.")
        variables[_VARIABLES.get(key, f"PG{key.replace('_', '').upper()}")] = value
    return variables


def _holder(headers: Mapping[str, str]) -> dict[str, str]:
    return {"holder": headers["Fencing-Holder"]} if headers.get("Fencing-Holder") else {}


def _headers(resource: str, token: str, holder: str | None) -> dict[str, str]:
    headers = {"Fencing-Resource": resource, "Fencing-Token": token}
    return {**headers, "Fencing-Holder": holder} if holder else headers


def _escape(value: str) -> str:
    """Return the value as one word: the server splits options at spaces that have no backslash before them."""
    return re.sub(r"([\\\s])", r"\\\1", value)


def _words(options: str) -> Iterator[str]:
    """Split options as the server does."""
    for word in re.findall(rf"(?:\\.|[^\\{_SPACE}])+", options, re.DOTALL):
        yield re.sub(r"\\(.)", r"\1", word, flags=re.DOTALL)


def _settings(options: str) -> Iterator[tuple[str, str]]:
    """Yield the settings among options: ``-c name=value``, ``-cname=value`` or ``--name=value``."""
    words = _words(options)
    for word in words:
        setting = next(words, "") if word == "-c" else re.sub("^(--|-c)", "", word)
        key, equals, value = setting.partition("=")
        if equals:
            yield key.replace("-", "_").lower(), value


def _of_url(url: str) -> Iterator[tuple[str, str]]:
    rest, _, query = url.partition("://")[2].partition("?")
    authority, _, database = rest.partition("/")
    user, at, hosts = authority.rpartition("@")
    if at:
        login, colon, password = user.partition(":")
        yield "user", unquote(login)
        if colon:
            yield "password", unquote(password)
    pairs = [re.fullmatch(r"(\[[^]]*\]|[^:\[\]]*)(?::(\d*))?", one) for one in hosts.split(",")]
    if not all(pairs):
        raise ValueError("The hosts of the connection string cannot be read.")
    found = [pair for pair in pairs if pair is not None]
    if hosts:
        yield "host", ",".join(unquote(pair[1].strip("[]")) for pair in found)
    if any(pair[2] for pair in found):
        yield "port", ",".join(pair[2] or "" for pair in found)
    if database:
        yield "dbname", unquote(database)
    for pair in filter(None, query.split("&")):
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError("The query of the connection string has a parameter without a value.")
        yield unquote(key), unquote(value)


_PAIR = re.compile(
    r"\s*(?P<key>[^\s=]+)\s*=\s*(?:'(?P<quoted>(?:\\.|[^\\'])*)'(?=\s|$)|(?P<plain>(?:\\.|[^\\\s'])*))", re.DOTALL
)


def _of_pairs(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while text[place:].strip():
        found = _PAIR.match(text, place)
        if found is None or (found.end() < len(text) and not text[found.end()].isspace()):
            raise ValueError("The connection string is neither a URL nor pairs of key=value.")
        value = found["plain"] if found["quoted"] is None else found["quoted"]
        yield found["key"], re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        place = found.end()


def _quote(value: str) -> str:
    return "'" + re.sub(r"([\\'])", r"\\\1", value) + "'"
