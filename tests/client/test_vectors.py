"""The vectors of docs/client-protocol.md, which the clients in all languages run, against the client in Python."""

import json
from functools import partial
from typing import Any

import httpx
import pytest

from gateway.client import FencingError, LockLost, Stale, api
from gateway.client.api import Api, refusal_from
from gateway.client.hold import Hold, State
from gateway.client.http import Presenter
from gateway.client.keeper import Keeper
from gateway.client.leases import Leases
from gateway.client.s3 import Endpoint
from gateway.client.source import Held
from gateway.errors import GatewayError, ResourceMalformed
from gateway.fencing.resource import canonical, escape, escape_path
from gateway.fencing.sequencer import Sequencer
from gateway.fencing.token import Token
from tests import ROOT

VECTORS = ROOT / "tests" / "vectors/client"
KINDS = {
    "Stale": "stale", "LockLost": "lock-lost", "NotAcquired": "not-acquired", "Unavailable": "unavailable",
    "OutcomeUnknown": "outcome-unknown", "Implausible": "implausible", "Refused": "refused",
}  # fmt: skip


def of(name: str, part: str) -> list[dict[str, Any]]:
    """Return the vectors of one part of a file."""
    found: list[dict[str, Any]] = json.loads((VECTORS / f"{name}.json").read_text())[part]
    assert found
    return found


def kind(error: FencingError) -> str:
    return KINDS[type(error).__name__]


class AskedAgain(Exception):
    """The client has sent more requests than it has answers."""


class Script:
    """A clock, and a server: it answers with what a step says, when the step says."""

    def __init__(self) -> None:
        self.at = 0.0
        self.answers: list[dict[str, Any]] = []
        self.asked: list[str] = []

    def clock(self) -> float:
        return self.at

    def api(self, url: str = "https://gateway.example") -> Api:
        session = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        return Api(lambda: session, url, None)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        if "/v1/withdrawals/" in str(request.url):
            return httpx.Response(204)
        if not self.answers:
            raise AskedAgain
        answer = self.answers.pop(0)
        self.at = answer["answered"]
        return httpx.Response(answer["status"], headers=answer.get("headers"), text=answer["body"])


def test_tokens(subtests: pytest.Subtests) -> None:
    for one in of("tokens", "read"):
        with subtests.test(text=one["text"][:40]):
            if one.get("error"):
                with pytest.raises(GatewayError):
                    Token.parse(one["text"])
            else:
                token = Token.parse(one["text"])
                assert (str(token.epoch), str(token.value)) == (one["epoch"], one["value"])
                assert str(token) == one["canonical"]
    for one in of("tokens", "compare"):
        left, right = Token.parse(one["left"]), Token.parse(one["right"])
        assert (left > right) - (left < right) == one["order"], one


def test_resources(subtests: pytest.Subtests) -> None:
    for one in of("resources", "names"):
        with subtests.test(name=one["name"][:40]):
            if one.get("error"):
                with pytest.raises(ResourceMalformed) as refused:
                    canonical(one["name"])
                spelling = one["spelling"]
                assert refused.value.advice.startswith(
                    f"Its canonical spelling is {spelling}," if spelling else "Use at most 512"
                )
            else:
                assert canonical(one["name"]) == one["canonical"]
    for one in of("resources", "values"):
        assert (escape(one["value"]), escape_path(one["value"])) == (one["escaped"], one["as_path"])


async def test_paths() -> None:
    """A canonical name arrives in a path as it is."""
    for one in of("resources", "paths"):
        script = Script()
        script.answers = [{"answered": 0.0, "status": 200, "body": "{}"}]
        path = f"/v1/leases/{one['resource']}" + (f"/{one['lease']}" if one["lease"] else "")
        await script.api(one["gateway"].rstrip("/")).ask("GET", path)
        assert script.asked == [one["url"]]


def test_sequencers(subtests: pytest.Subtests) -> None:
    for one in of("sequencers", "read"):
        with subtests.test(text=one["text"][:60]):
            if one.get("error"):
                with pytest.raises(GatewayError):
                    Sequencer.parse(one["text"])
            else:
                read = Sequencer.parse(one["text"])
                assert (read.resource, read.mode, str(read.token)) == (one["resource"], one["mode"], one["token"])
                assert (read.signature, read.text) == (one["signature"], one["text"])


async def test_answers(subtests: pytest.Subtests) -> None:
    for one in of("answers", "answers"):
        with subtests.test(answer=one["name"]):
            error = refusal_from(one["status"], one["headers"], one["body"].encode())
            assert (kind(error), error.code) == (one["error"], one["code"])
            assert (error.retryable, error.retry_after) == (one["retry"], one["retry_after"])
            for name, fact in one.get("facts", {}).items():
                assert getattr(error, name) == fact, name
            script = Script()
            script.answers = [{**one, "answered": 0.0}]
            with pytest.raises(FencingError) as refused:
                await script.api().ask("POST", "/v1/leases/job/42")
            assert kind(refused.value) == one.get("of_the_api", one["error"])


