"""The tokens that each policy accepts and refuses, forged ones among them, on each way to write."""

import asyncio
from typing import Any, cast

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.db.database import Database
from gateway.errors import ResourceMalformed
from gateway.fencing.decision import Presented
from gateway.fencing.sequencer import Signer
from gateway.fencing.token import MAX_EPOCH, MAX_VALUE, Token
from gateway.fencing.token_policy import (
    MAX_EPOCHS,
    MAX_JUMP,
    Policies,
    Policy,
    Reason,
    TokenFacts,
    TokenPolicy,
    is_plausible,
    judge,
    relax_to_order,
)
from gateway.observe.events import StepReached
from gateway.token_admission import Admission
from tests.fencing.policy_gateway import FORGED, KEYS, WAYS, Shown, Way, World, client, row_of, sequencer
from tests.objects.clients import call, outcome
from tests.objects.raw import head, send
from tests.tiers import first

ANY, ISSUED, SIGNED, LIVE = (Policy(tokens) for tokens in TokenPolicy)
FENCE = Token(2, 34)

# Close to where something changes, or anywhere.
values = st.sampled_from(
    [0, 1, 33, 34, 35, MAX_JUMP, MAX_JUMP + 1, MAX_JUMP + 34, MAX_JUMP + 35, MAX_VALUE]
) | st.integers(0, MAX_VALUE)
epochs = st.sampled_from([0, 1, 2, MAX_EPOCHS, MAX_EPOCHS + 1, MAX_EPOCHS + 2, MAX_EPOCH]) | st.integers(0, MAX_EPOCH)
tokens = st.builds(Token, epochs, values)
jumps = st.sampled_from([1, 1000, MAX_JUMP, MAX_VALUE])


@pytest.mark.parametrize(
    ("token", "fence", "plausible"),
    [
        (Token(0, MAX_JUMP + 1), None, False),
        (Token(MAX_EPOCHS, MAX_JUMP), None, True),
        (Token(MAX_EPOCHS + 1, 0), None, False),
        (Token(2, 34 + MAX_JUMP), FENCE, True),
        (Token(2, 35 + MAX_JUMP), FENCE, False),
        (Token(3, MAX_JUMP), FENCE, True),
        (Token(3, MAX_JUMP + 1), FENCE, False),
        (Token(2 + MAX_EPOCHS, 0), FENCE, True),
        (Token(3 + MAX_EPOCHS, 0), FENCE, False),
    ],
)
def test_how_far_a_token_may_be_ahead(token: Token, fence: Token | None, *, plausible: bool) -> None:
    assert is_plausible(token, fence, MAX_JUMP) is plausible


@given(tokens, tokens, tokens, jumps)
def test_what_is_plausible_once_stays_so(token: Token, one: Token, other: Token, jump: int) -> None:
    """The fence may have risen since it was looked at, and need not have been looked at at all."""
    earlier, later = sorted((one, other))
    if is_plausible(token, None, jump):
        assert is_plausible(token, earlier, jump)
    if is_plausible(token, earlier, jump):
        assert is_plausible(token, later, jump)


@given(tokens, tokens, jumps)
def test_what_is_not_higher_is_never_implausible(one: Token, other: Token, jump: int) -> None:
    lower, higher = sorted((one, other))
    assert is_plausible(lower, higher, jump)


