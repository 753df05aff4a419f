"""The page of errors: each code with its status, its occasion and the next step, from gateway/errors.py."""

from collections.abc import Iterator

from docs.generator import markdown, page
from gateway import errors
from gateway.errors import (
    AccessRefused,
    ConfigurationError,
    DialectError,
    FenceRefusal,
    Full,
    GatewayError,
    NotReady,
    Overloaded,
    SqlError,
    StoreError,
)

INTRODUCTION = """\
Each error has a code, which no other error ever gets. It stands in the answer of each plane:

- The fencing API answers with a problem document ([RFC 9457](https://www.rfc-editor.org/rfc/rfc9457)). `code` has the
  code, `type` is `urn:fencing-gateway:` and the code, `detail` says what happened, and `advice` names the next step.
- Tables answer with PostgREST's four keys: `code`, `message`, `details` and `hint`. [Tables](../dialect.md#errors) has
  the codes of PostgREST.
- Buckets answer with S3's XML and a `Code` of their own, below after the status.
- Guards raise SQLSTATEs such as `FN412`, which [guards](../guard.md#errors) explains.

`Retry-After` is in an answer only if a retry can help. *Next* is the general advice; a single answer may have more
exact advice."""

FOREIGN = """\
## Errors of others

Some codes are not the gateway's own:

- Tables pass on `PGRST…` codes and SQLSTATEs, with the status that PostgREST gives them.
- Buckets pass on the codes of S3 and of the store.
- `internal` (500) is a fault of the gateway. Report the request id to its operator.

A problem of the configuration is never an answer. A command prints it on standard error, and ends with exit code 2."""

LEFT_OUT = (
    ConfigurationError,
    FenceRefusal,
    AccessRefused,
    Full,
    NotReady,
    Overloaded,
    SqlError,
    DialectError,
    StoreError,
)
"""Kinds without an answer or a code of their own."""


def make() -> str:
    """Return the page."""
    kinds = sorted(answered(GatewayError), key=lambda kind: kind.status)
    return page("Errors", INTRODUCTION, *map(_entry, kinds), FOREIGN)


def answered(kind: type[GatewayError]) -> Iterator[type[GatewayError]]:
    """Yield the kinds of errors with a code of their own that callers get."""
    for one in kind.__subclasses__():
        if one.__module__ == errors.__name__ and one is not ConfigurationError:
            if one not in LEFT_OUT:
                yield one
            yield from answered(one)


def _entry(kind: type[GatewayError]) -> str:
    retry = f", `Retry-After: {kind.retry_after}`" if isinstance(kind.retry_after, int) else ""
    s3_code = "" if kind.s3_code == GatewayError.s3_code else f", `{kind.s3_code}`"
    said = _occasion(kind) or _sentence(kind.title)
    lines = [f"- {kind.status}{s3_code}{retry}: {said}", f"- Next: {markdown(kind.default_advice)}"]
    return f"## {kind.code}\n\n" + "\n".join(lines)


def _occasion(kind: type[GatewayError]) -> str:
    own = kind.__dict__.get("__doc__") or ""
    # Names of attributes are for readers of the code.
    kept = [one for one in markdown(own).split(". ") if "`facts" not in one and "`retry_after`" not in one]
    text = ". ".join(kept).strip()
    return f"{text.rstrip('.')}." if text else ""


def _sentence(title: str) -> str:
    return f"{title.rstrip('.')}."
