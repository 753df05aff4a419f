"""The errors the double answers with: S3's code, its status, and the elements S3 adds to the document."""

from __future__ import annotations

from collections.abc import Mapping

STATUS: Mapping[str, int] = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "BadDigest": 400,
    "BucketAlreadyOwnedByYou": 409,
    "BucketNotEmpty": 409,
    "ConditionalRequestConflict": 409,
    "EntityTooSmall": 400,
    "InternalError": 500,
    "InvalidAccessKeyId": 403,
    "InvalidArgument": 400,
    "InvalidBucketName": 400,
    "InvalidDigest": 400,
    "InvalidPart": 400,
    "InvalidPartOrder": 400,
    "InvalidRange": 416,
    "InvalidRequest": 400,
    "InvalidTag": 400,
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedXML": 400,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchObjectLockConfiguration": 404,
    "NoSuchUpload": 404,
    "NoSuchVersion": 404,
    "NotImplemented": 501,
    "NotModified": 304,
    "PreconditionFailed": 412,
    "RequestTimeTooSkewed": 403,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "XAmzContentSHA256Mismatch": 400,
}


class S3Error(Exception):
    """One S3 error. `details` become elements of the answer, e.g. Key or Condition; `headers` are sent with it."""

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        **details: str,
    ) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message or f"The double refuses the request: {code}."
        self.status = status or STATUS[code]
        self.headers = headers or {}
        self.details = details