@pytest.mark.parametrize(
    ("policy", "token", "standing", "reason"),
    [
        (ANY, Token(0, 5), TokenFacts(), None),
        (ANY, Token(0, MAX_VALUE), TokenFacts(), Reason.JUMP),
        (ANY, Token(0, MAX_VALUE), TokenFacts(FENCE), None),
        (ISSUED, Token(0, 5), TokenFacts(issued=True), None),
        (ISSUED, Token(0, 5), TokenFacts(), Reason.NOT_ISSUED),
        (ISSUED, Token(0, 5), TokenFacts(authentic=False), Reason.FORGED),
        (ISSUED, FENCE, TokenFacts(FENCE), None),
        (ISSUED, Token(3, 0), TokenFacts(Token(3, 0)), Reason.NOT_ISSUED),
        (ISSUED, Token(3, 0), TokenFacts(Token(3, 0), issued=True), Reason.NOT_ISSUED),
        (ISSUED, Token(3, 0), TokenFacts(Token(3, 1)), None),
        (ANY, Token(3, 0), TokenFacts(Token(3, 0)), None),
        (ISSUED, Token(2, 35), TokenFacts(FENCE), Reason.NOT_ISSUED),
        (SIGNED, Token(0, 5), TokenFacts(authentic=True), None),
        (SIGNED, Token(0, 5), TokenFacts(), Reason.NO_SEQUENCER),
        (SIGNED, Token(0, 5), TokenFacts(authentic=False, issued=True, held=True), Reason.FORGED),
        (SIGNED, FENCE, TokenFacts(FENCE), Reason.NO_SEQUENCER),
        (LIVE, FENCE, TokenFacts(FENCE, held=True), None),
        (LIVE, FENCE, TokenFacts(FENCE, issued=True), Reason.NOT_HELD),
        (LIVE, FENCE, TokenFacts(FENCE, authentic=False), Reason.FORGED),
        (LIVE, Token(2, 35), TokenFacts(FENCE, issued=True, authentic=True), Reason.NOT_HELD),
        *((policy, Token(2, 33), TokenFacts(FENCE), None) for policy in (ANY, ISSUED, SIGNED, LIVE)),
        (relax_to_order(LIVE), Token(2, 35), TokenFacts(FENCE), None),
        (relax_to_order(LIVE), Token(2, MAX_VALUE), TokenFacts(FENCE), Reason.JUMP),
    ],
)
def test_which_tokens_are_taken(policy: Policy, token: Token, standing: TokenFacts, reason: Reason | None) -> None:
    assert judge(policy, token, standing) is reason


def test_the_first_pattern_that_matches_holds() -> None:
    policies = Policies([("job/7", ANY), ("job/*", SIGNED), ("job/**", LIVE), ("order/2", ISSUED)])
    names = ("job/7", "job/8", "job/8/x", "job", "order/1", "order/2")
    assert [policies.of(name) for name in names] == [ANY, SIGNED, LIVE, ANY, ANY, ISSUED]
    assert [policies.ask_every_time(name) for name in names] == [False, True, True, False, False, False]
    everywhere = Policies([("job/*", ANY), ("**", SIGNED)])
    assert [everywhere.ask_every_time(name) for name in ("order/1", "job/1")] == [True, False]
    assert not Policies().ask_every_time("job/1")


@pytest.mark.parametrize("pattern", ["", "job/a*", "**/job", "job/**/x", "é", "a b"])
def test_what_is_no_pattern(pattern: str) -> None:
    with pytest.raises(ResourceMalformed):
        Policies([(pattern, ANY)])


# Served: the tokens that each policy accepts and refuses -------------------------------------------------------------


PATCH, PUT = WAYS["patch"], WAYS["put"]
NOT_TAKEN = (403, "token-implausible")


async def patch(world: World, resource: str, token: str | None = None, sequencer: str | None = None) -> httpx.Response:
    await world.insert(resource)
    url, headers = f"/v1/tables/docs?{row_of(resource)}", Shown(token, sequencer).headers
    return await world.api.patch(url, json={"note": "after"}, headers=headers)


def fast(world: World) -> int:
    """How many writes have taken the fast path so far."""
    return sum(isinstance(one, StepReached) and one.name == "tables.fast.after" for one in world.stage.events)


