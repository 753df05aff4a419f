"""The OpenAPI documents: requests made up from them get answers that they describe, and never one of 5xx."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.demo.embedded import EmbeddedPostgres
from tests.tables.raw_http import Watched, watched_gateway
from tests.waiting import PATIENCE

pytestmark = pytest.mark.thorough

TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, owner text NOT NULL, balance numeric(12, 2) DEFAULT 0, extra jsonb);
INSERT INTO accounts VALUES (1, 'ann', 10, '{"a": 1}'), (2, 'bob', 20, NULL);
CREATE VIEW rich AS SELECT * FROM accounts WHERE balance > 15;
CREATE FUNCTION twice(n int) RETURNS int LANGUAGE sql IMMUTABLE RETURN n * 2;
"""
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]
# That of the tables leaves errors out, as its model does.
DOCUMENTS = {"/v1/openapi.json": [*CHECKS, status_code_conformance], "/v1/tables/": CHECKS}


@pytest.fixture(scope="module")
def gateway(postgres_server: EmbeddedPostgres) -> Iterator[Watched]:
    # The document's own example waits for ten seconds if its lock is taken.
    with watched_gateway(postgres_server, TABLES, leases={"max_wait": 10}) as watched:
        yield watched


@pytest.mark.parametrize("document", DOCUMENTS)
def test_any_request_of_the_document_gets_an_answer_of_the_document(gateway: Watched, document: str) -> None:
    everything = schemathesis.openapi.from_url(f"http://127.0.0.1:{gateway.client.port}{document}")
    # Streams' answers have no end: tests/record/test_stream.py.
    schema = everything.exclude(path_regex="/stream$")
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert operations
    cases = st.one_of([operation.as_strategy() for operation in operations])

    @settings(max_examples=300, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=cases)
    def ask(case: schemathesis.Case[Any]) -> None:
        gateway.events.clear()
        response = case.call(timeout=PATIENCE)
        assert not gateway.failures()
        case.validate_response(response, checks=DOCUMENTS[document])

    ask()
