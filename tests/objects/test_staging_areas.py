"""How large the parts of a staged body are: within S3's limits, and not the same for each write."""

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.objects.s3.documents import Part, etag_of_parts
from gateway.objects.writes.staging import part_size

MEBIBYTE = 1024 * 1024
GIBIBYTE = 1024 * MEBIBYTE


@given(st.integers(1, 5 * GIBIBYTE), st.uuids())
def test_part_sizes_are_within_the_limits_of_s3(length: int, write_id: UUID) -> None:
    size = part_size(length, write_id)
    assert size >= min(length, 5 * MEBIBYTE)
    assert size <= 5 * GIBIBYTE
    assert -(-length // size) <= 9


@pytest.mark.parametrize("length", [8 * MEBIBYTE + 1, 9 * MEBIBYTE, 16 * MEBIBYTE + 1, 100 * MEBIBYTE, 5 * GIBIBYTE])
def test_the_same_bytes_are_cut_differently_by_another_write(length: int) -> None:
    sizes = sorted({part_size(length, UUID(int=number)) for number in range(64)})
    assert len(sizes) >= 48
    assert sizes[-1] < length, "a single part would have one ETag, whatever its size"
    assert all(after - before == 64 * 1024 for before, after in pairwise(sizes))


def test_a_write_that_is_repeated_is_cut_the_same() -> None:
    write_id = UUID(int=12345)
    assert part_size(50 * MEBIBYTE, write_id) == part_size(50 * MEBIBYTE, write_id)


def test_the_etag_of_parts() -> None:
    md5_of_test = "098f6bcd4621d373cade4e832627b4f6"
    assert etag_of_parts([Part(1, md5_of_test)]) == "60cd54a928cbbcbb6e7b5595bab46a9e-1"
    assert etag_of_parts([Part(1, "not a hash"), Part(2, md5_of_test)]) is None