class TestAny:
    async def test_what_is_ordinary_is_taken_without_a_look_at_the_database(self) -> None:
        blind = Admission(cast(Database, object()))
        tokens = [Token(0, 0), Token(0, 34), Token(0, MAX_JUMP), Token(1000, MAX_JUMP)]
        assert await blind.admit((f"r/{token}", Presented(token)) for token in tokens) == []
        with pytest.raises(AttributeError):
            await blind.admit([("r", Presented(Token(0, MAX_JUMP + 1)))])

    async def test_what_is_far_from_nothing_may_be_near_to_its_fence(self, world: World, name: str) -> None:
        for token in (MAX_JUMP, 2 * MAX_JUMP, 3 * MAX_JUMP):
            assert (await PATCH(world, f"any/{name}", Shown(str(token))))[0] == 204
        assert (await PUT(world, f"any/{name}", Shown(str(4 * MAX_JUMP))))[0] == 200
        assert await PATCH(world, f"any/{name}", Shown(str(5 * MAX_JUMP + 1))) == NOT_TAKEN
        assert await world.fence(f"any/{name}") == str(4 * MAX_JUMP)

    async def test_the_error_says_what_is_wrong_and_what_to_do(self, world: World, name: str) -> None:
        assert (await PATCH(world, f"any/{name}", Shown("34")))[0] == 204
        answer = await world.api.post(f"/v1/fences/any/{name}/barrier", json={"token": FORGED[0]})
        problem = answer.json()
        (rejection,) = await world.database.fetch("SELECT id FROM fencing.rejection WHERE resource = $1", f"any/{name}")
        facts = ("resource", "token", "fence", "policy", "reason", "rejection")
        assert [problem[fact] for fact in facts] == [
            f"any/{name}", FORGED[0], "34", "any", "jump", str(rejection["id"]),
        ]  # fmt: skip
        assert "max_jump" in problem["advice"]
        assert "epoch" in problem["advice"]

    @pytest.mark.parametrize("way", first(["patch", "put", "session", "barrier", "credentials", "transaction"]))
    async def test_beside_a_token_it_is_a_proof_and_no_more(self, world: World, name: str, way: str) -> None:
        """One lock may be for many resources of other names."""
        shown = Shown("34", sequencer(f"job/{name}", "34"))
        assert (await WAYS[way](world, f"any/{name}", shown))[0] in (200, 204)


class TestIssued:
    @pytest.mark.parametrize("way", first(["patch", "put", "barrier"]))
    async def test_nothing_beyond_the_counter(self, world: World, name: str, way: str) -> None:
        resource = f"issued/{name}"
        assert (await WAYS[way](world, resource, Shown("1")))[0] == 403
        token = int((await world.leased(resource))["token"])
        for number, passes in ((token + 1, False), (token, True), (token + 1, False), (token, True)):
            status, _ = await WAYS[way](world, resource, Shown(str(number)))
            assert status in ((200, 204) if passes else (403,))
        assert await world.fence(resource) == str(token)

    async def test_a_lease_that_is_over_was_issued_all_the_same(self, world: World, name: str) -> None:
        for holder in ("ann", "bob"):
            lease = await world.leased(f"issued/{name}", holder)
            await world.released(lease)
            assert (await PATCH(world, f"issued/{name}", Shown(lease["token"])))[0] == 204
        assert await PATCH(world, f"issued/{name}", Shown("1")) == (412, "token-stale")