def test_retries(subtests: pytest.Subtests) -> None:
    for one in of("answers", "retry_after"):
        with subtests.test(headers=one["headers"]):
            assert api.retry_after(one["headers"]) == one["seconds"]
    for one in of("answers", "pauses"):
        with subtests.test(pause=one):
            given = api.retry_pause(one["failures"], one["retry_after"], partial(float, one["draw"]))
            assert given == pytest.approx(one["seconds"])


def test_headers_of_a_write(subtests: pytest.Subtests) -> None:
    names = json.loads((VECTORS / "writes.json").read_text())["names"]
    for one in of("writes", "writes"):
        with subtests.test(write=one["name"]):
            request = httpx.Request("PUT", one["url"], headers=one["given"])
            Presenter(hold(one["lock"]), one["gateway"], one["api_key"]).present(request)
            assert {name: request.headers[name] for name in names if name in request.headers} == one["sent"]


def hold(lock: dict[str, Any]) -> Hold:
    """Return a lock as it is held."""
    token, script = Token.parse(lock["token"]), Script()
    held = Held(lock["resource"], lock["holder"], token.value, 60.0, token.epoch, "lease", lock["sequencer"])
    keeper = Keeper(Leases(script.api(), script.clock), held, 60.0, script.clock, lambda: None)
    s3 = Endpoint("", None, None, "", None)
    wanted = (lock["resource"], lock["holder"], 60.0, None, lock["mode"])
    return Hold(State(script.api(), s3, script.clock, *wanted, barrier=False, keeper=keeper))


async def test_leases(subtests: pytest.Subtests) -> None:
    for scenario in of("leases", "scenarios"):
        with subtests.test(scenario=scenario["name"]):
            await Played(scenario["wanted"]).play(scenario["steps"])


class Played:
    """One scenario, played with the parts of a lock and without its background tasks."""

    def __init__(self, wanted: dict[str, Any]) -> None:
        self._wanted = wanted
        self._script = Script()
        self._leases = Leases(self._script.api(), self._script.clock)
        self._keeper: Keeper | None = None

    async def play(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            seen = await getattr(self, f"_{step['do']}")(step)
            assert {name: seen.get(name) for name in step["then"]} == pytest.approx(step["then"]), step

    async def _acquire(self, step: dict[str, Any]) -> dict[str, Any]:
        self._script.at = step["sent"]
        self._script.answers = [one for one in (step.get("earlier"), step, step.get("renewal")) if one]
        wanted = self._wanted
        try:
            held = await self._leases.acquire(
                wanted["resource"], holder=wanted["holder"], ttl=wanted["ttl"], wait=0, mode=wanted["mode"]
            )
        except FencingError as error:
            return {"error": kind(error), "withdrawn": "/v1/withdrawals/" in self._script.asked[-1]}
        except AskedAgain:
            return {"again": True}
        self._keeper = Keeper(self._leases, held, wanted["ttl"], self._script.clock, lambda: None)
        return {**self._state(), "renew_in": self._keeper.left() / 3}

    async def _renew(self, step: dict[str, Any]) -> dict[str, Any]:
        assert self._keeper is not None
        self._script.at, self._script.answers = step["sent"], [step]
        pause = 0.0
        if self._keeper.loss() is None:
            pause = await self._keeper.renew_once()
        return {**self._state(), "renew_in": pause}

    async def _look(self, step: dict[str, Any]) -> dict[str, Any]:
        self._script.at = step["at"]
        return self._state()

    async def _refused(self, step: dict[str, Any]) -> dict[str, Any]:
        assert self._keeper is not None
        self._script.at = step["at"]
        lock = hold({**self._wanted, "token": "7", "sequencer": None})
        lock.state.keeper = self._keeper
        lock.overtaken(Stale("overtaken", facts={"resource": step["resource"]}))
        return self._state()

    def _state(self) -> dict[str, Any]:
        assert self._keeper is not None
        held = self._keeper.held
        seen: dict[str, Any] = {"token": str(Token(held.epoch or 0, held.value)), "sequencer": held.sequencer}
        loss = self._keeper.loss()
        seen |= {"state": "held" if loss is None else "lost", "left": max(self._keeper.left(), 0.0)}
        return seen if loss is None else {**seen, "why": _why(loss)}


def _why(loss: LockLost) -> str:
    """Return the reason by its sentence."""
    for why, words in {
        "late": "not renewed in time",
        "refused": "is lost:",
        "stale": "taken over",
        "token": "another token",
    }.items():
        if words in loss.message:
            return why
    return loss.message
