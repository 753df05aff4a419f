"""The headers that the gateway sends to the store with each operation, by the model that S3's own clients use."""

from collections.abc import Iterator

import botocore.session
import pytest

from gateway.errors import StoreError
from gateway.objects.s3 import addressing
from gateway.objects.s3.forwarded_headers import forwarded
from gateway.objects.s3.operations import Operation, OperationKind

MODEL = botocore.session.get_session().get_service_model("s3")

EVALUATED = frozenset({"if-match", "if-none-match"})
OF_THE_BODY = frozenset({"content-length", "content-md5", "x-amz-sdk-checksum-algorithm"})
ENCRYPTED_BY_THE_CLIENT = frozenset(
    f"x-amz-{of}server-side-encryption-customer-{what}"
    for of in ("", "copy-source-")
    for what in ("algorithm", "key", "key-md5")
)
REFUSED = ENCRYPTED_BY_THE_CLIENT | {
    "x-amz-if-match-initiated-time",
    "x-amz-if-match-last-modified-time",
    "x-amz-if-match-size",
    "x-amz-mfa",
    "x-amz-object-annotation-directive",
    "x-amz-object-if-match",
    "x-amz-write-offset-bytes",
}


def headers_of(operation: Operation) -> list[str]:
    shape = MODEL.operation_model(operation.value).input_shape
    members = [] if shape is None else shape.members.values()
    return [one.serialization["name"].lower() for one in members if one.serialization.get("location") == "header"]


def every_header() -> Iterator[tuple[Operation, str]]:
    for operation in Operation:
        if operation is not Operation.POST_OBJECT:
            yield from ((operation, name) for name in headers_of(operation))


def test_every_header_of_the_model_goes_on_or_is_accounted_for(subtests: pytest.Subtests) -> None:
    for operation, name in every_header():
        with subtests.test(operation=operation, name=name):
            if operation.kind is not OperationKind.READ and name in REFUSED:
                with pytest.raises(StoreError) as caught:
                    forwarded(operation, {name: "1"})
                assert (caught.value.s3_code, caught.value.status) == ("NotImplemented", 501)
                assert name in caught.value.message
                continue
            of_the_copy = operation.copies and name in addressing.COPY_HEADERS
            checksum = name.startswith("x-amz-checksum-") and operation in (
                Operation.PUT_OBJECT,
                Operation.PUT_OBJECT_ANNOTATION,
                Operation.UPLOAD_PART,
            )
            evaluated = name in EVALUATED and operation.kind is not OperationKind.READ
            kept_here = of_the_copy or checksum or evaluated or name in OF_THE_BODY
            assert forwarded(operation, {name: "1"}) == (() if kept_here else ((name, "1"),))


def test_an_unknown_header_is_dropped_on_a_read_and_refused_else(subtests: pytest.Subtests) -> None:
    for operation in Operation:
        with subtests.test(operation=operation):
            for name in ("x-amz-anything-new", "x_amz_acl", "x-amz_acl", "x-amz-meta_a"):
                if operation.kind is OperationKind.READ:
                    assert forwarded(operation, {name: "1"}) == ()
                else:
                    with pytest.raises(StoreError) as caught:
                        forwarded(operation, {name: "1"})
                    assert caught.value.status == 501


def test_metadata_go_with_what_makes_an_object_and_the_gateways_own_never(subtests: pytest.Subtests) -> None:
    for operation in Operation:
        with subtests.test(operation=operation):
            makes = operation in (Operation.PUT_OBJECT, Operation.COPY_OBJECT, Operation.CREATE_MULTIPART_UPLOAD)
            own = {"x-amz-meta-fencing-write-id": "forged", "x-amz-meta-fencing_tombstone": "true"}
            if makes:
                assert forwarded(operation, {"x-amz-meta-a": "1", **own}) == (("x-amz-meta-a", "1"),)
            elif operation.kind is OperationKind.READ:
                assert forwarded(operation, {"x-amz-meta-a": "1", **own}) == ()
            else:
                for name in ("x-amz-meta-a", *own):
                    with pytest.raises(StoreError):
                        forwarded(operation, {name: "1"})


def test_what_is_said_to_the_gateway_never_goes_on(subtests: pytest.Subtests) -> None:
    for operation in Operation:
        with subtests.test(operation=operation):
            said = [
                "authorization",
                "fencing-token",
                "host",
                "x-amz-content-sha256",
                "x-amz-date",
                "x-amz-decoded-content-length",
                "x-amz-sdk-checksum-algorithm",
                "x-amz-security-token",
                "x-amz-trailer",
                "x-amz-user-agent",
                "amz-sdk-invocation-id",
                "amz-sdk-request",
                "x-forwarded-for",
            ]
            assert forwarded(operation, dict.fromkeys(said, "1")) == ()


def test_the_one_version_of_s3_may_be_named(subtests: pytest.Subtests) -> None:
    """The AWS SDK for C++ names it when it begins an upload."""
    for operation in Operation:
        with subtests.test(operation=operation):
            assert forwarded(operation, {"x-amz-api-version": "2006-03-01"}) == ()
            if operation.kind is not OperationKind.READ:
                with pytest.raises(StoreError, match="x-amz-api-version"):
                    forwarded(operation, {"x-amz-api-version": "2027-01-01"})


def test_the_checksum_algorithm_goes_on_where_the_store_makes_the_checksum() -> None:
    header = {"x-amz-checksum-algorithm": "CRC32"}
    assert forwarded(Operation.CREATE_MULTIPART_UPLOAD, header) == tuple(header.items())
    assert forwarded(Operation.COPY_OBJECT, header) == tuple(header.items())
    assert forwarded(Operation.PUT_OBJECT, header) == ()
    assert forwarded(Operation.COMPLETE_MULTIPART_UPLOAD, header) == ()


@pytest.mark.parametrize(
    "operation", [Operation.DELETE_OBJECT, Operation.COPY_OBJECT, Operation.ABORT_MULTIPART_UPLOAD]
)
def test_a_checksum_of_a_body_that_is_not_there_is_refused(operation: Operation) -> None:
    with pytest.raises(StoreError) as caught:
        forwarded(operation, {"x-amz-checksum-crc32": "AAAAAA=="})
    assert caught.value.status == 501


def test_reasons_are_given() -> None:
    for name, words in (
        ("x-amz-mfa", "credentials of its own"),
        ("x-amz-server-side-encryption-customer-key", "could not be settled"),
    ):
        with pytest.raises(StoreError) as caught:
            forwarded(Operation.PUT_OBJECT, {name: "secret"})
        assert words in caught.value.message
        assert "secret" not in caught.value.message
