"""The gateway keeps payloads without the redacted parts, in whatever form they come."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.fencing.record import CapturedPayload
from gateway.record import payload_capture
from gateway.record.payload_capture import Capture

TABLE = "public.users"
CAPTURE = Capture(1000, ["secret", "public.users.pin"])
PLAIN = Capture(20)
FORM, CSV, JSON = "application/x-www-form-urlencoded", "text/csv", "application/json"
SECRET = "the secret itself"


def kept(content: str | bytes, media_type: str = JSON, table: str = TABLE, by: Capture = CAPTURE) -> CapturedPayload:
    found = by.of_table(content if isinstance(content, bytes) else content.encode(), media_type, table)
    assert found is not None
    return found


class TestWithoutRedaction:
    def test_nothing_is_kept_unless_an_operator_says_so(self) -> None:
        assert Capture().of_table(b"{}", JSON, TABLE) is None
        assert Capture(redact=["secret"]).of_object(b"{}", JSON) is None

    def test_of_nothing_there_is_nothing_to_keep(self) -> None:
        assert PLAIN.of_table(b"", "", TABLE) is None

    @pytest.mark.parametrize(
        ("content", "body", "truncated"),
        [(b"x" * 20, b"x" * 20, False), (b"x" * 21, b"x" * 20, True), (b"\xff\0", b"\xff\0", False)],
    )
    def test_the_beginning_is_kept_as_it_came(self, content: bytes, body: bytes, truncated: bool) -> None:  # noqa: FBT001
        assert PLAIN.of_table(content, "text/plain", TABLE) == CapturedPayload("text/plain", body, truncated=truncated)
        assert PLAIN.of_object(content, "text/plain") == CapturedPayload("text/plain", body, truncated=truncated)

    def test_what_did_not_arrive_whole_is_truncated(self) -> None:
        assert PLAIN.of_object(b"x", "text/plain", more=True) == CapturedPayload("text/plain", b"x", truncated=True)

    def test_a_table_without_such_columns_is_kept_as_it_came(self) -> None:
        only_others = Capture(1000, ["public.orders.secret"])
        assert kept(b"no JSON", by=only_others) == CapturedPayload(JSON, b"no JSON")


class TestJson:
    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ('{"id": 1, "secret": "s"}', '{"id":1,"secret":"[redacted]"}'),
            ('[{"secret": 1}, {"secret": null}]', '[{"secret":"[redacted]"},{"secret":"[redacted]"}]'),
            ('{"extra": {"deep": [{"secret": {"a": 1}}]}}', '{"extra":{"deep":[{"secret":"[redacted]"}]}}'),
            ('{"pin": "1234"}', '{"pin":"[redacted]"}'),
            # However the name is written, and wherever it hides.
            ('{"\\u0073ecret": "s"}', '{"secret":"[redacted]"}'),
            ('{"a": {"secret": "s"}, "a": 1}', '{"a":1}'),
            ('{"secret": "s", "secret": "t"}', '{"secret":"[redacted]"}'),
        ],
    )
    def test_values_of_redacted_columns_are_taken_out(self, content: str, expected: str) -> None:
        assert kept(content).body.decode() == expected

    def test_it_says_whether_anything_was_taken_out(self) -> None:
        assert kept('{"secret": 1}').redacted
        assert not kept('{"other": 1}').redacted

    def test_a_column_of_one_table_is_redacted_there_only(self) -> None:
        assert b"1234" in kept('{"pin": "1234"}', table="public.orders").body

    def test_no_type_is_json(self) -> None:
        assert kept('{"secret": "s"}', "").body == b'{"secret":"[redacted]"}'
        assert kept('{"secret": "s"}', "Application/JSON; charset=utf-8").redacted

    def test_redacted_first_and_cut_afterwards(self) -> None:
        content = json.dumps({"secret": "s" * 5000, "note": "n" * 5000})
        found = kept(content)
        assert (len(found.body), found.truncated) == (1000, True)
        assert found.body.startswith(b'{"secret":"[redacted]","note":"nnn')

    @given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
    def test_nothing_below_a_redacted_column_is_ever_kept(self, inner: object) -> None:
        document = {"rows": [{"secret": {"wrapped": [inner, SECRET]}}]}
        assert SECRET.encode() not in kept(json.dumps(document)).body


class TestOtherForms:
    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ("id,secret\n1,s\n2,NULL\n", "id,secret\n1,[redacted]\n2,[redacted]\n"),
            ('"secret","id"\r\n"a, ""b""\nc",1\r\n', "secret,id\n[redacted],1\n"),
            ("\ufeffsecret\ns\n", "secret\n[redacted]\n"),
            ("id\n1\n", "id\n1\n"),
        ],
    )
    def test_csv(self, content: str, expected: str) -> None:
        found = kept(content, CSV)
        assert found.body.decode() == expected
        assert found.redacted is ("[redacted]" in expected)

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ("id=1&secret=s", "id=1&secret=[redacted]"),
            ("secre%74=s&note=a+b%26", "secret=[redacted]&note=a+b%26"),
            ("secret=", "secret=[redacted]"),
        ],
    )
    def test_forms(self, content: str, expected: str) -> None:
        assert kept(content, FORM).body.decode() == expected


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (f'{{"secret": "{SECRET}"', JSON),
        ("[" * 100_000, JSON),
        (b'{"secret": "\xff"}', JSON),
        ("1" * 5000, JSON),
        (f"id,secret\n{SECRET}\n", CSV),
        (f'id,secret\n1,"{SECRET}', CSV),
        ("", CSV),
        (f"secret={SECRET}\xe4", FORM),
        (SECRET, "text/plain"),
        (SECRET, "application/octet-stream"),
        (f'{{"secret": "{SECRET}"}}' + " " * payload_capture.MOST_READ, JSON),
    ],
)
def test_what_cannot_be_read_is_not_kept_and_says_so(content: str | bytes, media_type: str) -> None:
    found = CAPTURE.of_table(content if isinstance(content, bytes) else content.encode(), media_type, TABLE)
    if not content:
        assert found is None
        return
    assert found is not None
    assert found.body == b""
    assert found.left_out
    assert SECRET not in found.left_out


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ""),
        ("id=eq.1&secret=eq.s", "id=eq.1&secret=[redacted]"),
        ("secre%74=eq.s", "secre%74=[redacted]"),
        ("secret->>a=eq.s&secret->b=gt.1", "secret->>a=[redacted]&secret->b=[redacted]"),
        ("related.secret=eq.s", "related.secret=[redacted]"),
        ('"secret"=eq.s', '"secret"=[redacted]'),
        ("pin=in.(1,2)", "pin=[redacted]"),
        ("or=(id.eq.1,secret.eq.s)", "or=[redacted]"),
        ("not.and=(id.eq.1,not.or(secre%74.eq.s))", "not.and=[redacted]"),
        ("related.or=(secret.eq.s)", "related.or=[redacted]"),
        ("or=(id.eq.1,id.eq.2)", "or=(id.eq.1,id.eq.2)"),
        ("select=id,secret&order=secret&columns=secret", "select=id,secret&order=secret&columns=secret"),
        ("secrets=eq.s&secret", "secrets=eq.s&secret"),
    ],
)
def test_filters_do_not_tell_what_redacted_columns_are_compared_with(query: str, expected: str) -> None:
    assert CAPTURE.query(query, TABLE) == expected


def test_a_query_is_left_alone_where_nothing_is_to_be_redacted() -> None:
    assert CAPTURE.query("pin=eq.1", "public.orders") == "pin=eq.1"
    assert Capture(1000).query("secret=eq.1", TABLE) == "secret=eq.1"
