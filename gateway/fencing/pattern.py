"""Patterns of resource names: a segment ``*`` stands for any one segment, a last ``**`` for all the rest."""

from gateway.errors import ResourceMalformed
from gateway.fencing.resource import canonical


def check_pattern(pattern: str) -> None:
    """Raise ``ResourceMalformed`` for what is no name in canonical form with such segments in it."""
    segments = canonical(pattern).split("/")
    for position, segment in enumerate(segments):
        last = position == len(segments) - 1
        if "*" in segment and segment != "*" and not (segment == "**" and last):
            raise ResourceMalformed(
                f"The segment {segment!r} of the resource pattern must be a name, * or a last **.",
                advice="Write * in place of a whole segment, or ** in place of everything after a slash.",
            )


def covers(pattern: str, resource: str) -> bool:
    """Whether a checked pattern is about a resource, named in canonical form."""
    wanted, given = pattern.split("/"), resource.split("/")
    if wanted[-1] == "**":
        wanted.pop()
        # All the rest may be empty, but it comes after a slash: job/** is not about job itself.
        if len(given) <= len(wanted):
            return False
    elif len(given) != len(wanted):
        return False
    return all(segment in ("*", name) for segment, name in zip(wanted, given, strict=False))


def includes(pattern: str, other: str) -> bool:
    """Return whether ``pattern``, a checked one, is about every resource that ``other`` is about.

    ``other`` may have literal asterisks for wildcards: that only widens it.
    """
    wanted, given = pattern.split("/"), other.split("/")
    if wanted[-1] == "**":
        wanted.pop()
        if len(given) <= len(wanted):
            return False
    elif given[-1] == "**" or len(given) != len(wanted):
        return False
    return all(segment in ("*", name) for segment, name in zip(wanted, given, strict=False))


def overlap(one: str, other: str) -> bool:
    """Return whether there can be a resource that both patterns are about."""
    left, right = one.split("/"), other.split("/")
    open_left, open_right = left[-1] == "**", right[-1] == "**"
    left, right = left[: len(left) - open_left], right[: len(right) - open_right]
    if (not open_left and len(left) < len(right) + open_right) or (
        not open_right and len(right) < len(left) + open_left
    ):
        return False
    return all(a == b or "*" in (a, b) for a, b in zip(left, right, strict=False))
