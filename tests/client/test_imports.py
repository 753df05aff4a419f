"""A program that imports the client library loads no part of the server, and no library that it does not use."""

import subprocess
import sys

SERVER = {"fastapi", "starlette", "uvicorn", "asyncpg", "sqlalchemy", "pydantic", "aiohttp", "orjson", "structlog"}
EXTRAS = {"boto3", "botocore", "aiobotocore", "postgrest", "kazoo", "redis", "django"}


def test_the_client_is_light() -> None:
    code = "import sys, gateway.client, gateway.client.blocking; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    names = loaded.stdout.split()
    assert not (SERVER | EXTRAS) & {name.split(".")[0] for name in names}
    own = {name for name in names if name.startswith("gateway.")}
    outside = {name for name in own if not name.startswith(("gateway.client", "gateway.errors", "gateway.fencing"))}
    assert outside == set()
