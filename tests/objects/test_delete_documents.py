"""Which deletes of one request share a write id."""

from gateway.objects.s3.documents import ObjectToDelete
from gateway.objects.writes.delete import write_ids


def test_a_key_that_is_listed_twice_is_two_writes() -> None:
    """Two intents with one name would both be removed by the holder that settles one of them."""
    first, other, again, version = write_ids(
        [ObjectToDelete("k"), ObjectToDelete("l"), ObjectToDelete("k"), ObjectToDelete("k", "v")]
    )
    assert first == other
    assert len({first, again, version}) == 3
