"""A client of the gateway that sends each request once, on a connection of its own, and says plainly what came back."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY

BUCKET = "bucket"

# Longer than anything here takes: a client that gives up early would learn less than it could.
_PATIENCE = 20.0
_FENCE_REFUSALS = frozenset({"StaleFencingToken", "DuplicateFencingToken", "token-stale", "token-duplicate"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. ``code`` is that of an error, in whichever dialect."""

    status: int
    code: str | None
    request_id: str | None
    body: bytes = field(repr=False)

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        """Answered with a refusal: the write never takes effect."""
        return 400 <= self.status < 500

    @property
    def refused_by_fence(self) -> bool:
        return self.refused and self.code in _FENCE_REFUSALS

    @property
    def unknown(self) -> bool:
        return self.status == 503


@dataclass(frozen=True, slots=True)
class Client:
    """A holder: a token, and the gateway it talks to. Methods raise OSError where no answer comes."""

    port: int
    token: int

    def put(self, key: str, body: bytes, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._s3("PUT", key, body, named)

    def delete(self, key: str) -> Answer:
        return self._s3("DELETE", key)

    def get(self, key: str) -> bytes | None:
        """The object's bytes; None where there is no object."""
        answer = self._s3("GET", key)
        assert answer.status in (200, 404), answer
        return answer.body if answer.status == 200 else None

    def barrier(self, resource: str) -> Answer:
        return self._json("POST", f"/v1/fences/{resource}/barrier", {"token": str(self.token)})

    def table(self, method: str, target: str, rows: Any = None, **headers: str) -> Answer:
        """A write to a table: ``target`` is its name and the query."""
        return self._json(method, f"/v1/tables/{target}", rows, {"Fencing-Token": str(self.token), **headers})

    def _s3(self, method: str, key: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        request = AWSRequest(
            method=method,
            url=f"http://127.0.0.1:{self.port}/{BUCKET}/{key}",
            data=body,
            headers={"Fencing-Token": str(self.token), **(headers or {})},
        )
        S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", "us-east-1").add_auth(request)
        return self._send(method, f"/{BUCKET}/{key}", body, dict(request.headers.items()))

    def _json(self, method: str, path: str, document: Any, headers: Mapping[str, str] | None = None) -> Answer:
        body = b"" if document is None else json.dumps(document).encode()
        named = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json", **(headers or {})}
        return self._send(method, path, body, named)

    def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
            return Answer(response.status, _code(content), response.getheader("x-request-id"), content)
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()


def _code(content: bytes) -> str | None:
    """The code of an S3 error document, of a problem document, or of PostgREST's four keys."""
    if found := re.search(rb"<Error>.*<Code>([^<]+)</Code>", content, re.DOTALL):
        return found[1].decode()
    try:
        document = json.loads(content or b"null")
    except ValueError:
        return None
    return document.get("code") if isinstance(document, dict) else None
