"""Who is calling, once it is proven."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Principal:
    """A proven caller. ``name`` is the configured name; ``anonymous`` where anyone is let in."""

    name: str


ANONYMOUS = Principal("anonymous")
