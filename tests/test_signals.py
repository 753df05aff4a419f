"""A request to stop is not lost, whatever the interpreter is doing when it arrives."""

import signal
import subprocess
import sys
import time
import weakref

import pytest

from gateway import serving


class Collected:
    """Something that a weak reference can look at."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_within_a_callback_whose_exceptions_python_drops_stops_all_the_same(number: signal.Signals) -> None:
    arrived = []

    def callback(_: object) -> None:
        arrived.append(number)
        signal.raise_signal(number)

    def signalled() -> None:
        with serving.Signals():
            looked_at = Collected()
            reference = weakref.ref(looked_at, callback)
            del looked_at
            assert reference() is None
            time.sleep(5)

    before = sys.unraisablehook
    with pytest.raises(serving.StopRequested):
        signalled()
    assert arrived == [number]
    assert sys.unraisablehook is before


def test_other_exceptions_that_python_drops_are_still_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(unraisable.exc_value))

    def callback(_: object) -> None:
        raise LookupError

    with serving.Signals():
        looked_at = Collected()
        reference = weakref.ref(looked_at, callback)
        del looked_at
    assert reference() is None
    assert [type(value) for value in told] == [LookupError]


def test_while_a_command_is_being_imported_sigint_ends_it_as_the_kernel_does() -> None:
    program = """
import builtins, os, signal, weakref
real = builtins.__import__
class Collected: pass
def importing(name, *rest):
    if name == "gateway.cli":
        looked_at = Collected()
        reference = weakref.ref(looked_at, lambda _: os.kill(os.getpid(), signal.SIGINT))
        del looked_at
    return real(name, *rest)
builtins.__import__ = importing
import gateway.__main__
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == -signal.SIGINT
