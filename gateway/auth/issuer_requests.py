"""Requests to issuers: for their keys, and for the tokens of a login. They go to configured addresses alone."""

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path

import httpx

from gateway.observe.events import Observe
from gateway.observe.stages import asking


class IssuerFailed(Exception):
    """An issuer could not be asked, or its answer cannot be used. The text says why, and contains no secret."""


async def ask(
    method: str,
    url: str,
    observe: Observe,
    *,
    headers: Mapping[str, str],
    form: Mapping[str, str] | None = None,
    authorities: Path | None,
    seconds: float,
    largest: int,
) -> tuple[int, bytes]:
    """Return status and body of an answer. Raises ``IssuerFailed``, also if it takes longer than ``seconds`` in all.

    ``authorities``: a file with the certificates of which the address has to show one. ``largest``: bytes of a body.
    """
    sent = {"Accept": "application/json", "Accept-Encoding": "identity", **headers}
    content = b""
    try:
        context = ssl.create_default_context(cafile=authorities)
        # trust_env off: no proxy of the environment gets to choose keys, or sees a code. No redirect is followed.
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(verify=context, trust_env=False, follow_redirects=False, timeout=seconds) as client,
        ):
            with asking(observe, "issuer", method, "/") as exchange:
                async with client.stream(method, url, headers=sent, data=form) as answer:
                    exchange.status = answer.status_code
                    async for chunk in answer.aiter_raw():
                        content += chunk
                        if len(content) > largest:
                            raise ValueError("its answer is too long")
    except TimeoutError as error:
        raise IssuerFailed(f"it does not answer within {seconds:g} seconds") from error
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise IssuerFailed(str(error) or type(error).__name__) from error
    return answer.status_code, content
