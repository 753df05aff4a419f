"""Requests to buckets, signed well and badly."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha256

from botocore.auth import S3SigV4PostAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as PostCredentials
from urllib3.filepost import encode_multipart_formdata

from gateway.auth.sigv4 import RequestHead, StoreCredentials, presign, sign
from tests.fuzz.deeds import BUCKET, HELD, HOST, Choices, Deed, Effect
from tests.running import ACCESS_KEY, SECRET_KEY

_WRONG_SECRET = "a-secret-nobody-has"
_REGION = "us-east-1"
_GOOD = ("header", "unsigned payload", "presigned")
_SIGNATURES = (*_GOOD, "header", "header", "none", "wrong", "tampered", "other body", "trailer", "expired")
_MARKERS = (
    *("list-type=2", "versions", "uploads", "acl", "tagging", "policy", "location", "torrent", "nothing"),
    *("delete", "cors", "versioning", "object-lock"),
)
_NAMES = "prefix delimiter max-keys continuation-token marker encoding-type start-after versionId fetch-owner"
_DOCUMENTS = (
    *(b"", b"<a>" * 2000, b"<Delete></Delete>", b"\xff\xfe<\0a\0>\0", b"<Tagging><TagSet/></Tagging>"),
    b'<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;">]><Delete>&d;</Delete>',
    b"<Delete>" + b"<Object><Key>fz/a</Key></Object>" * 1200 + b"</Delete>",
    b"<Delete><Object><Key>seed</Key></Object></Delete>",
    b"<CreateBucketConfiguration/>",
)
_FURTHER = (
    "range",
    "if-match",
    "x-amz-copy-source",
    "content-md5",
    "x-amz-checksum-crc32",
    "x-amz-sdk-checksum-algorithm",
)


def write(name: str, choices: Choices) -> Deed:
    """Write to a key of its own, or to one that a newer holder has."""
    mark, token = choices.mark(), choices.token()
    key = f"fz/stale/{mark}" if token == "stale" else f"fz/{mark}/x"
    headers = [("host", HOST), *((name.lower(), value) for name, value in choices.tokens(token))]
    kind, query, body = choices.one(
        *[("put", "", choices.random.randbytes(choices.one(0, 1, 100, 20_000)))] * 4,
        ("copy", "", b""),
        ("delete", "", b""),
        ("create", "?uploads=", b""),
        ("part", "?partNumber=1&uploadId=nothing", b"part"),
        ("complete", "?uploadId=nothing", b"<CompleteMultipartUpload/>"),
    )
    if kind == "copy":
        headers.append(("x-amz-copy-source", f"/{BUCKET}/seed"))
    method = {"delete": "DELETE", "create": "POST", "complete": "POST"}.get(kind, "PUT")
    signature = choices.one(*_SIGNATURES)
    # A body that means nothing to its operation is not held against its digest.
    bodiless = kind in ("copy", "delete", "create")
    known = signature in (*_GOOD, "other body")
    allowed = known and token == "held" and (signature != "other body" or bodiless)
    certain = allowed and kind in ("put", "copy")
    effect = Effect(mark, "object", allowed, certain=certain, name=key, bodiless=bodiless)
    deed = Deed(name, method, f"/{BUCKET}/{key}{query}", headers, body, choices.trailers(name), known, effect)
    _sign(deed, signature)
    return deed


def read(name: str, choices: Choices) -> Deed:
    """Read, list, delete several or change settings, often with odd documents and values."""
    marker, key = choices.one(*_MARKERS), choices.nasty_segment("/")
    document = choices.one(*_DOCUMENTS, choices.nonsense())
    method, target, body = choices.one(
        (choices.one("GET", "HEAD"), f"/{BUCKET}/seed", b""),
        (choices.one("GET", "HEAD", "POST", "OPTIONS"), f"/{BUCKET}?{marker}&{choices.nasty_query(_NAMES)}", document),
        (choices.one("GET", "HEAD", "POST", "OPTIONS"), f"/{BUCKET}/{key}?{marker}", document),
        ("PUT", f"/{BUCKET}?{marker}", document),
        (choices.one("GET", "HEAD"), f"/{key}", b""),
        ("GET", f"/no-such-bucket/{key}", b""),
        ("GET", "/", b""),
    )
    headers = [("host", HOST)]
    if choices.often(0.3):
        headers.append((choices.one(*_FURTHER, "fencing-token"), choices.nasty_header()))
    signature = choices.one(*_SIGNATURES)
    deed = Deed(name, method, target, headers, body, choices.trailers(name), signature in (*_GOOD, "other body"))
    _sign(deed, signature)
    return deed


def form(name: str, choices: Choices) -> Deed:
    """Upload a form, as a browser sends it, or a part of one."""
    mark = choices.mark()
    signature, token = choices.one("good", "good", "wrong", "none"), choices.one("held", "held", "none")
    key = f"fz/{mark}/x"
    fields = {"key": key, "x-amz-meta-fencing-token": str(HELD)} if token == "held" else {"key": key}
    if signature != "none":
        conditions = [{one: value} for one, value in {"bucket": BUCKET, **fields}.items()]
        request = AWSRequest(method="POST", url=f"http://{HOST}/{BUCKET}")
        request.context["s3-presign-post-fields"] = fields
        request.context["s3-presign-post-policy"] = {"expiration": "2999-01-01T00:00:00Z", "conditions": conditions}
        secret = SECRET_KEY if signature == "good" else _WRONG_SECRET
        S3SigV4PostAuth(PostCredentials(ACCESS_KEY, secret), "s3", _REGION).add_auth(request)
    file = ("name", b"x" * choices.one(0, 10, 20_000))
    content, kind = encode_multipart_formdata({**fields, "file": file}, f"b{mark}")
    if choices.often(0.3):
        content = choices.one(content[: choices.random.randrange(len(content))], content.replace(b"\r\n", b"\n"))
    kind = choices.one(kind, kind, "multipart/form-data", f"multipart/form-data; boundary={'x' * 100}")
    effect = Effect(mark, "object", signature == "good" and token == "held", name=key)
    headers = [("Host", HOST), ("Content-Type", kind)]
    return Deed(name, "POST", f"/{BUCKET}", headers, content, choices.trailers(name), signature == "good", effect)


def _sign(deed: Deed, how: str) -> None:
    if how == "none":
        return
    path, _, query = deed.target.partition("?")
    credentials = StoreCredentials(ACCESS_KEY, _WRONG_SECRET if how == "wrong" else SECRET_KEY, _REGION)
    now = datetime.now(UTC) - (timedelta(hours=1) if how == "expired" else timedelta())
    headers = [(name.encode(), value.encode("latin-1")) for name, value in deed.headers]
    head = RequestHead(deed.method, path.encode(), query.encode(), headers)
    if how in ("presigned", "expired"):
        deed.target = f"{path}?{presign(head, credentials, now, timedelta(minutes=10))}"
        return
    payload = sha256(b"other" + deed.body if how == "other body" else deed.body).hexdigest()
    added = dict(sign(head, "UNSIGNED-PAYLOAD" if how == "unsigned payload" else payload, credentials, now))
    if how == "tampered":
        signature = added["authorization"]
        added["authorization"] = signature[:-1] + ("1" if signature.endswith("0") else "0")
    (deed.trailers if how == "trailer" else deed.headers).extend(added.items())
