"""A client of the gateway that sends each request once, on a connection of its own, and says plainly what came back."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY

BUCKET = "bucket"

_CREDENTIALS, _REGION = Credentials(ACCESS_KEY, SECRET_KEY), "us-east-1"

# Longer than anything here takes: a client that gives up early would learn less than it could.
_PATIENCE = 60.0
_UNKNOWN = frozenset({"FencingOutcomeUnknown", "ServiceUnavailable"})
_FENCE_REFUSALS = frozenset({"StaleFencingToken", "DuplicateFencingToken", "token-stale", "token-duplicate"})


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request. ``code`` is that of an error, in whichever dialect."""

    status: int
    code: str | None
    request_id: str | None
    body: bytes = field(repr=False)
    replayed: bool = False
    """The answer to the same request before, which had the same idempotency key."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Names in lower case."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

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
    """A holder: a token, and the gateway it talks to. Methods raise OSError where no answer comes.

    ``token`` may be whatever ``Fencing-Token`` may say; ``patience`` in seconds.
    """

    port: int
    token: int | str
    patience: float = _PATIENCE

    def put(self, key: str, body: bytes, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._s3("PUT", key, body, named)

    def delete(self, key: str) -> Answer:
        return self._s3("DELETE", key)

    def delete_version(self, key: str, version_id: str) -> Answer:
        return self._s3("DELETE", key, query=f"versionId={version_id}")

    def delete_many(self, *keys: str) -> Answer:
        """A DeleteObjects; the answer is what became of the first key, as its own DeleteObject would have said it."""
        listed = "".join(f"<Object><Key>{key}</Key></Object>" for key in keys)
        document = f"<Delete>{listed}</Delete>".encode()
        digest = base64.b64encode(hashlib.md5(document).digest()).decode()
        answer = self._s3("POST", "", document, {"content-md5": digest}, query="delete=")
        entry = re.search(rb"<(Deleted|Error)><Key>%s</Key>.*?</\1>" % re.escape(keys[0].encode()), answer.body)
        if not answer.succeeded or entry is None or entry[1] == b"Deleted":
            return answer
        code = code_of(entry[0])
        return replace(answer, status=503 if code in _UNKNOWN else 412, code=code)

    def copy(self, source: str, key: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self._s3("PUT", key, b"", {"x-amz-copy-source": f"/{BUCKET}/{source}", **(headers or {})})

    def tag(self, key: str, value: str, name: str = "holder") -> Answer:
        tags = f"<Tagging><TagSet><Tag><Key>{name}</Key><Value>{value}</Value></Tag></TagSet></Tagging>"
        return self._s3("PUT", key, tags.encode(), query="tagging=")

    def open_upload(self, key: str, body: bytes, headers: Mapping[str, str] | None = None) -> str:
        """An upload with one part, all of the body; its id."""
        opened = self._s3("POST", key, headers=headers, query="uploads=")
        assert opened.succeeded, opened.body
        found = re.search(rb"<UploadId>([^<]+)</UploadId>", opened.body)
        assert found is not None
        upload_id = found[1].decode()
        part = self._s3("PUT", key, body, query=f"partNumber=1&uploadId={upload_id}")
        assert part.succeeded, part.body
        return upload_id

    def complete(self, key: str, upload_id: str, body: bytes) -> Answer:
        """Complete what ``open_upload`` opened."""
        etag = hashlib.md5(body).hexdigest()
        part = f"<Part><PartNumber>1</PartNumber><ETag>&quot;{etag}&quot;</ETag></Part>"
        document = f"<CompleteMultipartUpload>{part}</CompleteMultipartUpload>".encode()
        return self._s3("POST", key, document, query=f"uploadId={upload_id}")

    def get(self, key: str) -> bytes | None:
        """The object's bytes; None where there is no object."""
        answer = self._s3("GET", key)
        assert answer.status in (200, 404), answer
        return answer.body if answer.status == 200 else None

    def read(self, key: str) -> Answer:
        return self._s3("GET", key)

    def fence(self, resource: str) -> Answer:
        return self._json("GET", f"/v1/fences/{resource}", None)

    def epoch(self, resource: str, expected: str) -> Answer:
        """A new epoch, if the fence carries this token; for administrators."""
        return self._json("POST", f"/v1/fences/{resource}/epoch", {"expected": expected, "reason": "a test"})

    def barrier(self, resource: str) -> Answer:
        return self._json("POST", f"/v1/fences/{resource}/barrier", {"token": str(self.token)})

    def table(self, method: str, target: str, rows: Any = None, **headers: str) -> Answer:
        """A write to a table: ``target`` is its name and the query."""
        return self._json(method, f"/v1/tables/{target}", rows, {"Fencing-Token": str(self.token), **headers})

    def transaction(self, writes: Any, **headers: str) -> Answer:
        """Several writes to tables, all or nothing."""
        named = {"Fencing-Token": str(self.token), **headers}
        return self._json("POST", "/v1/transaction", {"writes": writes}, named)

    def _s3(
        self, method: str, key: str, body: bytes = b"", headers: Mapping[str, str] | None = None, *, query: str = ""
    ) -> Answer:
        path = f"/{BUCKET}/{key}".rstrip("/") + (f"?{query}" if query else "")
        named = {"Fencing-Token": str(self.token), **(headers or {})}
        return self._send(method, path, body, signed(method, f"http://127.0.0.1:{self.port}{path}", body, named))

    def _json(self, method: str, path: str, document: Any, headers: Mapping[str, str] | None = None) -> Answer:
        body = b"" if document is None else json.dumps(document).encode()
        named = {"Authorization": f"Bearer {API_KEY}", "Content-Type": "application/json", **(headers or {})}
        return self._send(method, path, body, named)

    def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.patience)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
            replayed = response.getheader("idempotency-replayed") is not None
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, code_of(content), named.get("x-request-id"), content, replayed, named)
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()


def signed(
    method: str, url: str, body: bytes, headers: Mapping[str, str], credentials: Credentials = _CREDENTIALS
) -> dict[str, str]:
    """Return the headers of a request to a store, with those that sign it."""
    request = AWSRequest(method=method, url=url, data=body, headers=dict(headers))
    S3SigV4Auth(credentials, "s3", _REGION).add_auth(request)
    return dict(request.headers.items())


def code_of(content: bytes) -> str | None:
    """The code of an S3 error document, of a problem document, or of PostgREST's four keys."""
    if found := re.search(rb"<Error>.*?<Code>([^<]+)</Code>", content, re.DOTALL):
        return found[1].decode()
    try:
        document = json.loads(content or b"null")
    except ValueError:
        return None
    return document.get("code") if isinstance(document, dict) else None
