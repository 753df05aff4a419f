"""The checksums that a client declares must be true before the gateway writes the body."""

import base64
import hashlib
import zlib

import pytest

from gateway.errors import StoreError
from gateway.objects.body import checksums
from gateway.objects.body.checksums import Algorithm, Declared, Verification

BODY = b"123456789"

# The check values that the catalogues of checksums give for these nine bytes.
CHECKS = {
    Algorithm.CRC32: bytes.fromhex("cbf43926"),
    Algorithm.CRC32C: bytes.fromhex("e3069283"),
    Algorithm.CRC64NVME: bytes.fromhex("ae8b14860a799888"),
    Algorithm.SHA1: hashlib.sha1(BODY).digest(),
    Algorithm.SHA256: hashlib.sha256(BODY).digest(),
}


def encoded(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def verify(
    headers: dict[str, str], trailers: dict[str, str] | None = None, sha256: str | None = None
) -> tuple[object, ...]:
    verification = Verification(checksums.declared(headers), sha256)
    for byte in BODY:
        verification.update(bytes([byte]))
    return verification.finish(trailers).headers


def refusal(
    headers: dict[str, str], trailers: dict[str, str] | None = None, sha256: str | None = None
) -> tuple[str, int]:
    with pytest.raises(StoreError) as caught:
        verify(headers, trailers, sha256)
    return caught.value.s3_code, caught.value.status


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_true_checksum_is_verified_and_sent_on(algorithm: Algorithm) -> None:
    value = encoded(CHECKS[algorithm])
    assert verify({algorithm.header: value}) == ((algorithm.header, value),)
    assert verify({"x-amz-trailer": algorithm.header.title()}, {algorithm.header: value}) == (
        (algorithm.header, value),
    )
    told = {"x-amz-sdk-checksum-algorithm": algorithm.name, algorithm.header: value}
    assert verify(told) == ((algorithm.header, value),)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_a_false_checksum_is_refused(algorithm: Algorithm) -> None:
    false = encoded(bytes(len(CHECKS[algorithm])))
    assert refusal({algorithm.header: false}) == ("BadDigest", 400)
    assert refusal({"x-amz-trailer": algorithm.header}, {algorithm.header: false}) == ("BadDigest", 400)


@pytest.mark.parametrize("algorithm", Algorithm)
@pytest.mark.parametrize("value", ["", "AAA", "AAAA", "????", "y/Q5Jg", "=" * 8, "é"])
def test_a_malformed_checksum_is_refused(algorithm: Algorithm, value: str) -> None:
    assert refusal({algorithm.header: value}) == ("InvalidRequest", 400)
    assert refusal({"x-amz-trailer": algorithm.header}, {algorithm.header: value}) == ("InvalidRequest", 400)


def test_content_md5() -> None:
    assert verify({"content-md5": encoded(hashlib.md5(BODY).digest())}) == ()
    assert refusal({"content-md5": encoded(hashlib.md5(b"").digest())}) == ("BadDigest", 400)
    for value in ("", "abc", hashlib.md5(BODY).hexdigest()):
        assert refusal({"content-md5": value}) == ("InvalidDigest", 400)


def test_the_signed_hash_of_the_body() -> None:
    assert verify({}, sha256=hashlib.sha256(BODY).hexdigest()) == ()
    assert refusal({}, sha256=hashlib.sha256(b"").hexdigest()) == ("XAmzContentSHA256Mismatch", 400)


CRC32 = encoded(CHECKS[Algorithm.CRC32])


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"x-amz-checksum-crc32": CRC32, "x-amz-checksum-sha1": "x"}, ("InvalidRequest", 400)),
        ({"x-amz-checksum-crc32": CRC32, "x-amz-trailer": "x-amz-checksum-crc32"}, ("InvalidRequest", 400)),
        ({"x-amz-trailer": "x-amz-checksum-crc32,x-amz-checksum-sha1"}, ("InvalidRequest", 400)),
        ({"x-amz-trailer": "x-amz-meta-later"}, ("InvalidRequest", 400)),
        ({"x-amz-checksum-xxhash64": "AAAAAAAAAAA="}, ("NotImplemented", 501)),
        ({"x-amz-checksum-type": "COMPOSITE"}, ("NotImplemented", 501)),
        ({"x-amz-sdk-checksum-algorithm": "CRC32"}, ("InvalidRequest", 400)),
        ({"x-amz-checksum-algorithm": "SHA1", "x-amz-checksum-crc32": CRC32}, ("InvalidRequest", 400)),
    ],
)
def test_contradictory_checksum_declarations_are_refused(headers: dict[str, str], expected: tuple[str, int]) -> None:
    assert refusal(headers) == expected


def test_the_digests_of_a_body_without_declarations() -> None:
    digests = Verification(Declared()).finish()
    assert (digests.size, digests.md5, digests.headers) == (0, hashlib.md5(b"").hexdigest(), ())
    verification = Verification(Declared())
    verification.update(BODY)
    digests = verification.finish()
    assert (digests.size, digests.sha256) == (9, hashlib.sha256(BODY).hexdigest())


def test_large_pieces() -> None:
    body = bytes(range(256)) * 5000
    verification = Verification(Declared(Algorithm.CRC32, zlib.crc32(body).to_bytes(4, "big")))
    verification.update(body[:700_000])
    verification.update(body[700_000:])
    assert verification.finish().size == len(body)
