"""Identity tokens prove a caller on every route; keys of issuers rotate, hang, lie and are gone."""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from joserfc.errors import SecurityWarning
from joserfc.jwk import RSAKey
from starlette.responses import RedirectResponse, Response, StreamingResponse

from gateway import app
from gateway.api.services import StreamLimits
from gateway.auth import issuers
from gateway.auth.identity_tokens import LARGEST, LEEWAY, TrustedIssuer, read_keys, secret_key, verify
from gateway.config.access import Issuer
from gateway.db import rights
from gateway.errors import Unauthenticated
from gateway.observe.events import KeysChanged, RequestAnswered, ServiceUnreachable
from tests import identity_provider
from tests.identity_provider import (
    AUDIENCE,
    ISSUER,
    Hanging,
    Provider,
    SigningKey,
    claims,
    ec_key,
    encoded,
    rsa_key,
    shared_key,
    token,
)
from tests.postgres import GATEWAY
from tests.running import Events, config, running
from tests.tiers import first
from tests.waiting import PATIENCE

RSA, EC, FOREIGN = rsa_key("one"), ec_key("two"), rsa_key("one")
SECRET = "a secret that the issuer and the gateway share"
TRUSTED = TrustedIssuer("id", ISSUER, (AUDIENCE, "other"), groups_claim=("realm", "roles"))
SHARED = TrustedIssuer("shared", None, ())
NOW = datetime.now(UTC)


def seconds(offset: float) -> int:
    return int((NOW + timedelta(seconds=offset)).timestamp())


def fresh(subject: str = "ann", **more: Any) -> dict[str, Any]:
    """Return the claims of a token that is good at ``NOW``, however late a test runs."""
    return identity_provider.claims(subject, **{"iat": seconds(0), "exp": seconds(600), **more})


PUBLIC_KEYS, OF_SECRET = read_keys(Provider(RSA, EC).document()), secret_key(SECRET.encode())


def proven(text: str, trusted: TrustedIssuer = TRUSTED, keys: Any = PUBLIC_KEYS, now: datetime = NOW) -> Any:
    return verify(text.encode(), trusted, keys, now)


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (EC, "ES256")])
def test_a_good_token_proves_its_caller_and_groups_and_need_not_name_its_key(key: SigningKey, algorithm: str) -> None:
    content = fresh("system:serviceaccount:prod:writer", realm={"roles": ["admin", 7, ""]}, aud=["x", "other"])
    found = proven(token(key, content, algorithm))
    assert (found.caller, found.groups) == ("id:system:serviceaccount:prod:writer", ("id:admin",))
    assert found.claims == content
    assert found.expires == datetime.fromtimestamp(content["exp"], UTC) + timedelta(seconds=30)
    assert proven(token(key, fresh(), algorithm, kid=None)).caller == "id:ann"


@pytest.mark.parametrize("kid", [None, "named-by-its-issuer"])
def test_a_shared_secret_is_the_convention_of_postgrest(kid: str | None) -> None:
    """Supabase names its key. A secret has no name to compare, so the signature alone decides."""
    content = {"sub": "ann", "role": "editor", "exp": NOW.timestamp() + 60}
    found = proven(token(shared_key(SECRET), content, "HS256", kid=kid), SHARED, OF_SECRET)
    assert (found.caller, found.claims["role"]) == ("shared:ann", "editor")
    another = token(shared_key("another secret of more than thirty-two bytes"), content, "HS256", kid=kid)
    for text in (another, unsigned({"alg": "none"}, content), unsigned({"alg": "HS256"}, content)):
        with pytest.raises(Unauthenticated, match="No key"):
            proven(text, SHARED, OF_SECRET)


def unsigned(header: Any, content: Any, signature: bytes = b"") -> str:
    return f"{encoded(header)}.{encoded(content)}.{encoded(signature)}"


