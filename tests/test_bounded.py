"""The memory that forgets is never larger than it may be, and forgets nothing before that."""

from gateway.bounded import Bounded


def test_it_is_emptied_when_one_more_would_be_too_many() -> None:
    memory: Bounded[str, int] = Bounded(2)
    for number, name in enumerate(("a", "b", "a")):
        assert memory.remember(name, number) == number
    assert memory == {"a": 2, "b": 1}
    memory.remember("c", 3)
    assert memory == {"c": 3}


def test_it_is_emptied_when_one_more_would_be_too_large() -> None:
    memory: Bounded[str, int] = Bounded(9, largest=10)
    for name, size in (("a", 4), ("b", 6)):
        memory.remember(name, size, size)
    assert len(memory) == 2
    for name, size, kept in (("a", 4, 1), ("b", 6, 2), ("c", 1, 1), ("d", 9, 2), ("e", 99, 1), ("f", 1, 1)):
        memory.remember(name, size, size)
        assert len(memory) == kept, name
