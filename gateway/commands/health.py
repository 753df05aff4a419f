"""``gateway health``: ask a gateway whether it can take writes. Health checks call this every few seconds.

It imports no library of the gateway and no HTTP client, because each import would cost more than the question.
"""

import http.client
import ipaddress
import json
import ssl
from urllib.parse import urlsplit

from gateway.errors import ConfigurationError

READY = "/v1/ready"
ALIVE = "/v1/live"
"""A gateway answers it at once, even if its database hangs."""
_MOST = 65536
"""Bytes of an answer that are read."""
_UNUSABLE = ConfigurationError("--url: must be an address such as http://127.0.0.1:8080", advice="")


def problem(url: str, timeout: float, *, alive: bool) -> str | None:
    """Return the reason why the gateway at ``url`` is not ready, and None if it is. ``timeout`` is in seconds.

    With ``alive`` any answer will do. Raises ``ConfigurationError`` for an address that cannot be one.
    """
    try:
        address = urlsplit(url)
        host, port = address.hostname, address.port
    except ValueError as error:
        raise _UNUSABLE from error
    if address.scheme not in ("http", "https") or not host:
        raise _UNUSABLE
    if address.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=timeout, context=_context(host)
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout)
    handshake = False
    try:
        connection.connect()
        handshake = address.scheme == "https"
        connection.request("GET", address.path.rstrip("/") + (ALIVE if alive else READY))
        answer = connection.getresponse()
        body = answer.read(_MOST)
    except ssl.SSLCertVerificationError as error:
        return f"{url}: the certificate is not trusted: {error.verify_message}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        if not handshake:
            return f"{url}: no answer: {type(error).__name__}"
        # The handshake is an answer. A gateway that demands certificates of clients ends the connection after it.
        return None if alive else f"{url}: {type(error).__name__} after the handshake. Does it demand a certificate?"
    finally:
        connection.close()
    if alive or answer.status == http.client.NO_CONTENT:
        return None
    return f"{url}: {answer.status} {_detail(body)}".rstrip()


def _context(host: str) -> ssl.SSLContext:
    """Return a context that verifies the certificate, but not on this machine: there it is for the name outside."""
    try:
        own = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        own = False
    context = ssl.create_default_context()
    if own:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, LookupError, TypeError):
        return ""
