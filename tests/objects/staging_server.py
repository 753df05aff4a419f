"""`python -m tests.objects.staging_server ENDPOINT`: stages what is put to it, behind the product's server.

Prints the port it listens on. A process of its own, so that its memory can be told from that of client and store.
"""

import sys
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from pydantic import SecretStr

from gateway import serving
from gateway.auth.principal import Principal
from gateway.auth.sigv4 import PayloadMode, VerifiedSignature
from gateway.config.stores import ObjectStore
from gateway.http.body import ArrivingBody, Pace
from gateway.objects.body.intake import WriteBody
from gateway.objects.store.operations import Upstream
from gateway.objects.writes.staging import Staged, Staging


class Unregistered:
    """A register that no test reads."""

    async def opened(self, upload_id: str) -> None: ...

    async def touched(self, upload_id: str) -> None: ...

    async def closed(self, upload_id: str) -> None: ...


async def now() -> datetime:
    return datetime.now(UTC)


def main() -> None:
    config = ObjectStore(endpoint=sys.argv[1], access_key_id="A", secret_access_key=SecretStr("s"))
    upstream = Upstream(config)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            async with upstream:
                await send({"type": "lifespan.startup.complete"})
                await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        signer = VerifiedSignature(Principal("worker"), PayloadMode.UNSIGNED)
        intake = WriteBody(ArrivingBody(receive, Pace()), scope["headers"], signer, 2**40)
        staged = await Staging(upstream, ("bucket", "key"), Unregistered()).stage(intake, (), uuid4())
        status = 200 if isinstance(staged, Staged) else 500
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    listener = serving.bind("127.0.0.1", 0)
    print(listener.getsockname()[1], flush=True)
    serving.server(app).run(sockets=[listener])


if __name__ == "__main__":
    main()
