"""A reader can follow a request: it executes few files of the gateway."""

import pytest
import pytest_asyncio

from bench.files import Files, files_per_request
from tests.postgres import Server

LIMITS = {
    "POST of a lease": 31,
    "PATCH, hot": 22,
    "GET by key": 18,
    "PATCH by a new holder": 31,
    "PATCH, stale": 38,
    "PUT of an object": 60,
    "PUT of an object by a new holder": 60,
}
"""The most files of one request. A limit goes up only for a reason that stands here.

The journal has three of each raise, four of a put: one of them has the rules for when a database may be trusted. One is
the driver of protocols, which those of the journal and of object writes share. The batcher is one of a put. Grants are
one of each request, two of one that is refused or to an object. The use of a key is noted by one of each request, as
decision 079 says. Two look for an ACL in a put, which could open the store (decision 077). One gives each caller its
share (decision 105). One gives keys of a shared bucket to the plane of their database (decision 099). One has the rule
for names of buckets, which checks of the configuration share. One is the memory of heads, which forgets as all such
memories do. One finds the database of a request, also if there is only one. One has the terms of leases, where a reader
looks for them. One speaks HTTP with the store (decision 001).
"""

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def counted(postgres_server: Server) -> Files:
    return await files_per_request(postgres_server)


@pytest.mark.parametrize("request_kind", LIMITS)
async def test_a_request_executes_few_files(counted: Files, request_kind: str) -> None:
    files = counted[request_kind]
    assert len(files) <= LIMITS[request_kind], "\n".join(files)


async def test_a_plain_write_executes_neither_planning_nor_a_transaction_of_its_own(counted: Files) -> None:
    assert "tables/execute/fast_path.py" in counted["PATCH, hot"]
    assert not {"tables/execute/planning.py", "tables/execute/transaction.py"} & set(counted["PATCH, hot"])
    assert not {"tables/execute/planning.py", "tables/execute/transaction.py"} & set(counted["PATCH by a new holder"])
