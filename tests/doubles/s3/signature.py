"""SigV4 in the Authorization header or in the query, checked by signing the request again with botocore.

It shares no code with the gateway's own signer, so that each shows the other's mistakes.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, unquote_to_bytes

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.compat import HTTPHeaders
from botocore.credentials import Credentials

from tests.doubles.s3.messages import Head
from tests.doubles.s3.operations import S3Error

_CREDENTIAL = r"(?P<key>[^/,\s]+)/(?P<date>\d{8})/(?P<region>[^/,\s]+)/s3/aws4_request"
_SIGNED_HEADERS = r"(?P<headers>[a-z0-9;_.-]+)"
_SIGNATURE = r"(?P<signature>[0-9a-f]{64})"
_HEADER_FORM = re.compile(
    rf"AWS4-HMAC-SHA256 Credential={_CREDENTIAL}, ?SignedHeaders={_SIGNED_HEADERS}, ?Signature={_SIGNATURE}"
)
_QUERY_FORM = re.compile(rf"AWS4-HMAC-SHA256 {_CREDENTIAL} {_SIGNED_HEADERS} {_SIGNATURE}")
_LIFETIME = 900
_LONGEST_EXPIRY = 7 * 24 * 3600
_SHOWN = "%Y-%m-%dT%H:%M:%SZ"
TIMESTAMP = "%Y%m%dT%H%M%SZ"


class _HeaderSigner(S3SigV4Auth):
    """Signs exactly the headers it is given; botocore's own leaves some out."""

    def headers_to_sign(self, request: AWSRequest) -> HTTPHeaders:
        return request.headers


class _QuerySigner(S3SigV4QueryAuth):
    """Signs exactly the headers it is given, and no body."""

    def headers_to_sign(self, request: AWSRequest) -> HTTPHeaders:
        return request.headers


@dataclass(frozen=True, slots=True)
class _Claim:
    """The statements of a request about its signature. `expires` is in seconds, None for the header form."""

    access_key: str
    date: str
    region: str
    signed: list[str]
    signature: str
    timestamp: str
    expires: int | None


@dataclass(frozen=True, slots=True)
class Verifier:
    """Checks heads of requests against the known keys (access key id to secret)."""

    secrets: Mapping[str, str]
    region: str

    def check(self, head: Head, now: datetime) -> None:
        """Raises AccessDenied, InvalidAccessKeyId, RequestTimeTooSkewed, SignatureDoesNotMatch and the like."""
        claim = _claim(head)
        if claim.access_key not in self.secrets:
            raise S3Error("InvalidAccessKeyId", AWSAccessKeyId=claim.access_key)
        self._check_scope(claim)
        _check_time(claim, now)
        _check_signed_headers(head, claim)
        if not hmac.compare_digest(self._signature(head, claim), claim.signature):
            raise S3Error("SignatureDoesNotMatch", AWSAccessKeyId=claim.access_key)

    def _check_scope(self, claim: _Claim) -> None:
        code = "AuthorizationHeaderMalformed" if claim.expires is None else "AuthorizationQueryParametersError"
        if claim.region != self.region:
            raise S3Error(code, Region=self.region)
        if not claim.timestamp.startswith(claim.date):
            raise S3Error(code, "The credential's date is not that of x-amz-date.")

    def _signature(self, head: Head, claim: _Claim) -> str:
        url = f"http://{head.headers['host']}{_canonical(head.raw_path, '/')}"
        query = "&".join(pair for pair in head.query_string.split("&") if not pair.startswith("X-Amz-Signature="))
        if query:
            url = f"{url}?{_canonical(query, '=&')}"
        headers = {name: head.headers[name] for name in claim.signed}
        request = AWSRequest(method=head.method, url=url, headers=headers)
        request.context["timestamp"] = claim.timestamp
        signing = _HeaderSigner if claim.expires is None else _QuerySigner
        signer = signing(Credentials(claim.access_key, self.secrets[claim.access_key]), "s3", self.region)
        canonical = signer.canonical_request(request)
        return str(signer.signature(signer.string_to_sign(request, canonical), request))


def _claim(head: Head) -> _Claim:
    """Read either form. Raises AccessDenied, InvalidArgument, AuthorizationQueryParametersError."""
    if not head.authentication:
        claim = _HEADER_FORM.fullmatch(head.headers.get("authorization", ""))
        if claim is None:
            raise S3Error("AccessDenied", "The request is not signed with AWS4-HMAC-SHA256.")
        return _claim_of(claim, head.headers.get("x-amz-date", ""), None)
    if "authorization" in head.headers:
        raise S3Error("InvalidArgument", "Only one auth mechanism allowed.", ArgumentName="Authorization")
    names = ("X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Signature")
    claim = _QUERY_FORM.fullmatch(" ".join(head.authentication.get(name, "") for name in names))
    expires = head.authentication.get("X-Amz-Expires", "")
    if claim is None or not re.fullmatch(r"\d{1,6}", expires, re.ASCII) or not 1 <= int(expires) <= _LONGEST_EXPIRY:
        raise S3Error(
            "AuthorizationQueryParametersError", "The parameters of the signature are not complete and valid."
        )
    return _claim_of(claim, head.authentication.get("X-Amz-Date", ""), int(expires))


def _claim_of(match: re.Match[str], timestamp: str, expires: int | None) -> _Claim:
    signed = match["headers"].split(";")
    return _Claim(match["key"], match["date"], match["region"], signed, match["signature"], timestamp, expires)


def _check_time(claim: _Claim, now: datetime) -> None:
    try:
        signed_at = datetime.strptime(claim.timestamp, TIMESTAMP).replace(tzinfo=UTC)
    except ValueError as error:
        raise S3Error("AccessDenied", "x-amz-date is missing or malformed.") from error
    age, server_time = (now - signed_at).total_seconds(), now.strftime(_SHOWN)
    if claim.expires is None:
        if abs(age) > _LIFETIME:
            raise S3Error(
                "RequestTimeTooSkewed",
                RequestTime=claim.timestamp,
                ServerTime=server_time,
                MaxAllowedSkewMilliseconds=str(_LIFETIME * 1000),
            )
    elif age > claim.expires:
        expired = (signed_at + timedelta(seconds=claim.expires)).strftime(_SHOWN)
        raise S3Error("AccessDenied", "Request has expired", Expires=expired, ServerTime=server_time)
    elif age < -_LIFETIME:
        raise S3Error("AccessDenied", "Request is not yet valid", ServerTime=server_time)


def _check_signed_headers(head: Head, claim: _Claim) -> None:
    signed = set(claim.signed)
    must = {"host"} | {name for name in head.headers if name.startswith("x-amz-")}
    if claim.expires is None:
        must.add("x-amz-date")
    unsigned = must - signed
    if unsigned:
        raise S3Error("AccessDenied", "Headers are not signed.", HeadersNotSigned=", ".join(sorted(unsigned)))
    absent = signed - head.headers.keys()
    if absent or (claim.expires is None and "x-amz-content-sha256" not in head.headers):
        raise S3Error("SignatureDoesNotMatch", f"Signed headers are absent: {sorted(absent)}.")


def _canonical(text: str, safe: str) -> str:
    """AWS signs the decoded path and query, encoded in one way, whatever way they came over the wire."""
    return "".join(
        piece if piece in safe else quote(unquote_to_bytes(piece), safe="-_.~") for piece in _split(text, safe)
    )


def _split(text: str, separators: str) -> list[str]:
    return [piece for piece in re.split(f"([{re.escape(separators)}])", text) if piece]