def with_public_key_as_secret() -> str:
    """The attack by which a verifier takes the public key for the secret of an HMAC."""
    signed = f"{encoded({'alg': 'HS256', 'kid': 'one'})}.{encoded(fresh())}"
    return f"{signed}.{encoded(hmac.digest(RSA.as_pem(private=False), signed.encode(), 'sha256'))}"


def resigned() -> str:
    head, _, signature = token(RSA, fresh("ann")).split(".")
    return f"{head}.{encoded(fresh('root'))}.{signature}"


WRONG = {
    "nothing": ("", "cannot be read"),
    "not an object": (unsigned({"alg": "RS256"}, []), "cannot be read"),
    "nested deeply": (unsigned({"alg": "RS256"}, b"[" * 5000), "cannot be read"),
    "no algorithm": (unsigned({"kid": "one"}, fresh()), "cannot be read"),
    "alg none": (unsigned({"alg": "none", "kid": "one"}, fresh()), "No key"),
    "no signature": (token(RSA, fresh()).rpartition(".")[0] + ".", "No key"),
    "swapped algorithm": (with_public_key_as_secret(), "No key"),
    "key of another type": (token(RSA, fresh(), kid="two"), "No key"),
    "foreign key of the same name": (token(FOREIGN, fresh()), "No key"),
    "an address of keys in the header": (token(FOREIGN, fresh(), jku="http://evil.example/keys"), "No key"),
    "a critical header": (token(RSA, fresh(), crit=["x"], x=1), "No key"),
    "kid as SQL": (token(RSA, fresh(), kid="' OR 1=1 --"), "no key with the id"),
    "kid as a number": (unsigned({"alg": "RS256", "kid": 1}, fresh(), b"x"), "cannot be read|No key"),
    "changed content": (resigned(), "No key"),
    "expired": (token(RSA, fresh(exp=seconds(-31))), "has expired"),
    "without an end": (token(RSA, fresh(exp=None)), "no claim exp"),
    "an end as a text": (token(RSA, fresh(exp="9999999999")), "its claim exp"),
    "an end after all years": (token(RSA, fresh(exp=10**18)), "times of the identity token"),
    "not yet valid": (token(RSA, fresh(nbf=seconds(60))), "its claim nbf"),
    "issued in the future": (token(RSA, fresh(iat=seconds(60))), "its claim iat"),
    "foreign audience": (token(RSA, fresh(aud="elsewhere")), "its claim aud"),
    "no audience": (token(RSA, fresh(aud=None)), "no claim aud"),
    "foreign issuer": (token(RSA, fresh(iss="https://issuer.example/")), "its claim iss"),
    "no caller": (token(RSA, fresh(sub=None)), "no claim sub"),
    "an empty caller": (token(RSA, fresh(sub="")), "no claim sub"),
    "an invisible caller": (token(RSA, fresh(sub="ann\u200b")), "invisible"),
    "a caller in spaces": (token(RSA, fresh(sub=" ann")), "invisible"),
    "a long caller": (token(RSA, fresh(sub="a" * 201)), "too long"),
    "a large token": (token(RSA, fresh(padding="x" * LARGEST)), "bytes"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_token_proves_nothing(text: str, words: str) -> None:
    with pytest.raises(Unauthenticated, match=words) as caught:
        proven(text)
    assert not any(len(part) > 8 and part in str(caught.value) for part in text.split("."))
    assert "API key" not in caught.value.advice, "the advice is about the token"


def test_clocks_may_differ_by_the_leeway() -> None:
    assert proven(token(RSA, fresh(exp=seconds(-29), nbf=seconds(29), iat=seconds(29)))).caller == "id:ann"


def test_only_public_keys_for_signatures_are_read() -> None:
    with pytest.warns(SecurityWarning):
        weak = RSAKey.generate_key(1024).as_dict(private=False)
    entries = [
        {"kty": "oct", "k": encoded(SECRET.encode()), "kid": "shared"},
        {**RSA.as_dict(private=False), "use": "enc", "kid": "encrypting"},
        *({"kty": "AKP", "kid": "of tomorrow"}, {"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "short"}),
        *({**weak, "kid": "weak"}, "no key", EC.as_dict(private=False)),
    ]
    assert [key.kid for key in read_keys(json.dumps({"keys": entries}).encode())] == ["two"]


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"keys": 5}', b'{"keys": []}', b"<html>", b'{"keys": [{}]}', b"[" * 5000]
)
def test_any_other_document_has_no_keys(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|public key|Expecting"):
        read_keys(text)


@pytest.fixture(scope="module")
def orders(shared_orders: str) -> str:
    return shared_orders


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    async with Provider(RSA).running() as one:
        yield one


def issuer(provider: Provider, **more: Any) -> dict[str, Any]:
    return {"name": "id", "issuer": ISSUER, "audiences": [AUDIENCE], "keys": provider.url, **more}


def grants(*callers: str, groups: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    actions = ["read", "write", "call", "lock"]
    limits = {"tables": ["*"], "functions": ["*"], "resources": ["**"]}
    return [{"callers": [*callers, *(f"group:{name}" for name in groups)], "actions": actions, **limits}]


class Asking:
    """Requests with one credential."""

    def __init__(self, origin: str, credential: str) -> None:
        self._origin = origin
        self._headers = {"Authorization": f"Bearer {credential}"}

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        async with httpx.AsyncClient(base_url=self._origin, timeout=PATIENCE) as client:
            return await client.request(method, path, json=body, headers={**self._headers, **sent})

    async def status(self) -> int:
        return (await self("GET", "/v1/tables/orders?id=eq.1")).status_code


async def test_a_token_is_a_caller_on_every_route(orders: str, provider: Provider) -> None:
    events = Events()
    settings = config(
        orders, issuers=[issuer(provider, groups_claim=["groups"])], grants=grants("id:ann", groups=("id:writers",))
    )
    async with running(settings, events) as origin:
        ann, good = Asking(origin, text := token(RSA, claims())), {"fencing_token": "5"}
        for _ in range(4):  # planned, by a recipe, and without a task
            answer = await ann("PATCH", "/v1/tables/orders?id=eq.1", {"state": "paid"}, **good)
            assert answer.status_code == 204, answer.text
        lease = await ann("POST", "/v1/leases/job/1", {"holder": "a", "ttl": 60})
        assert lease.status_code == 201, lease.text
        in_group = Asking(origin, token(RSA, claims("bob", groups=["writers"])))
        assert await in_group.status() == 200
        taken = await in_group("DELETE", f"/v1/leases/job/1/{lease.json()['lease']}")
        assert taken.status_code != 204  # the lease is of another caller
        denied = await Asking(origin, token(RSA, claims("eve", groups=["readers"])))("GET", "/v1/tables/orders")
        assert (denied.status_code, denied.json()["code"]) == (403, "denied")
        assert "id:eve" in denied.json()["message"]
        # Clients of Supabase send this: a public token as apikey, and that of the user beside it.
        public = token(RSA, claims("public"))
        assert (await ann("GET", "/v1/tables/orders", apikey=public)).status_code == 200
        assert (await in_group("GET", "/v1/tables/orders", apikey="writer-api-key")).status_code == 401
        stale = await ann("PATCH", "/v1/tables/orders?id=eq.1", {"state": "late"}, fencing_token="4")
        assert stale.status_code == 412
        listed = (await ann("GET", "/v1/rejections")).json()
    assert {entry["caller"] for entry in listed["rejections"]} == {"id:ann"}
    callers = {event.caller for event in events if isinstance(event, RequestAnswered)}
    assert {"id:ann", "id:bob", "id:eve"} <= callers
    # Nothing of a token is in an event, and so in no log, or on record.
    told = repr(list(events)) + json.dumps(listed)
    assert not any(part in told for part in text.split("."))


async def test_a_token_that_has_ended_proves_nothing_more_and_its_stream_ends(
    orders: str, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the stream of a token of five minutes would show the record for ever."""
    past: list[datetime] = []  # the gateway's clock, once it has passed the end
    monkeypatch.setattr(app, "clock", lambda: past[0] if past else datetime.now(UTC))
    monkeypatch.setattr(StreamLimits, "__init__", partialmethod(StreamLimits.__init__, heartbeat=0.2))
    auditors = [*grants("id:*"), {"callers": ["id:*"], "actions": ["audit"], "everything": True}]
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    async with running(config(orders, issuers=[issuer(provider)], grants=auditors)) as origin:
        headers = {"Authorization": f"Bearer {token(RSA, claims(exp=int(until.timestamp())))}"}
        async with httpx.AsyncClient(base_url=origin, timeout=PATIENCE, headers=headers) as client:
            write = partial(
                client.patch, "/v1/tables/orders?id=eq.1", json={"state": "paid"}, headers={"Fencing-Token": "5"}
            )
            for _ in range(4):
                assert (await write()).status_code == 204
            async with asyncio.timeout(PATIENCE), client.stream("GET", "/v1/events/stream") as stream:
                assert stream.status_code == 200
                lines = stream.aiter_lines()
                while await anext(lines) != ": still here":
                    pass
                past.append(until + timedelta(seconds=LEEWAY))
                assert [line async for line in lines if line.startswith("data")] == []
            answer = await write()
            assert (answer.status_code, "has expired" in answer.text) == (401, True)
            for path in ("/v1/events/stream", "/v1/leases/job/1"):
                assert (await client.get(path)).status_code == 401


async def test_rows_in_a_kept_answer_need_the_grant_to_read_them(orders: str, provider: Provider) -> None:
    """The caller has left the group that reads. The same request is denied then, so its kept answer is, too."""
    limits = {"tables": ["public.orders"]}
    rules = [
        {"callers": ["id:ann"], "actions": ["write"], **limits},
        {"callers": ["group:id:readers"], "actions": ["read"], **limits},
    ]
    settings = config(orders, issuers=[issuer(provider, groups_claim=["groups"])], grants=rules)
    writes = [{"method": "PATCH", "table": "orders", "query": "id=eq.1", "body": {"state": "x"}, "token": "5"}]
    async with running(settings) as origin:
        reader = Asking(origin, token(RSA, claims("ann", groups=["readers"])))
        writer = Asking(origin, token(RSA, claims("ann", groups=[])))
        alone = ("PATCH", "/v1/tables/orders?id=eq.1", {"state": "x"})
        for who, shown in ((reader, 200), (writer, 403), (reader, 200)):
            answer = await who(*alone, fencing_token="5", prefer="return=representation", idempotency_key='"one"')
            assert (answer.status_code, "state" in answer.text) == (shown, shown == 200), answer.text
            listed = {"writes": [{**writes[0], "prefer": "return=representation"}]}
            answer = await who("POST", "/v1/transaction", listed, idempotency_key='"two"')
            assert (answer.status_code, "state" in answer.text) == (shown, shown == 200), answer.text


async def test_names_of_one_issuer_are_no_names_of_another(orders: str, provider: Provider) -> None:
    async with Provider(other := rsa_key("one")).running() as second:
        issuers = [issuer(provider), issuer(second, name="other", issuer="https://other.example")]
        settings = config(orders, issuers=issuers, grants=[*grants("id:ann"), *grants("other:svc-*")])
        async with running(settings) as origin:

            async def status(key: Any, **content: Any) -> int:
                return await Asking(origin, token(key, claims(**content))).status()

            assert await status(RSA, subject="ann") == 200
            assert await status(other, subject="ann", iss="https://other.example") == 403
            assert await status(other, subject="svc-1", iss="https://other.example") == 200
            assert await status(RSA, subject="svc-1") == 403
            # Signed by the other issuer, in the name of the first; and of an issuer that is not trusted.
            assert await status(other, subject="ann") == 401
            assert await status(RSA, subject="ann", iss="https://third.example") == 401
            assert await status(RSA, subject="writer") == 403  # not the caller of the configuration


async def test_keys_rotate_and_the_old_ones_stop(
    orders: str, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuers, "PAUSE", 0.2)
    monkeypatch.setattr(issuers, "REFRESH", 0.2)
    events = Events()
    async with running(config(orders, issuers=[issuer(provider)], grants=grants("id:*")), events) as origin:
        old, new = Asking(origin, token(RSA, claims())), ec_key("two")
        assert await old.status() == 200
        provider.keys = [RSA, new]
        fresh = Asking(origin, token(new, claims(), "ES256"))
        async with asyncio.timeout(PATIENCE):
            while await fresh.status() != 200:
                await asyncio.sleep(0.05)
        assert await old.status() == 200
        provider.keys = [new]
        async with asyncio.timeout(PATIENCE):
            while await old.status() != 401:
                await asyncio.sleep(0.05)
        assert await fresh.status() == 200
    assert [event.keys for event in events if isinstance(event, KeysChanged)] == [1, 2, 1]


async def test_unknown_keys_do_not_become_a_storm_at_the_issuer(orders: str, provider: Provider) -> None:
    async with running(config(orders, issuers=[issuer(provider)], grants=grants("id:*"))) as origin:
        assert await Asking(origin, token(RSA, claims())).status() == 200
        asked = len(provider.asked)
        wrong = [Asking(origin, token(RSA, claims(), kid=f"of-a-stranger-{number}")).status() for number in range(30)]
        assert set(await asyncio.gather(*wrong)) == {401}
        assert len(provider.asked) <= asked + 1


async def endless() -> AsyncIterator[bytes]:
    while True:
        yield b" " * 65536
        await asyncio.sleep(0)


HOSTILE: dict[str, Any] = {
    "an error": lambda _: Response("no", 500),
    "without an end": lambda _: StreamingResponse(endless()),
    "a redirect": lambda provider: RedirectResponse(f"{provider.url}?elsewhere"),
    "a secret in place of a key": lambda _: Response(
        json.dumps({"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "one"}]}), 200
    ),
}


@pytest.mark.parametrize("kind", first(HOSTILE))
async def test_an_issuer_that_answers_wrongly_is_no_reason_to_believe_anybody(
    orders: str, provider: Provider, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A good token is asked to come again, because its keys may be had later. Known keys stay known."""
    monkeypatch.setattr(issuers, "PAUSE", 0.1)
    events = Events()
    answer = HOSTILE[kind]
    provider.answer = answer(provider)
    async with running(config(orders, issuers=[issuer(provider)], grants=grants("id:*")), events) as origin:
        ann = Asking(origin, token(RSA, claims()))
        refused = await ann("GET", "/v1/tables/orders")
        assert (refused.status_code, "issuer id" in refused.text) == (503, True), refused.text
        assert (await Asking(origin, "writer-api-key")("GET", "/v1/leases/job/1")).status_code == 403
        provider.answer = None
        async with asyncio.timeout(PATIENCE):
            while await ann.status() != 200:
                await asyncio.sleep(0.05)
        provider.answer = answer(provider)
        await asyncio.sleep(0.3)
        assert await ann.status() == 200
    assert any(isinstance(event, ServiceUnreachable) and event.service == "issuer" for event in events)


async def test_a_bug_in_reading_keys_does_not_end_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issuers, "PAUSE", 0.01)
    outcomes = iter([KeyError("of ours"), secret_key(b"k" * 32)])

    def read(_: bytes) -> Any:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(issuers, "read_keys", read)
    place, events = tmp_path / "keys", Events()
    place.touch()
    kept = issuers.KeySet(Issuer(name="id", issuer=ISSUER, audiences=(AUDIENCE,), keys=str(place)), events)
    async with issuers.keeping({"id": kept}), asyncio.timeout(PATIENCE):
        while not kept.version:
            await asyncio.sleep(0.01)
    assert events == [ServiceUnreachable("issuer", "id: KeyError"), KeysChanged("id", 1)]


async def test_an_issuer_that_hangs_delays_nobody_else(
    orders: str, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuers, "TIMEOUT", 2 * PATIENCE)
    monkeypatch.setattr(issuers, "PAUSE", 0.0)
    first, second = Hanging(), Hanging()
    provider.answer = first
    settings = config(orders, issuers=[issuer(provider)], grants=[*grants("id:*"), *grants("writer")])
    async with running(settings) as origin:
        waiting = asyncio.create_task(Asking(origin, token(RSA, claims())).status())
        async with asyncio.timeout(PATIENCE):
            while not provider.asked:
                await asyncio.sleep(0.01)
        assert await Asking(origin, "writer-api-key").status() == 200
        assert not waiting.done()
        # The next fetch is given up, though the issuer still hangs.
        monkeypatch.setattr(issuers, "TIMEOUT", 0.3)
        provider.answer = second
        first.may.set()
        assert await waiting == 503
        assert len(provider.asked) > 1
    second.may.set()


async def test_tokens_name_roles_of_the_database(orders: str) -> None:
    """The conventions of PostgREST: a shared secret, and the claim ``role``."""
    session = await asyncpg.connect(orders)
    await session.execute(f"CREATE ROLE editor; CREATE ROLE viewer; GRANT editor, viewer TO {GATEWAY}")
    await session.execute("GRANT SELECT, UPDATE ON orders TO editor; GRANT SELECT ON orders TO viewer")
    await rights.let_act(orders, ["editor", "viewer"])
    key = shared_key(SECRET)
    rule = {"callers": ["app:*"], "claim": ["role"], "role": ["editor", "viewer"]}
    issuers = [{"name": "app", "secret": SECRET}]
    settings = config(orders, issuers=issuers, grants=grants("app:*"), postgres={"roles": [rule]})
    try:
        async with running(settings) as origin:

            async def patch(**content: Any) -> httpx.Response:
                text = token(key, claims(iss=None, aud=None, **content), "HS256", kid=None)
                body = {"state": "paid"}
                return await Asking(origin, text)("PATCH", "/v1/tables/orders?id=eq.1", body, fencing_token="5")

            assert (await patch(role="editor")).status_code == 204
            assert (await patch(role=["other", "editor"])).status_code == 204
            assert (await patch(role="viewer")).status_code == 403
            for role in ("postgres", GATEWAY, "none", None, 5, {"editor": 1}, "editor\x00"):
                refused = await patch(role=role)
                assert (refused.status_code, refused.json()["code"]) == (403, "denied"), role
    finally:
        await session.execute("DROP OWNED BY editor, viewer; DROP ROLE editor, viewer")
        await session.close()


async def test_the_keys_may_be_in_a_file_and_the_address_may_want_a_token(
    orders: str, provider: Provider, tmp_path: Any
) -> None:
    (tmp_path / "token").write_text("of the pod\n")
    async with running(
        config(orders, issuers=[issuer(provider, token_path=str(tmp_path / "token"))], grants=grants("id:*"))
    ) as origin:
        assert await Asking(origin, token(RSA, claims())).status() == 200
    assert provider.asked[0].headers["authorization"] == "Bearer of the pod"
    # An API server of Kubernetes answers 406 to any other request.
    assert "application/jwk-set+json" in provider.asked[0].headers["accept"]
    (tmp_path / "keys.json").write_bytes(provider.document())
    from_file = issuer(provider, keys=str(tmp_path / "keys.json"))
    async with running(config(orders, issuers=[from_file], grants=grants("id:*"))) as origin:
        assert await Asking(origin, token(RSA, claims())).status() == 200
