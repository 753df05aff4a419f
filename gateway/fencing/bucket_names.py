"""The names that S3 allows for buckets. Pure."""

import ipaddress
import re

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# No bucket has a name that ends like this. AWS makes such names for access points: other names of a bucket, and so of
# every object in it.
_ALIASES = ("-s3alias", "--op-s3", "--ol-s3", "--xa-s3", ".mrap")


def is_alias(name: str) -> bool:
    """Return whether a name is that of an access point, not of a bucket."""
    return name.endswith(_ALIASES)


def is_valid(name: str) -> bool:
    """Return whether a bucket can have this name."""
    if is_alias(name) or not _BUCKET.fullmatch(name) or ".." in name:
        return False
    if not name.replace(".", "").isdecimal():
        return True
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return True
    return False
