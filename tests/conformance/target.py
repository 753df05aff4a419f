"""The target of a case's requests: a store itself, or the gateway in front of it."""

import http.client
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from mypy_boto3_s3 import S3Client

from tests.stores.store import REGION, User, connect


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Target:
    """One origin and one caller of it. ``token`` is the fencing token that goes with each request, if any.

    ``client`` presents it in a header. ``bearer`` presents it in the session token, and so also in what it presigns.
    """

    def __init__(self, origin: str, user: User, token: str | None = None) -> None:
        self.origin = origin
        self._user = user
        self._token = token
        self._host = urlsplit(origin).netloc
        self.client = connect(origin, user)
        if token is not None:
            self.client.meta.events.register("before-call.s3", self._present)
        self.bearer: S3Client = connect(origin, user, session_token=f"fencing-token={token}" if token else None)

    def _present(self, params: dict[str, Any], **_: Any) -> None:
        params["headers"]["Fencing-Token"] = self._token

    def signed(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a request that no client would send, signed all the same. ``path`` includes the query."""
        named = {"Host": self._host, **headers, **({"Fencing-Token": self._token} if self._token else {})}
        request = AWSRequest(method, f"{self.origin}{path}", headers=named, data=body)
        credentials = Credentials(self._user.access_key_id, self._user.secret_access_key)
        S3SigV4Auth(credentials, "s3", REGION).add_auth(request)
        return self.send(method, path, dict(request.headers.items()), body)

    def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a request as it is. The path is not normalised."""
        connection = http.client.HTTPConnection(self._host, timeout=60)
        try:
            connection.request(method, path, body=body or None, headers=dict(headers))
            response = connection.getresponse()
            return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()
