"""Which deletes of one request share a write id."""

from gateway.objects.s3.documents import Doomed
from gateway.objects.writes.delete import write_ids


def test_a_key_that_is_there_again_is_a_write_of_its_own() -> None:
    """Two intents that cannot be told apart would be taken away together by whoever settles one of them."""
    first, other, again, version = write_ids([Doomed("k"), Doomed("l"), Doomed("k"), Doomed("k", "v")])
    assert first == other
    assert len({first, again, version}) == 3
