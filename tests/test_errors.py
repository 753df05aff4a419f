"""Every error has a code of its own, a status, and advice; retrying is suggested only where it can help."""

import ast
import re
from collections.abc import Iterator

import pytest
from botocore.loaders import Loader

from gateway.errors import S3_ERRORS, DialectError, FenceRefusal, StoreError, Unavailable, kinds
from gateway.objects.s3 import xml
from tests import ROOT


def test_no_code_means_two_things() -> None:
    alike = [kind for kind in kinds(Unavailable) if kind is not Unavailable and kind.code == Unavailable.code]
    codes = [kind.code for kind in kinds() if kind not in (DialectError, StoreError, FenceRefusal, *alike)]
    assert len(set(codes)) == len(codes)


def test_only_passing_troubles_are_worth_a_retry() -> None:
    assert {kind.code for kind in kinds() if kind.retry_after is not None} == {
        "unavailable",
        "database-closed",
        "lock-held",
        "outcome-unknown",
        "too-many-readers",
    }


# Errors of S3. Clients compare codes, and people look for the words of AWS.

UNDOCUMENTED = {
    "AuthorizationQueryParametersError",
    "BadRequest",
    "BucketNotEmpty",
    "MalformedPolicy",
    "MalformedTrailerError",
    "XAmzContentSHA256Mismatch",
}
"""Codes that S3 answers with, and that are not in the list of its API."""
SEVERAL_MESSAGES = {"AccessDenied"}
"""S3 has other messages beside the one in the table, such as that of an expired URL."""


def of_aws() -> dict[str, int]:
    """Return the codes in the model of AWS's SDKs, with their statuses."""
    model = Loader().load_service_model("s3", "service-2")
    text = model["shapes"]["Error"]["members"]["Code"]["documentation"]
    pattern = r"<i>Code:</i>\s*(\w+)\s*</p>.*?<i>HTTP Status Code:</i>\s*(\w+)"
    return {code: int(status) for code, status in re.findall(pattern, text, re.DOTALL) if status.isdecimal()}


def constructed() -> Iterator[tuple[str, str, int | None]]:
    """Yield each error of S3 that the code constructs: its place, code, and status if it does not take the table's.

    A code in a variable is not seen, unless the module has it as a constant.
    """
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        module = ast.parse(path.read_text())
        constants = {
            ast.unparse(node.targets[0]): node.value.value
            for node in module.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(module):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if not isinstance(node, ast.Call) or called not in ("StoreError", "StoreError.known"):
                continue
            code = (
                node.args[0].value
                if isinstance(node.args[0], ast.Constant)
                else constants.get(ast.unparse(node.args[0]))
            )
            if isinstance(code, str):
                own = None if called == "StoreError.known" else ast.literal_eval(node.args[1])
                yield f"{path.name}:{node.lineno}", code, own


def test_codes_and_statuses_are_those_of_s3() -> None:
    known = of_aws()
    assert {code for code in S3_ERRORS if code not in known} == UNDOCUMENTED
    wrong = {code: status for code, (status, _) in S3_ERRORS.items() if known.get(code, status) != status}
    assert wrong == {}
    names = {kind.s3_code for kind in kinds() if kind not in (DialectError, StoreError)}
    assert {name for name in names if "Fencing" not in name and name not in known} == set()


def test_each_error_of_s3_is_in_the_table() -> None:
    found = list(constructed())
    assert {code for _, code, _ in found} == set(S3_ERRORS), "a code of nothing, or one without a row"
    for place, code, status in found:
        if status is not None:
            known, words = S3_ERRORS[code]
            assert status == known, place
            assert not words or code in SEVERAL_MESSAGES, f"{place}: StoreError.known has the words of S3"


@pytest.mark.parametrize("code", S3_ERRORS)
def test_the_words_of_s3_come_before_ours(code: str) -> None:
    words = S3_ERRORS[code][1]
    document = xml.render(StoreError.known(code, "Do this next."), path="/b", request_id="1").decode()
    (message,) = re.findall("<Message>(.*)</Message>", document)
    assert message == f"{words.removesuffix('.')}. Do this next." if words else "Do this next."
    assert f"<Code>{code}</Code>" in document
