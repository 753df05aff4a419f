"""What stands at a key for "deleted" while absence itself is forbidden there, or the store deletes unconditionally."""

from uuid import UUID


def tombstone_body(unique: UUID) -> bytes:
    """Bytes of its own for each tombstone, so that its ETag is one of its own: nothing can ever be waiting for it."""
    return f"deleted {unique}\n".encode()


SIZE = len(tombstone_body(UUID(int=0)))
"""Bytes that every tombstone has: an object of another size is none."""
