"""Addresses that carry their signature, forms in a browser, and unsigned requests."""

from datetime import UTC, datetime
from typing import Any

from tests.conformance.observer import Observer, case, each

BOUNDARY = "a-boundary-of-a-form"


def _url(s3: Observer, operation: str, expires: int = 300, **parameters: Any) -> str:
    parameters = {"Bucket": s3.bucket, **parameters}
    return s3.target.bearer.generate_presigned_url(operation, Params=parameters, ExpiresIn=expires)


@case
def presigned_get(s3: Observer) -> None:
    s3.put_object(Key="a b+c", Body=b"hello")
    s3.url(_url(s3, "get_object", Key="a b+c"), "GET")
    s3.url(_url(s3, "get_object", Key="a b+c"), "GET", headers={"Range": "bytes=1-2"})
    s3.url(_url(s3, "get_object", Key="a b+c", ResponseContentType="text/x-other"), "GET")
    s3.url(_url(s3, "head_object", Key="a b+c"), "HEAD")
    s3.url(_url(s3, "get_object", Key="none"), "GET")
    s3.url(_url(s3, "list_objects_v2"), "GET")


@case
def presigned_put(s3: Observer) -> None:
    s3.url(_url(s3, "put_object", Key="k"), "PUT", b"hello")
    s3.get_object(Key="k")
    s3.url(_url(s3, "delete_object", Key="k"), "DELETE")
    s3.head_object(Key="k")


@case
def presigned_put_with_headers(s3: Observer) -> None:
    url = _url(s3, "put_object", Key="k", ContentType="text/plain", Metadata={"a": "1"})
    s3.url(url, "PUT", b"hello", {"Content-Type": "text/plain", "x-amz-meta-a": "1"})
    s3.head_object(Key="k")
    s3.url(url, "PUT", b"hello", {"Content-Type": "text/x-other", "x-amz-meta-a": "1"})


@case
def presigned_upload(s3: Observer) -> None:
    upload = s3.create_multipart_upload(Key="k").get("UploadId", "")
    answer = s3.url(_url(s3, "upload_part", Key="k", UploadId=upload, PartNumber=1), "PUT", b"part")
    parts = {"Parts": [{"PartNumber": 1, "ETag": answer.headers.get("etag", "")}]}
    s3.complete_multipart_upload(Key="k", UploadId=upload, MultipartUpload=parts)
    s3.get_object(Key="k")


@each({"get": "GET", "put": "PUT"})
def presigned_for_another_method(s3: Observer, method: str) -> None:
    s3.put_object(Key="k", Body=b"hello")
    url = _url(s3, "put_object" if method == "GET" else "get_object", Key="k")
    s3.url(url, method, b"other" if method == "PUT" else b"")
    s3.get_object(Key="k")


@each(
    {
        "date": ("X-Amz-Date=20", "X-Amz-Date=21"),
        "signature": ("X-Amz-Signature=", "X-Amz-Signature=0"),
        "forever": ("X-Amz-Expires=300", "X-Amz-Expires=9999999"),
    }
)
def presigned_and_changed(s3: Observer, change: tuple[str, str]) -> None:
    s3.put_object(Key="k", Body=b"hello")
    s3.url(_url(s3, "get_object", Key="k").replace(*change), "GET")
    s3.url(_url(s3, "put_object", Key="k").replace(*change), "PUT", b"other")
    s3.get_object(Key="k")


@each(
    {
        "plain": ({}, []),
        "fields": ({"Content-Type": "text/plain", "x-amz-meta-a": "1"}, [["starts-with", "$x-amz-meta-a", ""]]),
        "status-200": ({"success_action_status": "200"}, []),
        "status-201": ({"success_action_status": "201"}, []),
        "redirect": ({"success_action_redirect": "http://example.com/done"}, []),
        "too-small": ({}, [["content-length-range", 100, 200]]),
        "too-large": ({}, [["content-length-range", 0, 3]]),
        "fitting": ({}, [["content-length-range", 0, 100]]),
        "condition-not-met": ({"Content-Type": "text/plain"}, [["starts-with", "$Content-Type", "image/"]]),
        "acl": ({"acl": "public-read"}, []),
    }
)
def form(s3: Observer, given: tuple[dict[str, str], list[Any]]) -> None:
    fields, conditions = given
    stated = [{name: value} for name, value in fields.items() if not any(f"${name}" in one for one in conditions)]
    key = "public/k" if "acl" in fields else "k"
    _post(s3, key, fields, [*stated, *conditions])
    s3.get_object(Key=key)


@case
def form_with_the_name_of_the_file(s3: Observer) -> None:
    _post(s3, "uploads/${filename}", {}, [["starts-with", "$key", "uploads/"]])
    s3.get_object(Key="uploads/file.txt")


@each(
    {
        "field-not-stated": {"x-amz-meta-a": "1"},
        "other-key": {"key": "other"},
        "bad-signature": {"x-amz-signature": "0"},
    }
)
def form_that_is_not_as_signed(s3: Observer, changed: dict[str, str]) -> None:
    _post(s3, "k", {}, [], changed)
    s3.list_objects_v2()


def _post(
    s3: Observer, key: str, fields: dict[str, str], conditions: list[Any], changed: dict[str, str] | None = None
) -> None:
    presigned = s3.target.bearer.generate_presigned_post(s3.bucket, key, fields, conditions)
    sent = presigned["fields"] | (changed or {})
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}' for name, value in sent.items()]
    parts.append('Content-Disposition: form-data; name="file"; filename="file.txt"\r\n\r\nhello')
    body = "".join(f"--{BOUNDARY}\r\n{part}\r\n" for part in parts) + f"--{BOUNDARY}--\r\n"
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    s3.request("POST", "/{bucket}", headers, body.encode(), signed=False)


@each(
    {
        "get": ("GET", "/{bucket}/k"),
        "list": ("GET", "/{bucket}"),
        "put": ("PUT", "/{bucket}/k"),
        "missing": ("GET", "/{bucket}/none"),
        "service": ("GET", "/"),
    }
)
def anonymous(s3: Observer, request: tuple[str, str]) -> None:
    s3.put_object(Key="k", Body=b"private")
    s3.request(*request, body=b"other" if request[0] == "PUT" else b"", signed=False)
    s3.get_object(Key="k")


@case
def anonymous_read_of_a_public_object(s3: Observer) -> None:
    s3.put_object(Key="public/k", Body=b"public", ACL="public-read")
    s3.request("GET", "/{bucket}/public/k", signed=False)


@each({"unknown-key": "AKIANOBODY", "empty": ""})
def a_key_pair_that_nobody_has(s3: Observer, access_key: str) -> None:
    now = datetime.now(UTC)
    credential = f"{access_key}/{now:%Y%m%d}/us-east-1/s3/aws4_request"
    authorization = f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host;x-amz-date, Signature={'0' * 64}"
    headers = {
        "Authorization": authorization,
        "x-amz-date": f"{now:%Y%m%dT%H%M%SZ}",
        "x-amz-content-sha256": "UNSIGNED-PAYLOAD",
    }
    s3.request("GET", "/{bucket}/k", headers, signed=False)


@case
def a_body_that_waits_to_be_asked_for(s3: Observer) -> None:
    s3.request("PUT", "/{bucket}/k", {"Expect": "100-continue"}, b"hello")
    s3.get_object(Key="k")
