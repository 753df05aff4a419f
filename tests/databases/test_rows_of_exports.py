"""Rows of an export are found in pieces of any size, with quotes and line feeds in their fields."""

import csv
import io

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.db.export import ExportFormat
from gateway.merged.exports import split_rows

FIELDS = st.lists(st.text(alphabet='a,"\n\r{', max_size=6), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(table=st.lists(FIELDS, max_size=6), size=st.integers(1, 9))
def test_rows_of_csv_are_whole_whatever_the_pieces(table: list[list[str]], size: int) -> None:
    written = []
    for row in table:
        line = io.StringIO()
        csv.writer(line, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(row)
        written.append(line.getvalue().encode())
    text, rest, found = b"".join(written), b"", list[bytes]()
    for begin in range(0, len(text), size):
        rows, rest = split_rows(rest + text[begin : begin + size], ExportFormat.CSV)
        found += rows
    assert b"".join(found) + rest == text
    assert found == written or (rest == b"" and not text)


def test_a_line_of_ndjson_ends_at_its_line_feed_alone() -> None:
    assert split_rows(b'{"a":"\\""}\n{"b', ExportFormat.NDJSON) == ([b'{"a":"\\""}\n'], b'{"b')
