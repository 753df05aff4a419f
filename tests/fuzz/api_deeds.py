"""Requests to the fencing API, to health and metrics, and to the page."""

from __future__ import annotations

import json
from urllib.parse import urlencode

from tests.fuzz.deeds import AUDITOR_KEY, HELD, HOST, JSON, PROVEN, STALE_ACCOUNT, WRONG_KEY, Choices, Deed, Effect
from tests.running import API_KEY

_NO_LEASE = "00000000-0000-4000-8000-000000000000"
_FILTERS = (
    "resource prefix holder caller reason plane rule enforced token since until before after limit kind order total"
)
_FIELDS = (
    "token",
    "holder",
    "resource",
    "ttl",
    "sequencer",
    "expected",
    "reason",
    "wait",
    "request",
    "writes",
    "leases",
)
_OF_THE_PAGE = "since until resource prefix span kind token before after enforced next v"


def barrier(name: str, choices: Choices) -> Deed:
    mark, key = choices.mark(), choices.key()
    stale = choices.often(0.2)
    resource = f"account/{STALE_ACCOUNT}" if stale else f"fz/{mark}{choices.one('', '/a', '/c%2Fd', '/%C3%A4', '/a+b')}"
    allowed = key in PROVEN and not stale
    if choices.often(0.1):
        document = {"token": choices.nasty(), "holder": choices.nasty()}
        effect = Effect(mark, "fence", allowed, name=resource, token=None)
    else:
        document = {"token": str(HELD)}
        effect = Effect(mark, "fence", allowed, certain=allowed, name=resource)
    headers, body = [*choices.authorization(key), JSON], json.dumps(document).encode()
    target = f"/v1/fences/{resource}/barrier"
    return Deed(name, "POST", target, headers, body, choices.trailers(name), key in PROVEN, effect)


def lease(name: str, choices: Choices) -> Deed:
    """Ask for a lock of its own, or for anything else about it."""
    mark, key = choices.mark(), choices.key()
    resource = f"fz/{mark}{choices.one('', '/c%2Fd', '/a+b')}"
    wish = json.dumps({"holder": "fuzz", "ttl": 1.0, "barrier": choices.often(0.5)}).encode()
    many = [{"resource": resource, "lease": _NO_LEASE}] * choices.one(0, 1, 3, 1001)
    acquire = ("POST", f"/v1/leases/{resource}", wish)
    method, target, body = choices.one(
        acquire,
        acquire,
        acquire,
        ("POST", f"/v1/leases/{resource}", choices.nonsense()),
        ("PUT", f"/v1/leases/{resource}/{_NO_LEASE}", b'{"ttl": 5}'),
        ("DELETE", f"/v1/leases/{resource}/{_NO_LEASE}", b""),
        ("POST", f"/v1/withdrawals/{resource}", b'{"holder": "a", "request": "b"}'),
        ("PUT", "/v1/leases", json.dumps({"leases": many}).encode()),
    )
    effect = Effect(mark, "lease", key in PROVEN, name=resource, token=None)
    headers = [*choices.authorization(key), JSON]
    return Deed(name, method, target, headers, body, choices.trailers(name), key in PROVEN, effect)


def anything(name: str, choices: Choices) -> Deed:
    """Ask any route, with odd values."""
    key = choices.one("bearer", "bearer", "auditor", "apikey", "none", "wrong", "twice")
    headers = choices.authorization(key)
    one = choices.nasty_segment(choices.one("", "/"))
    if choices.often(0.6):
        path = choices.one(
            *(
                "fences",
                f"fences/{one}",
                "leases",
                f"leases/{one}",
                "rejections",
                f"rejections/{one}",
                "events",
                f"events/{one}",
            ),
            *(
                "rejections.csv",
                "events.ndjson",
                "record/head",
                f"reports/{one}",
                "webhooks",
                "openapi.json",
                "docs",
                one,
            ),
            *("events/stream", "rejections/stream"),
        )
        target = f"/v1/{path}?{choices.nasty_query(_FILTERS)}"
        return Deed(name, "GET", target, headers, known=key in PROVEN, endless=path.endswith("stream"))
    path = choices.one(
        *(f"fences/{one}/barrier", f"fences/{one}/epoch", f"breaks/{one}", f"leases/{one}", f"withdrawals/{one}"),
        *("credentials", "sequencers/check", f"webhooks/{one}/test", "transaction"),
    )
    values: tuple[object, ...] = (choices.nasty(), 0, 1, -1, 2**63, 1e300, None, True, [], {})
    document = {one: choices.one(*values) for one in choices.random.sample(_FIELDS, 3)}
    body = choices.one(json.dumps(document).encode(), choices.nonsense())
    kind = choices.one("application/json", "text/plain", "x", "application/json; charset=utf-7")
    method = choices.one("POST", "POST", "PUT", "DELETE")
    headers.append(("Content-Type", kind))
    return Deed(name, method, f"/v1/{path}", headers, body, choices.trailers(name), key in PROVEN)


def watching(name: str, choices: Choices) -> Deed:
    """Ask for health or metrics."""
    key = choices.key()
    target = choices.one("/v1/metrics", "/v1/health", "/v1/ready", "/v1/health?x=%00")
    accept = choices.one("*/*", "application/openmetrics-text", choices.nasty_header())
    headers = [*choices.authorization(key), ("Accept", accept)]
    return Deed(name, choices.one("GET", "GET", "HEAD", "POST"), target, headers, known=key in PROVEN)


def page(name: str, choices: Choices) -> Deed:
    """Ask for a page, with a session or without."""
    session = choices.one(choices.cookie, choices.cookie, "", "forged", choices.nasty_header())
    headers = [("Cookie", f"gateway_session={session}")] if session else []
    one = choices.nasty_segment("/")
    path = choices.one(
        *(
            "",
            "login",
            "rejections",
            f"rejections/{one}",
            "events",
            f"events/{one}",
            "observing",
            "resources",
            f"resources/{one}",
        ),
        *("static/nothing", f"static/{one}", "live", "live/stream", "report", "rejections.csv", "events.ndjson", one),
    )
    target = f"/ui/{path}?{choices.nasty_query(_OF_THE_PAGE)}"
    known, endless = session == choices.cookie, path.endswith("stream")
    return Deed(name, choices.one("GET", "GET", "HEAD"), target, headers, known=known, endless=endless)


def form(name: str, choices: Choices) -> Deed:
    """Send a form of the page: from it, or from elsewhere."""
    origin = choices.one(f"http://{HOST}", "http://evil.example", "null", "http://[", "")
    key = choices.one(AUDITOR_KEY, API_KEY, WRONG_KEY, choices.nasty())
    filled = urlencode({"api_key": key, "next": choices.nasty()}, errors="surrogatepass").encode()
    headers = [("Origin", origin)] if origin else []
    headers.append(("Content-Type", "application/x-www-form-urlencoded"))
    target = choices.one("/ui/login", "/ui/logout", "/ui/theme", "/ui/", "/ui/rejections")
    return Deed(name, "POST", target, headers, choices.one(filled, choices.nonsense()), choices.trailers(name))
