"""A call means exactly one form of a function."""

import pytest

from gateway.errors import DialectError
from gateway.tables.catalog.functions import Choice, Function, Functions, Parameter
from gateway.tables.dialect.media import BodyType


def function(*parameters: Parameter, name: str = "f") -> Function:
    return Function("public", name, "i", returns_set=False, type="integer", composite=False, parameters=parameters)


def known(*functions: Function) -> Functions:
    return Functions({("public", functions[0].name): functions})


A, B = Parameter("a", "integer"), Parameter("b", "integer", required=False)
JSON = Parameter("", "json")
SEARCHED, IN_VAIN = "Searched for the function public.f", "but no matches were found in the schema cache."


@pytest.mark.parametrize(
    ("parameters", "names", "fits"),
    [
        ((), set(), True),
        ((), {"a"}, False),
        ((A,), {"a"}, True),
        ((A,), set(), False),
        ((A,), {"a", "b"}, False),
        ((A, B), {"a"}, True),
        ((A, B), {"a", "b"}, True),
        ((A, B), {"b"}, False),
        ((B,), set(), True),
    ],
)
def test_a_form_takes_its_arguments(parameters: tuple[Parameter, ...], names: set[str], *, fits: bool) -> None:
    assert function(*parameters).takes(names) is fits


@pytest.mark.parametrize(
    ("type_", "kind", "fits"),
    [
        ("json", "json", True), ("jsonb", "json", True), ("text", "text", True), ("bytea", "binary", True),
        ("text", "json", False), ("json", "text", False), ("integer", "json", False), ("json", "urlencoded", False),
    ],
)  # fmt: skip
def test_a_body_can_be_the_one_argument(type_: str, kind: BodyType, *, fits: bool) -> None:
    assert function(Parameter("", type_)).takes_whole(kind) is fits
    assert not function(Parameter("named", type_)).takes_whole(kind)
    assert not function(Parameter("", type_), A).takes_whole(kind)


def test_named_arguments_come_before_the_whole_body() -> None:
    named, whole = function(A), function(JSON)
    both = known(named, whole)
    assert both.choose("public", "f", {"a"}, "json") == Choice(named)
    assert both.choose("public", "f", {"z"}, "json") == Choice(whole, whole=True)
    assert both.choose("public", "f", None, "json") == Choice(whole, whole=True)
    with pytest.raises(DialectError):
        both.choose("public", "f", {"z"}, None)


@pytest.mark.parametrize(
    ("names", "kind", "message", "details"),
    [
        (
            {"z"}, "json", "Could not find the function public.f(z) in the schema cache",
            f"{SEARCHED} with parameter z or with a single unnamed json/jsonb parameter, {IN_VAIN}",
        ),
        (
            {"z", "y"}, None, "Could not find the function public.f(y, z) in the schema cache",
            f"{SEARCHED} with parameters y, z, {IN_VAIN}",
        ),
        (
            set(), None, "Could not find the function public.f without parameters in the schema cache",
            f"{SEARCHED} without parameters, {IN_VAIN}",
        ),
        (
            None, "text", "Could not find the function public.f in the schema cache",
            f"{SEARCHED} with a single unnamed text parameter, {IN_VAIN}",
        ),
    ],
)  # fmt: skip
def test_a_call_that_no_form_takes_is_refused(
    names: set[str] | None, kind: BodyType | None, message: str, details: str
) -> None:
    with pytest.raises(DialectError) as caught:
        known(function(A, B)).choose("public", "f", names, kind)
    error = caught.value
    assert (error.code, error.status, error.message, error.details) == ("PGRST202", 404, message, details)
    assert error.hint == "Perhaps you meant to call the function public.f(a, b)"


def test_an_unknown_function_gets_no_suggestion() -> None:
    with pytest.raises(DialectError) as caught:
        known(function(A)).choose("public", "g", set(), None)
    assert caught.value.hint is None


def test_a_call_that_several_forms_take_is_refused() -> None:
    with pytest.raises(DialectError) as caught:
        known(function(A), function(Parameter("a", "text"))).choose("public", "f", {"a"}, None)
    error = caught.value
    assert (error.code, error.status) == ("PGRST203", 300)
    assert error.message == (
        "Could not choose the best candidate function between: public.f(a => integer), public.f(a => text)"
    )
