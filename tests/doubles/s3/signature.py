"""SigV4 in the Authorization header, checked by signing the request again with botocore.

It shares no code with the gateway's own signer, so that each shows the other's mistakes.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote, unquote_to_bytes

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.messages import Head

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/,\s]+)/(?P<date>\d{8})/(?P<region>[^/,\s]+)/s3/aws4_request, ?"
    r"SignedHeaders=(?P<headers>[a-z0-9;_.-]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)
_MUST_BE_SIGNED = frozenset({"host", "x-amz-date"})
TIMESTAMP = "%Y%m%dT%H%M%SZ"


class _Signer(S3SigV4Auth):
    """Signs exactly the headers it is given; botocore's own leaves some out."""

    def headers_to_sign(self, request: AWSRequest) -> HTTPHeaders:
        return request.headers


@dataclass(frozen=True, slots=True)
class Verifier:
    """Checks heads of requests against the known keys (access key id to secret)."""

    secrets: Mapping[str, str]
    region: str

    def check(self, head: Head, now: datetime, lifetime: float) -> None:
        """Raises AccessDenied, InvalidAccessKeyId, RequestTimeTooSkewed, SignatureDoesNotMatch and the like."""
        claim = _AUTHORIZATION.fullmatch(head.headers.get("authorization", ""))
        if claim is None:
            raise S3Error("AccessDenied", "The request is not signed with AWS4-HMAC-SHA256.")
        if claim["key"] not in self.secrets:
            raise S3Error("InvalidAccessKeyId", AWSAccessKeyId=claim["key"])
        timestamp = head.headers.get("x-amz-date", "")
        self._check_scope(claim, timestamp)
        _check_time(timestamp, now, lifetime)
        signed = claim["headers"].split(";")
        _check_signed_headers(head, signed)
        if not hmac.compare_digest(self._signature(head, signed, claim["key"], timestamp), claim["signature"]):
            raise S3Error("SignatureDoesNotMatch", AWSAccessKeyId=claim["key"])

    def _check_scope(self, claim: re.Match[str], timestamp: str) -> None:
        if claim["region"] != self.region:
            raise S3Error("AuthorizationHeaderMalformed", Region=self.region)
        if not timestamp.startswith(claim["date"]):
            raise S3Error("AuthorizationHeaderMalformed", "The credential's date is not that of x-amz-date.")

    def _signature(self, head: Head, signed: list[str], access_key: str, timestamp: str) -> str:
        url = f"http://{head.headers['host']}{_canonical(head.raw_path, '/')}"
        if head.query_string:
            url = f"{url}?{_canonical(head.query_string, '=&')}"
        headers = {name: head.headers[name] for name in signed}
        request = AWSRequest(method=head.method, url=url, headers=headers)
        request.context["timestamp"] = timestamp
        signer = _Signer(Credentials(access_key, self.secrets[access_key]), "s3", self.region)
        canonical = signer.canonical_request(request)
        return str(signer.signature(signer.string_to_sign(request, canonical), request))


def _check_time(timestamp: str, now: datetime, lifetime: float) -> None:
    try:
        signed_at = datetime.strptime(timestamp, TIMESTAMP).replace(tzinfo=UTC)
    except ValueError as error:
        raise S3Error("AccessDenied", "x-amz-date is missing or malformed.") from error
    if abs((now - signed_at).total_seconds()) > lifetime:
        raise S3Error(
            "RequestTimeTooSkewed",
            RequestTime=timestamp,
            ServerTime=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            MaxAllowedSkewMilliseconds=str(int(lifetime * 1000)),
        )


def _check_signed_headers(head: Head, signed: list[str]) -> None:
    must = _MUST_BE_SIGNED | {name for name in head.headers if name.startswith("x-amz-")}
    unsigned = must - set(signed)
    if unsigned:
        raise S3Error("AccessDenied", "Headers are not signed.", HeadersNotSigned=", ".join(sorted(unsigned)))
    absent = set(signed) - head.headers.keys()
    if absent or "x-amz-content-sha256" not in head.headers:
        raise S3Error("SignatureDoesNotMatch", f"Signed headers are absent: {sorted(absent)}.")


def _canonical(text: str, safe: str) -> str:
    """AWS signs the decoded path and query, encoded in one way, whatever way they came over the wire."""
    return "".join(
        piece if piece in safe else quote(unquote_to_bytes(piece), safe="-_.~") for piece in _split(text, safe)
    )


def _split(text: str, separators: str) -> list[str]:
    return [piece for piece in re.split(f"([{re.escape(separators)}])", text) if piece]
