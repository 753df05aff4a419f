"""Payloads are shown as text or in hex."""

from gateway.web.entry_page import payload_lines


def test_text_is_shown_line_by_line() -> None:
    assert payload_lines(b'{"a": 1}\n{"b": 2}\r\n').lines == ['{"a": 1}', '{"b": 2}']
    assert payload_lines(b"").lines == []


def test_a_character_that_was_cut_in_two_is_left_out() -> None:
    for cut in (b"\xc3", b"\xe2\x80", b"\xf0\x9f\x98"):
        payload = payload_lines(b"abc" + cut)
        assert (payload.lines, payload.binary) == (["abc"], False)


def test_bytes_are_shown_in_hex_and_not_all_of_them() -> None:
    payload = payload_lines(b"\xff\x00PK<" + b"\x00" * 5000)
    assert payload.binary
    assert payload.lines[0] == "000000  ff 00 50 4b 3c 00 00 00 00 00 00 00 00 00 00 00  ..PK<..........."
    assert len(payload.lines) == 64
    assert payload_lines(b"a\xffb").binary
    assert payload_lines(b"\x80").binary
