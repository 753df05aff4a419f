"""The errors the double answers with: S3's code, its status, and the elements S3 adds to the document."""

from __future__ import annotations

from collections.abc import Mapping

STATUS: Mapping[str, int] = {
    "AccessDenied": 403,
    "AuthorizationHeaderMalformed": 400,
    "BadDigest": 400,
    "BucketAlreadyOwnedByYou": 409,
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
    "InvalidURI": 400,
    "KeyTooLongError": 400,
    "MalformedXML": 400,
    "MetadataTooLarge": 400,
    "MethodNotAllowed": 405,
    "MissingContentLength": 411,
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "NotImplemented": 501,
    "NotModified": 304,
    "PreconditionFailed": 412,
    "RequestTimeTooSkewed": 403,
    "SignatureDoesNotMatch": 403,
    "SlowDown": 503,
    "XAmzContentSHA256Mismatch": 400,
}


class S3Error(Exception):
    """One S3 error. `details` become elements of the answer, e.g. Key or Condition."""

    def __init__(self, code: str, message: str = "", *, status: int | None = None, **details: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message or f"The double refuses the request: {code}."
        self.status = status or STATUS[code]
        self.details = details
