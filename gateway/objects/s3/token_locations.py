"""Where a writer's token may stand in an S3 request. Not every client lets its user set a header."""

from collections.abc import Iterable
from urllib.parse import parse_qsl

from gateway.errors import RequestMalformed, ResourceMalformed, StoreError
from gateway.fencing import headers as fencing
from gateway.fencing.headers import FencingHeaders
from gateway.objects.s3.operations import Operation

FENCING_PARAMETERS = frozenset({"fencing-token", "fencing-holder", "fencing-resource", "fencing-sequencer"})
"""The names in the query of a presigned request."""

FENCED_CREDENTIALS = "fc1."
"""How the session tokens begin that the gateway issues itself: what they say is the authentication's to read."""

_METADATA = {
    b"x-amz-meta-fencing-token": fencing.TOKEN,
    b"x-amz-meta-fencing-holder": fencing.HOLDER,
    b"x-amz-meta-fencing-sequencer": fencing.SEQUENCER,
}
_WITH_METADATA = frozenset(
    {Operation.PUT_OBJECT, Operation.COPY_OBJECT, Operation.CREATE_MULTIPART_UPLOAD, Operation.POST_OBJECT}
)
_SESSION = {
    "fencing-token": fencing.TOKEN,
    "fencing-holder": fencing.HOLDER,
    "fencing-sequencer": fencing.SEQUENCER,
}


def read_fencing(
    operation: Operation,
    headers: Iterable[tuple[bytes, bytes]],
    query: Iterable[tuple[str, str]] = (),
    session: str | None = None,
) -> FencingHeaders:
    """What a request says about its writer: the first that has a token, of headers, metadata, query, session token.

    ``headers`` are raw, and include those that came in the query of a presigned request, or the fields of a form;
    ``query`` are parameters whose names are in ``FENCING_PARAMETERS``. All of them are read: one that cannot be is an error even
    where another comes first. Raises the errors of ``gateway.fencing.headers.read``, and ``StoreError`` 400 for a
    session token that says something else.
    """
    received = tuple(headers)
    own = fencing.read(pair for pair in received if not _is_metadata(pair[0]))
    metadata = fencing.read(
        (_METADATA[name.lower()], value)
        for name, value in received
        if name.lower() in _METADATA and operation in _WITH_METADATA
    )
    signed = fencing.read((name.encode(), value.encode()) for name, value in query)
    if None not in (own.resource, signed.resource) and own.resource != signed.resource:
        raise ResourceMalformed("The request names two fencing resources.")
    sources = (own, metadata, signed, _of_session(session))
    first = next((one for one in sources if one.token is not None), FencingHeaders())
    resource = own.resource or signed.resource or first.resource
    said = FencingHeaders(first.token, resource, own.holder or first.holder)
    # What proves the token may have come another way than the token itself. It must be about the same.
    sequencers = next((one.sequencers for one in sources if one.sequencers), ())
    return fencing.proven(said, sequencers) if sequencers else said


def refuse_unsigned(query: Iterable[tuple[str, str]]) -> None:
    """Raise ``RequestMalformed`` where the query of a request that is not presigned names a writer."""
    for name, _ in query:
        raise RequestMalformed(
            f"The query parameter {name} is for presigned requests only.",
            advice=f"Send it as the header {name.title()}.",
        )


def _is_metadata(name: bytes) -> bool:
    return name.lower().replace(b"_", b"-") in _METADATA


def _of_session(token: str | None) -> FencingHeaders:
    """What a session token says. It goes with every operation of every client, and is always signed."""
    if token is None or token.startswith(FENCED_CREDENTIALS):
        return FencingHeaders()
    try:
        pairs = parse_qsl(token, keep_blank_values=True, strict_parsing=True, max_num_fields=3)
    except ValueError:
        pairs = []
    if not pairs or any(name not in _SESSION for name, _ in pairs):
        raise StoreError(
            "InvalidToken",
            400,
            "A session token must read fencing-token=N, and maybe &fencing-holder=NAME or &fencing-sequencer=….",
        )
    return fencing.read((_SESSION[name], value.encode()) for name, value in pairs)
