"""Signing what goes out to the store, in the headers or in the query."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from gateway.auth import canonical
from gateway.auth.canonical import RequestHead
from gateway.auth.claims import MAX_LIFETIME, PayloadMode


@dataclass(frozen=True, slots=True)
class Credentials:
    """What outbound requests are signed with."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    region: str


def sign(
    request: RequestHead, payload_sha256: str, credentials: Credentials, timestamp: datetime
) -> list[tuple[str, str]]:
    """The headers that sign ``request`` at ``timestamp`` (aware). All its headers are signed; Host must be there."""
    moment = _moment(timestamp)
    added = [("x-amz-content-sha256", payload_sha256), ("x-amz-date", moment)]
    headers = sorted([*_named(request), *((name, value.encode()) for name, value in added)])
    digest, names = canonical.request(request.method, request.raw_path, request.query_string, headers, payload_sha256)
    scope = canonical.scope(moment[:8], credentials.region)
    credential = f"Credential={credentials.access_key_id}/{scope}"
    signature = _signature(credentials, moment, digest)
    added.append(("authorization", f"{canonical.ALGORITHM} {credential},SignedHeaders={names},Signature={signature}"))
    return added


def presign(request: RequestHead, credentials: Credentials, timestamp: datetime, expires: timedelta) -> str:
    """The query string that signs ``request`` from ``timestamp`` (aware) on for ``expires`` (1 second to 7 days).

    Its own query comes first, as it was; all its headers are signed, Host must be there; the body is not covered.
    """
    if not timedelta(seconds=1) <= expires <= MAX_LIFETIME:
        raise ValueError("a signature in the query is good for 1 to 604800 seconds")
    moment = _moment(timestamp)
    headers = sorted(_named(request))
    parameters = {
        "X-Amz-Algorithm": canonical.ALGORITHM,
        "X-Amz-Credential": f"{credentials.access_key_id}/{canonical.scope(moment[:8], credentials.region)}",
        "X-Amz-Date": moment,
        "X-Amz-Expires": str(int(expires.total_seconds())),
        "X-Amz-SignedHeaders": ";".join(name for name, _ in headers),
    }
    own = [request.query_string.decode("ascii")] if request.query_string else []
    query = "&".join([*own, *(f"{name}={quote(value, safe='')}" for name, value in parameters.items())])
    digest, _ = canonical.request(request.method, request.raw_path, query.encode(), headers, PayloadMode.UNSIGNED)
    return f"{query}&X-Amz-Signature={_signature(credentials, moment, digest)}"


def _named(request: RequestHead) -> list[tuple[str, bytes]]:
    return [(name.decode().lower(), value) for name, value in request.headers]


def _moment(timestamp: datetime) -> str:
    return timestamp.astimezone(UTC).strftime(canonical.TIMESTAMP_FORMAT)


def _signature(credentials: Credentials, moment: str, digest: str) -> str:
    key = canonical.signing_key(credentials.secret_access_key, moment[:8], credentials.region)
    scope = canonical.scope(moment[:8], credentials.region)
    return canonical.signature(key, canonical.ALGORITHM, moment, scope, digest)
