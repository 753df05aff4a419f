"""The query of docs/record.md finds the entries that earlier revisions sealed with a credential, and no others."""

import re

import pytest

from gateway.db.database import Database
from gateway.fencing.credential_redaction import redacted
from tests import ROOT
from tests.record.telling import put

PAGE = ROOT / "docs/record.md"
WITH_CREDENTIALS = (
    "/b/k?X-Amz-Credential=AKIA1%2F20260101&X-Amz-Signature=5ec4e7",
    "/b/k?x-amz-security-token=t&x=1",
    "/b/k?x-amz-meta-fencing-sequencer=order/5:exclusive:34:s",
    "/v1/tables/t?APIKEY=eq.k",
)


@pytest.mark.parametrize("target", WITH_CREDENTIALS)
async def test_old_entries_are_found_and_new_ones_are_not(database: Database, target: str) -> None:
    (query,) = re.findall(r"^SELECT position, at, caller, target.*?;$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    for one in (target, redacted(target), "/v1/tables/t?id=eq.1"):
        await put(database, target=one)
    found = await database.fetch(query)
    assert [row["target"] for row in found] == [target]
