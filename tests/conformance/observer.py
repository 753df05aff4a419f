"""Cases, and their view of a store: every answer, without the parts that differ from one request to the next by nature.

A case is a small function of an ``Observer``. Its observations must not depend on a gateway in between.
"""

import hashlib
import http.client
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http.client import HTTPException
from typing import Any, TypeAlias
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element, ParseError, fromstring

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError, ClientError
from botocore.response import StreamingBody
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


Step: TypeAlias = dict[str, Any]

# The headers that S3 defines and clients rely on. Request ids, dates and the like are a server's own.
_HEADER = re.compile(
    r"x-amz-(?!checksum-|request-id$|id-2$|bucket-region$|bucket-arn$)[a-z0-9-]+|access-control-[a-z-]+"
)
# If the answer is a document, stores add any of these to it.
_HEADERS_OF_OBJECTS = {
    **dict.fromkeys(("put_object", "upload_part", "PUT"), re.compile(r"etag|x-amz-checksum-[a-z0-9-]+")),
    **dict.fromkeys(
        ("get_object", "head_object", "GET", "HEAD"),
        re.compile(
            r"x-amz-checksum-[a-z0-9-]+|etag|accept-ranges|last-modified|expires|cache-control"
            r"|content-(length|type|range|disposition|encoding|language)"
        ),
    ),
}
_IDENTITIES = {
    **dict.fromkeys(("UploadId", "UploadIdMarker", "NextUploadIdMarker"), "upload"),
    **dict.fromkeys(("VersionId", "VersionIdMarker", "NextVersionIdMarker", "CopySourceVersionId"), "version"),
    **dict.fromkeys(("DeleteMarkerVersionId", "x-amz-version-id", "x-amz-copy-source-version-id"), "version"),
    **dict.fromkeys(("ContinuationToken", "NextContinuationToken"), "continuation"),
}
_NOT_COMPARED = frozenset({"ResponseMetadata", "RequestId", "HostId", "Message", "Resource", "Region", "ID", "Owner",
                           "Initiator", "DisplayName"})  # fmt: skip
_UNORDERED = frozenset({"Deleted", "Errors", "TagSet", "Grants"})
_TIMES = frozenset({"LastModified", "Last-Modified", "last-modified", "Initiated", "CreationDate"})
_LONG = 200
# MinIO names the cache of a listing in its markers.
_CACHED_AT = re.compile(r"\[minio_cache:[^\]]*\]")


