"""How a command of this program calls a gateway: one request, and its answer or an error that says what to do."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.errors import ConfigurationError, GatewayError, Unavailable

TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where a gateway is, and what the command proves itself with; None where it need not."""

    url: str
    api_key: str | None = field(repr=False)

    def call(
        self,
        method: str,
        path: str,
        *,
        status: int = 200,
        body: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> Any:
        """The answer's document. ``path`` is encoded already; ``status`` is what a success is answered with.

        Raises ``GatewayError`` with what the gateway says, ``Unavailable`` where it says nothing, and
        ``ConfigurationError`` for an address that is none, or not a gateway's.
        """
        with self._translated():
            return self._ask(method, path, body, parameters, status).json()

    def fetch(self, path: str, parameters: Mapping[str, Any] | None = None) -> str:
        """An answer that is no JSON, but a text to be kept. Raises what ``call`` raises."""
        with self._translated():
            return self._ask("GET", path, None, parameters, 200).text

    @contextmanager
    def streamed(
        self, path: str, parameters: Mapping[str, Any], *, headers: Mapping[str, str] | None = None, silence: float
    ) -> Iterator[Iterator[bytes]]:
        """An answer that may be longer than memory, in pieces. ``silence``: seconds after which it is taken for lost.

        Raises what ``call`` raises, also in the midst of the answer.
        """
        limits = httpx.Timeout(TIMEOUT, read=silence)
        with self._translated():
            sent = {**self._credentials(), **(headers or {})}
            with httpx.stream("GET", self._address(path), params=parameters, headers=sent, timeout=limits) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise self._refused(answer)
                yield answer.iter_bytes()

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, parameters: Mapping[str, Any] | None, status: int
    ) -> httpx.Response:
        headers = self._credentials()
        answer = httpx.request(
            method, self._address(path), json=body, params=parameters, headers=headers, timeout=TIMEOUT
        )
        if answer.status_code != status:
            raise self._refused(answer)
        return answer

    def _address(self, path: str) -> httpx.URL:
        return httpx.URL(self.url.rstrip("/") + path)

    def _credentials(self) -> dict[str, str]:
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def _refused(self, answer: httpx.Response) -> GatewayError:
        """What the gateway says; where it says that it cannot at this time, ``Unavailable``."""
        document = answer.json()
        kind = Unavailable if answer.status_code == Unavailable.status else GatewayError
        return kind(str(document["detail"]), advice=str(document["advice"]))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ConfigurationError(
                "--url: must be an address such as https://gateway.example.com", advice=""
            ) from error
        except httpx.HTTPError as error:
            raise Unavailable(f"The gateway at {self.url} cannot be reached: {type(error).__name__}.") from error
        except (ValueError, LookupError, TypeError) as error:
            raise self.stranger() from error

    def stranger(self) -> ConfigurationError:
        """The error for answers that no gateway gives."""
        return ConfigurationError(f"What answers at {self.url} is not a fencing gateway.", advice="")
