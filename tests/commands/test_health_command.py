"""``gateway health``: ready, alive and neither, as health checks of containers and services see it."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trustme

from gateway import app, serving
from gateway.commands.health import _context
from gateway.config import Config
from tests.processes import called, closed_port
from tests.running import config
from tests.waiting import PATIENCE

PATIENTLY = ("--timeout", f"{PATIENCE}")
"""The default would be four seconds."""


@contextmanager
def served(configured: Config) -> Iterator[int]:
    with serving.bind("127.0.0.1", 0) as listener:
        port = int(listener.getsockname()[1])
        with serving.in_background(app.build(configured), listener):
            yield port


def test_ready_while_writes_are_possible(dsn: str) -> None:
    with served(config(dsn)) as port:
        asked = called("health", *PATIENTLY, "--url", f"http://127.0.0.1:{port}/")
        assert (asked.returncode, asked.stdout) == (0, "ready\n")


def test_alive_but_not_ready_without_its_database() -> None:
    with closed_port() as nothing, served(config(f"postgresql://nobody@127.0.0.1:{nothing}/none")) as port:
        asked = called("health", *PATIENTLY, "--url", f"http://127.0.0.1:{port}")
        assert asked.returncode == 1
        assert "503 Not ready: postgres" in asked.stderr
        assert called("health", "--alive", *PATIENTLY, "--url", f"http://127.0.0.1:{port}").stdout == "alive\n"


def test_alive_while_its_database_hangs() -> None:
    """It accepts a connection and never says a word, as a server does that was paused."""
    with socket.create_server(("127.0.0.1", 0)) as paused:
        hanging = f"postgresql://nobody@127.0.0.1:{paused.getsockname()[1]}/none"
        with served(config(hanging)) as port:
            asked = called("health", "--alive", *PATIENTLY, "--url", f"http://127.0.0.1:{port}")
            assert asked.stdout == "alive\n", asked.stderr
            assert called("health", "--timeout", "0.5", "--url", f"http://127.0.0.1:{port}").returncode == 1


@pytest.mark.parametrize("alive", [(), ("--alive",)])
def test_nothing_answers(alive: tuple[str, ...]) -> None:
    with closed_port() as port:
        asked = called("health", *alive, "--url", f"http://127.0.0.1:{port}")
    assert asked.returncode == 1
    assert "no answer: ConnectionRefusedError" in asked.stderr


def test_a_server_that_says_nothing_is_waited_for_to_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = called("health", "--alive", "--timeout", "0.2", "--url", f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert asked.returncode == 1
    assert "no answer: TimeoutError" in asked.stderr


def test_what_answers_is_not_taken_at_its_word() -> None:
    """A server with an endless answer, or with characters that control a terminal."""
    with socket.create_server(("127.0.0.1", 0)) as hostile:

        def answer() -> None:
            connection, _ = hostile.accept()
            with connection:
                connection.recv(65536)
                body = b'{"detail": "\\u001b]0;title"}'
                connection.sendall(b"HTTP/1.1 500 no\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        thread = threading.Thread(target=answer)
        thread.start()
        asked = called("health", *PATIENTLY, "--url", f"http://127.0.0.1:{hostile.getsockname()[1]}")
        thread.join()
    assert asked.returncode == 1
    assert "\x1b" not in asked.stderr


@pytest.mark.parametrize("demanded", [False, True])
def test_of_itself_over_tls(dsn: str, *, demanded: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The certificate is for the name outside, so on this machine it is not verified: nothing secret is sent."""
    authority, folder = trustme.CA(), tmp_path_factory.mktemp("tls")
    authority.issue_cert("gateway.example.com").private_key_and_cert_chain_pem.write_to_path(str(folder / "own"))
    authority.cert_pem.write_to_path(str(folder / "authority"))
    tls = {"tls_certificate": folder / "own"}
    if demanded:
        tls |= {"client_authorities": folder / "authority"}
    more = {"client_certificates": "demand"} if demanded else {}
    configured = config(dsn, server={**tls, **more})
    with serving.bind("127.0.0.1", 0) as listener:
        running = serving.server(app.build(configured), configured.server, grace=1)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listener]})
        thread.start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        asked, alive = called("health", *PATIENTLY, "--url", url), called("health", "--alive", *PATIENTLY, "--url", url)
        running.should_exit = True
        thread.join()
    assert alive.returncode == 0, alive.stderr
    assert asked.returncode == (1 if demanded else 0)
    assert not demanded or "Does it demand a certificate?" in asked.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://127.0.0.1", "http://", "http://[::1", "http://127.0.0.1:x"])
def test_an_address_that_is_none(url: str) -> None:
    asked = called("health", "--url", url)
    assert asked.returncode == 2
    assert "--url: must be an address" in asked.stderr


def test_elsewhere_the_certificate_counts() -> None:
    assert _context("gateway.example.com").verify_mode is ssl.CERT_REQUIRED
    assert _context("127.0.0.1").verify_mode is ssl.CERT_NONE
