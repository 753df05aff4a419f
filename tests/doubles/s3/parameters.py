"""Parameters of lists: numbers in, and keys out as the request wants them encoded."""

from __future__ import annotations

import re
from urllib.parse import quote

from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.messages import Request, element


def number(text: str | None, default: int, most: int = 1000) -> int:
    """A page size or a marker, cut off at `most`. Raises InvalidArgument."""
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
        raise S3Error("InvalidArgument", ArgumentValue=text)
    return min(int(text), most)


def named(request: Request, name: str, value: str | None) -> str:
    """An element with a key in it, URL-encoded if the request asks for that."""
    if value is not None and request.head.query.get("encoding-type") == "url":
        value = quote(value, safe="/-_.~*")
    return element(name, value)
