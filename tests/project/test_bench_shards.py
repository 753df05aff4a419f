"""The benchmark of shards places each shard as Citus does."""

from collections import Counter

import pytest

from bench.shards import FINEST, node_of


@pytest.mark.parametrize(("shards", "nodes", "of_a_node"), [(32, 4, {8}), (32, 10, {3, 4}), (1024, 1000, {1, 2})])
def test_nodes_get_shards_in_turn(shards: int, nodes: int, of_a_node: set[int]) -> None:
    finest = Counter(node_of(number, shards, nodes) for number in range(FINEST))
    assert len(finest) == nodes
    assert {number * shards // FINEST for number in finest.values()} == of_a_node