class TestSigned:
    @pytest.mark.parametrize("way", first(["patch", "put", "presigned", "metadata", "barrier"]))
    async def test_the_proof_is_wanted_each_time(self, world: World, name: str, way: str) -> None:
        resource = f"signed/{name}"
        lease = await world.leased(resource)
        token, proof = lease["token"], lease["sequencer"]
        for shown, passes in (
            (Shown(token), False),
            (Shown(token, proof), True),
            (Shown(token), False),
            (Shown(token, proof[:-1]), False),
            (Shown(token, proof[:-1] + ("A" if proof[-1] != "A" else "E")), False),
            (Shown(token, sequencer(resource, token, "shared", Signer(["another".ljust(32)]))), False),
            (Shown(token, sequencer(resource, token, signer=Signer(KEYS[1:]))), True),
            (Shown(token, sequencer(resource, token, "shared")), True),
        ):
            status, _ = await WAYS[way](world, resource, shown)
            assert (status in (200, 204)) is passes, shown
            assert status in (200, 204, 403), shown

    @pytest.mark.parametrize("way", first(["patch", "put", "presigned", "metadata", "session", "form"]))
    async def test_one_of_another_resource_or_token(self, world: World, name: str, way: str) -> None:
        resource = f"signed/{name}"
        lease = await world.leased(resource)
        other = sequencer(f"{resource}-other", lease["token"])
        assert (await WAYS[way](world, resource, Shown(lease["token"], other)))[0] == 403
        assert (await WAYS[way](world, resource, Shown(lease["token"], sequencer(resource, "9"))))[0] == 400
        if way != "form":  # a form names the token, too
            assert (await WAYS[way](world, resource, Shown(sequencer=other)))[0] == 422
        assert await world.fence(resource) is None

    async def test_credentials_for_many_resources_prove_one(self, world: World, name: str) -> None:
        one, other = f"signed/{name}", f"signed/{name}-other"
        shown = Shown("1", sequencer(one, "1"))
        assert await WAYS["wide credentials"](world, other, shown) == (403, "ImplausibleFencingToken")
        assert await WAYS["wide credentials"](world, one, shown) == (200, "")

    async def test_no_recipe_that_was_learnt_from_another_resource_counts(self, world: World, name: str) -> None:
        """Requests of one form: what is known of it must not carry over to a resource with another policy."""
        for _ in range(3):
            assert (await patch(world, f"any/{name}", token="1")).status_code == 204
        lease = await world.leased(f"signed/{name}")
        assert (await patch(world, f"signed/{name}", sequencer=lease["sequencer"])).status_code == 204
        answer = await patch(world, f"signed/{name}", token=lease["token"])
        assert (answer.status_code, answer.json()["code"]) == NOT_TAKEN
        assert "Fencing-Sequencer" in answer.json()["hint"]

    async def test_a_transaction_may_carry_them_in_its_head(self, world: World, name: str) -> None:
        resource = f"signed/{name}"
        await world.insert(resource)
        lease = await world.leased(resource)
        write = {"method": "PATCH", "table": "docs", "query": row_of(resource), "body": {"note": "x"}}
        for more in ({}, {"token": lease["token"]}):
            headers = {"Fencing-Sequencer": lease["sequencer"]}
            answer = await world.api.post("/v1/transaction", json={"writes": [write | more]}, headers=headers)
            assert answer.status_code == 200, answer.text
        answer = await world.api.post("/v1/transaction", json={"writes": [write | {"token": lease["token"]}]})
        assert (answer.status_code, answer.json()["code"], answer.json()["write"]) == (*NOT_TAKEN, 0)

    async def test_an_upload_goes_on_under_the_proof_it_was_opened_with(self, world: World, name: str) -> None:
        lease = await world.leased(f"signed/{name}", "uploader")
        key, bare = f"signed/{name}/file", client(world, Shown())
        opened = await call(client(world, Shown(sequencer=lease["sequencer"])).create_multipart_upload, Key=key)
        place = {"Key": key, "UploadId": opened["UploadId"]}
        part = await call(bare.upload_part, **place, PartNumber=1, Body=b"x")
        parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
        assert await outcome(bare.complete_multipart_upload, **place, MultipartUpload=parts) == (200, "")
        assert await world.fence(f"signed/{name}") == lease["token"]

    @pytest.mark.parametrize(
        ("headers", "unsigned", "status", "code"),
        [
            ([], [("fencing-sequencer", "PROOF")], 403, "AccessDenied"),
            ([], [("fencing_sequencer", "PROOF")], 400, "InvalidRequest"),
            ([("x-amz-meta-fencing_sequencer", "PROOF")], [], 400, "InvalidRequest"),
            ([("fencing-sequencer", "PROOF")], [("fencing-sequencer", "PROOF")], 400, "InvalidRequest"),
            ([("fencing-sequencer", "PROOF, PROOF")], [], 400, "FencingSequencerMalformed"),
        ],
    )
    async def test_what_is_not_trusted_of_an_s3_request(
        self, world: World, name: str, headers: Any, unsigned: Any, status: int, code: str
    ) -> None:
        proof = (await world.leased(f"signed/{name}"))["sequencer"]
        sent = [[(key, value.replace("PROOF", proof)) for key, value in pairs] for pairs in (headers, unsigned)]
        path = f"/bucket/signed/{name}/file"
        request = head(world.stage.origin, "PUT", path, [*sent[0], ("content-length", "1")], unsigned=sent[1])
        reply = await send(world.stage.origin, request + b"x")
        assert reply is not None
        assert (reply.status, reply.code) == (status, code)
        assert proof.rpartition(":")[2].encode() not in reply.body
        assert await world.fence(f"signed/{name}") is None

    async def test_no_proof_gets_on_record_or_into_the_log(self, world: World, name: str) -> None:
        """Refused as stale, so that its whole request is on record."""
        resource = f"signed/{name}"
        stale = sequencer(resource, "1")
        assert (await PATCH(world, resource, Shown(sequencer=sequencer(resource, "2"))))[0] == 204
        for way in ("patch", "presigned", "session", "metadata", "barrier", "credentials"):
            assert (await WAYS[way](world, resource, Shown(sequencer=stale)))[0] == 412
        records = await world.database.fetch("SELECT r::text FROM fencing.rejection r WHERE resource = $1", resource)
        assert len(records) == 6
        secret = stale.rpartition(":")[2]
        assert not any(secret in record["r"] for record in records)
        assert not any(secret in repr(event) for event in world.stage.events)


