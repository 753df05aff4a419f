"""A known head stands for exactly the bytes that the parser has read. Everything else goes to the parser."""

import ast
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.auth.principal import ClientCertificate
from gateway.http import head
from gateway.http.head import Head, KnownHeads, Packet, seal
from tests import ROOT

FIELDS = {"headers", "query_string", "raw_path"}
# The connection freezes the headers, and tracing runs around everything else.
ALLOWED = {"http/connection.py", "http/head.py", "observe/tracing.py"}


def test_the_head_stays_as_it_was_when_it_was_first_read() -> None:
    fields = [(b"host", b"gateway")]
    scope = {"method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "headers": fields}
    head = Head.of(scope)
    fields.append((b"fencing-token", b"9"))
    assert Head.of(scope) is head
    assert head.headers == ((b"host", b"gateway"),)


def test_no_other_module_reads_the_head_out_of_the_scope() -> None:
    readers = set()
    for path in (ROOT / "gateway").rglob("*.py"):
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "scope[" in source else ():
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value in FIELDS:
                scope = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
                if scope == "scope":
                    readers.add(str(path.relative_to(ROOT / "gateway")))
    assert readers == ALLOWED


LINE = b"PATCH /v1/tables/accounts?id=eq.1 HTTP/1.1\r\n"
HEADERS = b"Host: gateway\r\nFencing-Token: 5\r\n"
WHOLE = LINE + HEADERS + b"Content-Length: 2\r\n\r\n{}"


class Values(dict[bytes, bytes]):
    """The preparation for a head: here, the values of its changing headers."""

    def with_values(self, changing: Mapping[bytes, bytes]) -> "Values":
        return Values(changing)


def heads() -> KnownHeads[Values]:
    return KnownHeads(lambda _: Values(), b"key")


def packet(data: bytes) -> Packet[Values]:
    found = heads().read(data)
    assert found is not None
    return found


def prepared(known: KnownHeads[Values], data: bytes, seal: bytes = b"") -> Values | None:
    found = known.read(data, seal)
    assert found is not None
    return found.prepared


def knowing(data: bytes = WHOLE, seal: bytes = b"") -> KnownHeads[Values]:
    """Return the memory of an app that has seen a head twice, and once more since."""
    known = heads()
    for _ in range(2):
        found = known.read(data, seal)
        assert found is not None
        assert found.prepared is None
        known.learn(found, PARSED)
    assert prepared(known, data, seal) == dict([TOKEN, LENGTH])
    return known


def scope(*headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"method": "PATCH", "path": "/", "raw_path": b"/", "query_string": b"", "headers": headers}


TOKEN, LENGTH, CHUNKED = (b"fencing-token", b"5"), (b"content-length", b"2"), (b"transfer-encoding", b"chunked")
PARSED = scope((b"host", b"gateway"), TOKEN, LENGTH)


def test_a_packet_is_split_into_what_repeats_and_what_changes() -> None:
    found = packet(WHOLE)
    assert (found.query_string, found.content, found.changing) == (b"id=eq.1", b"{}", dict([TOKEN, LENGTH]))
    headers = HEADERS.replace(b"5", b"2.17")
    other = packet(LINE.replace(b"eq.1", b"eq.22") + headers + b"Content-Length: 10\r\n\r\n0123456789")
    assert other.head == found.head
    assert (other.content, other.changing[b"fencing-token"]) == (b"0123456789", b"2.17")


def test_holders_share_a_head() -> None:
    first, second = (packet(LINE + HEADERS + b"fencing-holder: %b\r\n\r\n" % name) for name in (b"job/7", b"b"))
    assert first.head == second.head
    assert (first.changing[b"fencing-holder"], second.changing[b"fencing-holder"]) == (b"job/7", b"b")


def test_locks_share_a_head() -> None:
    lines = [b"DELETE /v1/leases/%b HTTP/1.1\r\n" % name for name in (b"job/7/1-2", b"a:b@c", b"content-length")]
    first, *others = [packet(line + HEADERS + b"Content-Length: 0\r\n\r\n") for line in lines]
    assert [one.name for one in (first, *others)] == [b"job/7/1-2", b"a:b@c", b"content-length"]
    assert {one.head for one in others} == {first.head}


@pytest.mark.parametrize(
    "line",
    [
        *(b"DELETE /v1/leases/job%2F7 HTTP/1.1\r\n", b"DELETE /v1/leases/job,7 HTTP/1.1\r\n"),
        *(b"DELETE /v1/leases HTTP/1.1\r\n", b"DELETE /v1/lease/job HTTP/1.1\r\n"),
        *(b"DELETE //v1/leases/job HTTP/1.1\r\n", b"DELETE /v1/Leases/job HTTP/1.1\r\n"),
        b"PUT /v1/leases/job HTTP/1.1\r\n",
    ],
)
def test_other_paths_share_no_head_with_locks(line: bytes) -> None:
    known, other = packet(b"DELETE /v1/leases/job HTTP/1.1\r\n" + HEADERS + b"\r\n"), packet(line + HEADERS + b"\r\n")
    assert other.head != known.head
    assert other.name == (b"job" if line.startswith(b"PUT") else b"")


def test_a_path_that_names_no_lock_has_no_name() -> None:
    assert packet(b"POST /v1/leases/ HTTP/1.1\r\n" + HEADERS + b"\r\n").name == b""


OTHERS = [
    *(WHOLE.replace(b"PATCH", b"PUT"), WHOLE.replace(b"accounts", b"Accounts")),
    *(WHOLE.replace(b"Token: 5", b"token: 5"), WHOLE.replace(b"Token: 5", b"Token:5")),
    *(WHOLE.replace(b"Token: 5", b"Token:  5"), WHOLE.replace(b"Token: 5", b"Token: 5 ")),
    *(WHOLE.replace(b"Token: 5", b"Token: 5 6"), WHOLE.replace(b"Token: 5", b"Token: 5\r\n 6")),
    *(WHOLE.replace(b"Token: 5", b"Token: " + b"5" * 257), WHOLE.replace(b"Fencing-Token", b"Fencing-Holder")),
    *(WHOLE.replace(b"\r\nFencing-Token: 5", b""), LINE + b"Content-Length: 2\r\n" + HEADERS + b"\r\n{}"),
    LINE + HEADERS + b"\r\n",
    LINE + b"Host: gateway\r\nContent-Length: 2\r\nFencing-Token: 5\r\n\r\n{}",
]


@pytest.mark.parametrize("data", OTHERS)
def test_any_other_head_is_another_one(data: bytes) -> None:
    assert packet(data).head != packet(WHOLE).head
    assert prepared(knowing(), data) is None


@pytest.mark.parametrize(
    "data",
    [
        WHOLE[:-4],
        WHOLE[:40],
        *(WHOLE + b"x", WHOLE + WHOLE, b"\r\n" + WHOLE, b"", WHOLE.replace(b"1.1", b"1.0")),
        *(WHOLE.replace(b" HTTP/1.1", b""), WHOLE.replace(b"eq.1", b"eq.%31"), WHOLE.replace(b"eq.1", b"eq.1#2")),
        *(WHOLE.replace(b"eq.1", b"eq.\0"), WHOLE.replace(b"eq.1 ", b"eq.1  ")),
        *(WHOLE.replace(b"/v1", b"http://gateway/v1"), WHOLE.replace(b"PATCH", b"OPTIONS")),
        *(WHOLE.replace(b"PATCH", b"patch"), WHOLE.replace(b"\r\n\r\n", b"\n\n"), LINE + HEADERS + b"\r\n{}"),
        *(LINE + HEADERS + HEADERS + b"\r\n", LINE + HEADERS + b"fencing-Token: 6\r\n\r\n"),
        *(LINE + HEADERS + b"Content-Length: +2\r\n\r\n{}", LINE + HEADERS + b"Content-Length: 000002\r\n\r\n{}"),
        LINE + HEADERS + b"X: " + b"x" * head.LARGEST + b"\r\n\r\n",
        # A zero byte marks the place of a value in memory. It must not bring back the value of another request.
        *(WHOLE.replace(b"Token: 5", b"Token: \0"), WHOLE.replace(b"Length: 2", b"Length: \0")),
        *(WHOLE.replace(b"\r\nF", b"\0F"), LINE + HEADERS + b"X: \0\r\n\r\n"),
    ],
)
def test_everything_but_one_whole_plain_request_goes_to_the_parser(data: bytes) -> None:
    assert heads().read(data) is None
    assert knowing().read(data) is None


def test_a_head_is_prepared_for_when_it_is_seen_again() -> None:
    known = knowing()
    assert prepared(known, WHOLE.replace(b"Token: 5", b"Token: 6")) == dict([(b"fencing-token", b"6"), LENGTH])
    assert prepared(known, WHOLE) == dict([TOKEN, LENGTH])
    assert prepared(known, WHOLE.replace(b"gateway", b"another")) is None


def test_a_repeated_head_is_not_taken_apart_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known = knowing()
    before = prepared(known, WHOLE)
    monkeypatch.setattr(head, "_read", None)
    found = known.read(WHOLE.replace(b"eq.1", b"eq.22").replace(b"{}", b"[]"))
    assert found is not None
    assert (found.query_string, found.content, found.missing) == (b"id=eq.22", b"[]", 0)
    assert found.prepared is before


def test_a_repeated_head_has_the_length_of_its_body() -> None:
    known = knowing()
    found = known.read(WHOLE[:-1])
    assert found is not None
    assert (found.content, found.missing) == (b"{", 1)
    assert known.read(WHOLE + b"x") is None
    assert known.read(WHOLE + WHOLE) is None


def test_a_repeated_head_is_that_of_one_certificate_or_of_none() -> None:
    one, another = (
        seal(ClientCertificate(frozenset(), datetime(2099, 1, 1, tzinfo=UTC), byte * 32)) for byte in (b"1", b"2")
    )
    for own, others in ((b"", (one, another)), (one, (b"", another))):
        known = knowing(seal=own)
        assert [prepared(known, WHOLE, other) for other in others] == [None, None]


def test_a_repeated_head_is_that_of_one_key() -> None:
    keys = [WHOLE.replace(b"gateway", b"gateway\r\nAuthorization: Bearer %b" % key) for key in (b"ann", b"ben")]
    known = knowing(keys[0])
    assert [prepared(known, data) is None for data in (*keys, WHOLE)] == [False, True, True]
    assert b"ann" not in repr(vars(known)).encode()


@pytest.mark.parametrize(
    ("data", "parsed"),
    [
        (WHOLE, scope(TOKEN, LENGTH, LENGTH)),
        (WHOLE, scope(TOKEN, LENGTH, CHUNKED)),
        (WHOLE, scope(TOKEN, CHUNKED)),
        (WHOLE, scope(TOKEN, (b"content-length", b"3"))),
        (WHOLE, scope(TOKEN, TOKEN, LENGTH)),
        (WHOLE, scope((b"fencing-token", b"5 6"), LENGTH)),
        (WHOLE, scope(LENGTH)),
        (LINE + b"Content-Length:0\r\n\r\n", scope((b"content-length", b"0"))),
        (LINE + HEADERS + b"\r\n", scope(TOKEN, CHUNKED)),
    ],
)
def test_a_head_is_not_learnt_if_the_parser_has_read_its_changing_headers_in_another_way(
    data: bytes, parsed: dict[str, Any]
) -> None:
    known = heads()
    for _ in range(3):
        known.learn(packet(data), parsed)
    assert prepared(known, data) is None


def test_only_so_many_heads_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "MOST", 3)
    known = heads()
    several = [WHOLE.replace(b"gateway", b"gateway%d" % number) for number in range(20)]
    for one in several:
        for _ in range(2):
            known.learn(packet(one), PARSED)
        assert prepared(known, one) is not None
    assert sum(prepared(known, one) is not None for one in several) <= 3
    assert len(known._repeated) <= 3
