"""The metadata of an object raise a fence only where a gateway has signed them, for this very key."""

from dataclasses import replace
from typing import Any

import pytest

from gateway.fencing.token import Token
from gateway.journal.evidence import Metadata, Witness

WITNESS = Witness(["new key", "old key"])


def written(token: str = "1.5", witness: Witness = WITNESS) -> Metadata:
    signature = witness.sign("bucket", "a key\n", "job/5", token, "write")
    return Metadata("bucket", "a key\n", "job/5", token, "write", signature)


def test_a_signed_token_is_found() -> None:
    assert WITNESS.find(written()) == Token(1, 5)


@pytest.mark.parametrize(
    "forged",
    [
        {"token": "1.6"},
        {"key": "another key"},
        {"bucket": "another"},
        {"write_id": "another"},
        {"signature": "A" * 43},
        {"signature": "\u00e4\ud800"},
        {"signature": ""},
        {"signature": None},
        {"write_id": None},
        {"token": None},
        {"resource": None},
        {"resource": "job/6"},
    ],
    ids=str,
)
def test_forged_and_copied_metadata_prove_nothing(forged: dict[str, Any]) -> None:
    assert WITNESS.find(replace(written(), **forged)) is None


def test_a_signed_token_that_cannot_be_read_proves_nothing() -> None:
    assert WITNESS.find(written("not a token")) is None


def test_keys_can_be_replaced() -> None:
    assert WITNESS.find(written(witness=Witness(["old key"]))) == Token(1, 5)
    assert WITNESS.find(written(witness=Witness(["foreign key"]))) is None


def test_without_a_key_nothing_is_signed_and_nothing_proves() -> None:
    assert Witness().sign("bucket", "key", "job/5", "5", "write") is None
    assert Witness().find(written()) is None


def test_a_write_without_a_token_is_no_evidence() -> None:
    assert WITNESS.sign("bucket", "key", "job/5", "", "write") is None