class Observer:
    """The API of a boto3 client on one fresh bucket; each call is answered and put on record in ``steps``.

    A refusal is an answer like any other: nothing is raised. ``names`` are the buckets, by what the record calls them.
    """

    def __init__(self, target: Target, names: Mapping[str, str]) -> None:
        self.target = target
        self.bucket = names["bucket"]
        self.other = names["other"]
        self.new = names["new"]
        self.steps: list[Step] = []
        self._words = {actual: f"<{name}>" for name, actual in names.items()}
        self._words[target.origin] = "<origin>"
        self._words[target.origin.partition("//")[2]] = "<origin>"
        self._seen: dict[tuple[str, str], str] = {}

    def __getattr__(self, operation: str) -> Callable[..., dict[str, Any]]:
        def call(**arguments: Any) -> dict[str, Any]:
            return self._call(operation, arguments)

        return call

    def request(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        signed: bool = True,
    ) -> Answer:
        """A request by hand. ``path`` may name ``{bucket}`` and ``{other}``."""
        send = self.target.signed if signed else self.target.send
        path = path.format(bucket=self.bucket, other=self.other, new=self.new)
        try:
            answer = send(method, path, headers or {}, body)
        except (HTTPException, OSError) as error:
            self.steps.append({"operation": method, "broken": type(error).__name__})
            return Answer(0, {}, b"")
        self.steps.append({"operation": method, **self._of_answer(method, answer)})
        return answer

    def url(self, url: str, method: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """A request to an address that carries its signature."""
        return self.request(method, url.removeprefix(self.target.origin), headers, body, signed=False)

    def note(self, **observations: Any) -> None:
        """Put something else on record."""
        self.steps.append({"operation": "note", **{name: self._normal(one) for name, one in observations.items()}})

    def _call(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if operation != "list_buckets":
            arguments.setdefault("Bucket", self.bucket)
        try:
            answer: dict[str, Any] = getattr(self.target.client, operation)(**arguments)
        except ClientError as error:
            refusal: Any = error.response
            status = refusal["ResponseMetadata"]["HTTPStatusCode"]
            headers = self._headers(operation, status, refusal["ResponseMetadata"]["HTTPHeaders"])
            code = _code(refusal["Error"].get("Code"))
            self.steps.append({"operation": operation, "status": status, "code": code, "headers": headers})
            return {}
        except BotoCoreError as error:
            self.steps.append({"operation": operation, "broken": type(error).__name__})
            return {}
        body = answer.get("Body")
        if isinstance(body, StreamingBody):
            answer["Body"] = body.read()
        said = answer["ResponseMetadata"]
        headers = self._headers(operation, said["HTTPStatusCode"], said["HTTPHeaders"])
        self.steps.append(
            {
                "operation": operation,
                "status": said["HTTPStatusCode"],
                "headers": headers,
                "answer": self._normal({name: one for name, one in answer.items() if name.isidentifier()}),
            }
        )
        return answer

    def _of_answer(self, method: str, answer: Answer) -> Step:
        seen: Step = {"status": answer.status}
        document = _document(answer.body)
        if answer.status >= 400:
            code = None if document is None else document.findtext("Code")
            return seen | {"code": code, "headers": self._headers(method, answer.status, answer.headers)}
        if document is None:
            headers = self._headers(method, answer.status, answer.headers)
            return seen | {"headers": headers, "body": self._normal(answer.body)}
        # The answer is about an object only if it is one.
        headers = self._headers("", answer.status, answer.headers)
        return seen | {"headers": headers, "body": self._of_element(document)}

    def _of_element(self, element: Element) -> Any:
        if not len(element):
            return self._named(_local(element), (element.text or "").strip())
        found = [(_local(one), self._of_element(one)) for one in element if _local(one) not in _NOT_COMPARED]
        return sorted(found, key=repr) if _local(element) == "DeleteResult" else found

    def _headers(self, operation: str, status: int, headers: Mapping[str, str]) -> dict[str, Any]:
        kept = {name: value for name, value in headers.items() if _HEADER.fullmatch(name)}
        if status < 400 and (wanted := _HEADERS_OF_OBJECTS.get(operation)):
            kept |= {name: value for name, value in headers.items() if wanted.fullmatch(name)}
        if 300 <= status < 304:
            kept |= {name: value for name, value in headers.items() if name == "location"}
        return {name: self._named(name, value) for name, value in sorted(kept.items())}

    def _named(self, name: str, value: Any) -> Any:
        if name in _IDENTITIES and isinstance(value, str) and value not in ("", "null"):
            kind = _IDENTITIES[name]
            return self._seen.setdefault((kind, value), f"<{kind} {len(self._seen)}>")
        if name in _TIMES:
            return "<time>"
        if name in ("ETag", "Location") and isinstance(value, str):
            # In documents stores differ in whether they quote the one, and in which of their names they give the other.
            return self._normal(value).strip('"').removeprefix("<origin>").removeprefix("localhost")
        if name in _UNORDERED and isinstance(value, list):
            return sorted(self._normal(value), key=repr)
        return self._normal(value)

    def _normal(self, value: Any) -> Any:
        match value:
            case dict():
                return {key: self._named(key, one) for key, one in value.items() if key not in _NOT_COMPARED}
            case list() | tuple():
                return [self._normal(one) for one in value]
            case datetime():
                return "<time>"
            case bytes() if len(value) > _LONG:
                return f"<{len(value)} bytes, {hashlib.sha256(value).hexdigest()[:12]}>"
            case bytes():
                return self._normal(value.decode("latin-1"))
            case str():
                for actual, word in self._words.items():
                    value = value.replace(actual, word)
                return _CACHED_AT.sub("", value)
            case _:
                return value


def _document(body: bytes) -> Element | None:
    text = body.strip()
    if not text.startswith(b"<"):
        return None
    try:
        return fromstring(text)
    except ParseError:
        return None


def _code(code: str | None) -> str | None:
    """An error's code; None where the answer has none, for which the client puts the status."""
    return None if code is None or code.isdecimal() else code


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def compare(direct: list[Step], through: list[Step]) -> list[str]:
    """Return each place where two records differ, as ``step, operation, path: direct → through``.

    If a store refuses without a code, or completes an upload without its ETag, the gateway may add it.
    """
    found = [
        f"{number} {left.get('operation')}{path}: {_short(one)} → {_short(other)}"
        for number, (left, right) in enumerate(zip(direct, through, strict=False), 1)
        for path, one, other in _leaves(left, right, "")
        if not (path == " code" and one is None) and not (path.endswith(" ETag") and one == "")
    ]
    if len(direct) != len(through):
        found.append(f"{len(direct)} steps → {len(through)} steps")
    return found


def _leaves(left: Any, right: Any, path: str) -> list[tuple[str, Any, Any]]:
    if isinstance(left, dict) and isinstance(right, dict):
        names = dict.fromkeys([*left, *right])
        return [
            leaf
            for name in names
            for leaf in _leaves(left.get(name, _ABSENT), right.get(name, _ABSENT), f"{path} {name}")
        ]
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        pairs = enumerate(zip(left, right, strict=True))
        return [leaf for number, (one, other) in pairs for leaf in _leaves(one, other, f"{path} {number}")]
    return [] if left == right else [(path, left, right)]


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONG else f"{text[:_LONG]}…"


Case: TypeAlias = Callable[[Observer], None]

CASES: dict[str, Case] = {}
"""By name: ``module/function``, with ``[row]`` where the function has a table."""


def case(function: Case) -> Case:
    """A case of its own."""
    _register(function, function.__name__, function)
    return function


def each(table: Mapping[str, Any]) -> Callable[[Callable[[Observer, Any], None]], Callable[[Observer, Any], None]]:
    """A case for each row, which is the function's second argument."""

    def register(function: Callable[[Observer, Any], None]) -> Callable[[Observer, Any], None]:
        for row, value in table.items():
            _register(function, f"{function.__name__}[{row}]", partial(_apply, function, value))
        return function

    return register


def _apply(function: Callable[[Observer, Any], None], value: Any, s3: Observer) -> None:
    function(s3, value)


def _register(function: Callable[..., None], name: str, one: Case) -> None:
    full = f"{function.__module__.rpartition('.')[2]}/{name}"
    assert full not in CASES, full
    CASES[full] = one