class TestLive:
    @pytest.mark.parametrize("how", ["released", "lapsed", "broken"])
    async def test_once_the_lease_is_over_held_tokens_are_refused_too(self, world: World, name: str, how: str) -> None:
        resource = f"live/{name}"
        lease = await world.leased(resource)
        shown = Shown(lease["token"])
        assert (await PATCH(world, resource, shown))[0] == 204
        assert (await PATCH(world, resource, shown))[0] == 204
        assert (await PUT(world, resource, shown))[0] == 200
        if how == "broken":
            wanted = {"expected": lease["token"], "reason": "a test"}
            assert (await world.admin.post(f"/v1/breaks/{resource}", json=wanted)).status_code == 200
        elif how == "lapsed":
            await world.lapsed(lease)
        else:
            await world.released(lease)
        answer = await patch(world, resource, token=lease["token"])
        assert (answer.status_code, answer.json()["code"]) == NOT_TAKEN
        assert "Acquire the lock again" in answer.json()["hint"]
        assert "reason: not-held" in answer.json()["details"]
        assert (await PUT(world, resource, shown))[0] == 403
        assert await world.fence(resource) == lease["token"]

    async def test_a_lease_that_ends_while_the_body_comes(self, world: World, name: str) -> None:
        resource = f"live/{name}"
        lease = await world.leased(resource)
        headers = [("fencing-token", lease["token"]), ("content-length", "5"), ("expect", "100-continue")]
        reader, writer = await asyncio.open_connection(*world.stage.origin.removeprefix("http://").split(":"))
        writer.write(head(world.stage.origin, "PUT", f"/bucket/{resource}/file", headers))
        assert (await reader.readuntil(b"\r\n\r\n")).split()[1] == b"100", "it is admitted"
        await world.released(lease)
        writer.write(b"after")
        assert (await reader.readline()).split()[1] == b"403"
        writer.close()
        assert world.stage.body(f"{resource}/file") is None


@pytest.mark.parametrize(("policy", "takes_it"), [("any", True), ("issued", True), ("signed", False), ("live", False)])
async def test_writes_under_tokens_that_need_no_look_take_the_fast_path(
    world: World, name: str, policy: str, *, takes_it: bool
) -> None:
    lease = await world.leased(f"{policy}/{name}")
    shown = lease["token"], lease["sequencer"] if policy == "signed" else None
    for _ in range(2):  # the form of these requests is known
        assert (await patch(world, f"any/{name}-before", *shown[:1])).status_code == 204
    before = fast(world)
    for _ in range(3):
        assert (await patch(world, f"{policy}/{name}", *shown)).status_code == 204
    assert fast(world) - before >= 2 if takes_it else fast(world) == before


class TestObserve:
    """The rules of table and bucket only observe: what is not taken passes, is noted, and raises nothing."""

    async def test_a_forged_write_to_a_watched_table_passes_and_is_on_record(self, world: World, name: str) -> None:
        resource = f"watched/{name}"
        await world.database.execute("INSERT INTO watched VALUES ($1, 'before')", name)
        url = f"/v1/tables/watched?name=eq.{name}"
        for token, note in (("7", "first"), (FORGED[0], "forged"), ("8", "last")):
            answer = await world.api.patch(url, json={"note": note}, headers={"Fencing-Token": token})
            assert (answer.status_code, "fencing-token" in answer.headers) == (204, token != FORGED[0])
            assert await world.database.fetchval("SELECT note FROM watched WHERE name = $1", name) == note
        assert await world.fence(resource) == "8"
        assert await world.on_record(resource) == [("token-implausible", FORGED[0], False)]

    async def test_a_list_of_writes_of_which_one_is_enforced(self, world: World, name: str) -> None:
        await world.database.execute("INSERT INTO watched VALUES ($1, 'before')", name)
        watched = {"method": "PATCH", "table": "watched", "query": f"name=eq.{name}", "body": {"note": "after"}}
        enforced = {"method": "POST", "table": "docs", "body": {"kind": "any", "name": name}, "token": "3"}
        writes = {"writes": [enforced, watched | {"token": FORGED[1]}]}
        answer = await world.api.post("/v1/transaction", json=writes)
        assert answer.status_code == 200, answer.text
        assert (await world.fence(f"any/{name}"), await world.fence(f"watched/{name}")) == ("3", None)
        assert await world.on_record(f"watched/{name}") == [("token-implausible", FORGED[1], False)]
        assert await world.on_record(f"any/{name}") == []

    async def test_a_forged_write_of_a_watched_object_passes_and_is_on_record(self, world: World, name: str) -> None:
        resource = f"watched/{name}"
        for token in ("7", FORGED[0], "8"):
            s3 = client(world, Shown(token))
            assert await outcome(s3.put_object, Key=f"{resource}/file", Body=token.encode()) == (200, "")
            assert world.stage.body(f"{resource}/file") == token.encode()
        assert await world.fence(resource) == "8"
        assert await world.on_record(resource) == [("token-implausible", FORGED[0], False)]


# Forged: refused on every write path, under every policy, and it locks out no holder ---------------------------------


STRANGER = Signer(["somebody else's key".ljust(32)])
REFUSED = {(403, "token-implausible"), (403, "ImplausibleFencingToken")}
DONE = (200, 201, 204)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("policy", first(["signed", "any", "issued", "live"]))
async def test_forgeries_are_refused_and_honest_tokens_go_on(world: World, name: str, policy: str, way: Way) -> None:
    """With what the lease service gives, before a forgery and after it: where the fence carries the token already."""
    resource = f"{policy}/{name}"
    proof = None if policy in ("any", "issued") else sequencer(resource, FORGED[0], signer=STRANGER)
    forgeries = [Shown(FORGED[0], proof), Shown(FORGED[1])]
    assert await way(world, resource, forgeries[0]) in REFUSED
    assert await world.fence(resource) is None
    assert (await world.row(resource), world.stage.body(f"{resource}/file")) in UNTOUCHED
    lease = await world.leased(resource, "uploader")
    honest = Shown(lease["token"], lease["sequencer"] if policy == "signed" else None)
    assert (await way(world, resource, honest))[0] in DONE
    before = await world.fence(resource)
    assert await way(world, resource, forgeries[1]) in REFUSED
    assert (await way(world, resource, honest))[0] in DONE
    assert await world.fence(resource) == before
    assert await world.on_record(resource) == [("token-implausible", one.token, True) for one in forgeries]


UNTOUCHED = {(row, body) for row in (None, "before") for body in (None, b"before")}
