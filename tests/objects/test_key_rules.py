"""Each key has exactly one resource, whichever caller names it, and a rule says how its writes are judged."""

from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import ConfigurationError, ResourceMalformed, StoreError
from gateway.fencing.decision import Enforcement, Equal
from gateway.fencing.resource import canonical, covers
from gateway.objects.key_rules import KeyRule, Resources
from gateway.observe.events import WriteRefused
from tests.doubles.s3 import S3Double
from tests.objects.clients import body_of, call, connect, opened, outcome
from tests.objects.object_gateway import Stage, module_stage, staged, store
from tests.objects.raw import ask, head

over_http = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("match", "template", "path", "resource"),
    [
        ("jobs/{id}/state.json", "job/{id}", "jobs/42/state.json", "job/42"),
        ("jobs/{id}/state.json", "job/{id}", "jobs/42/other.json", None),
        ("jobs/{id}/**", "job/{id}", "jobs/42/a/b", "job/42"),
        ("jobs/{id}/**", "job/{id}", "jobs/42", None),
        ("jobs/{id}/**", "job/{id}", "jobs//a", None),
        ("jobs/{id}/**", "job/{id}", "jobs/42/a\nb", "job/42"),
        ("jobs/{id}/**", "job/{id}", "jobs/a b%/x", "job/a%20b%25"),
        ("jobs/*/{part}", "part/{part}", "jobs/anything/7", "part/7"),
        ("jobs/*/{part}", "part/{part}", "jobs/a/b/7", None),
        ("*/{a}/{b}", "{b}/of/{a}", "bkt/x/y", "y/of/x"),
        ("jobs/a.b/{x}", "{x}", "jobs/aXb/1", None),
        ("logs/**", "{bucket}/all", "logs/a/b", "logs/all"),
        ("logs/{day}/**", "{bucket}/{day}/{key}", "logs/1/x y", "logs/1/1/x%20y"),
        ("logs/**", None, "logs/a//../b+c%2F", "s3/logs/a//..~/b+c%252F"),
        ("jobs/*", "one", "jobs/x/", None),
    ],
)
def test_patterns(match: str, template: str | None, path: str, resource: str | None) -> None:
    bucket, _, key = path.partition("/")
    assert KeyRule.compile(match, template).resource(bucket, key) == resource


UNUSABLE: list[tuple[str, str | None]] = [
    *((match, None) for match in ("bucket", "/key", "**", "**/a", "b/**/c", "b/a*", "b/a{x}", "b/{x", "b/x}", "b/{}")),
    *((match, None) for match in ("b/***", "b/{x}/{x}", "b/{key}", "{bucket}/x")),
    *(("b/{x}", template) for template in ("r/{y}", "r/{key}/{x}", "r/{x}{key}", "r/ {x}", "")),
    ("b/*", "r/{x}"),
]


@pytest.mark.parametrize(("match", "template"), UNUSABLE)
def test_rules_that_cannot_be_used(match: str, template: str | None) -> None:
    with pytest.raises(ConfigurationError):
        KeyRule.compile(match, template)


def test_the_first_rule_that_matches_decides() -> None:
    resources = Resources(
        [
            KeyRule.compile("b/locked/**", "locked", Enforcement.OBSERVE, Equal.STRICT),
            KeyRule.compile("b/{x}/**", "x/{x}"),
        ],
        mode=Enforcement.ENFORCE,
        equal=Equal.ACCEPT,
    )
    locked, other, default = (resources.target("b", key) for key in ("locked/a", "open/a", "open"))
    assert (locked.resource, locked.mode, locked.equal) == ("locked", Enforcement.OBSERVE, Equal.STRICT)
    assert (other.resource, other.mode, other.equal) == ("x/open", Enforcement.ENFORCE, Equal.ACCEPT)
    assert (default.resource, default.mode, default.equal) == ("s3/b/open", Enforcement.ENFORCE, Equal.ACCEPT)


@pytest.mark.parametrize(
    ("writable", "keys"),
    [
        (False, [".fencing-gateway/probe/x", "a/b/marker", ".fencing-gateway", "a", "a/b"]),
        (True, [".fencing-gateways", "a/c", "a/bc", "b"]),
    ],
)
def test_no_caller_writes_at_the_gateways_own_keys_or_in_their_way(keys: list[str], *, writable: bool) -> None:
    """On a store that keeps objects as files, a file with the name of a folder would be in the way."""
    resources = Resources(journals=["a/b/"])
    for key in keys:
        with nullcontext() if writable else pytest.raises(StoreError):
            assert resources.target("bucket", key).resource == f"s3/bucket/{key}"


def test_a_key_too_long_for_a_resource_is_refused_clearly() -> None:
    resources = Resources([KeyRule.compile("b/{id}/**", "job/{id}")])
    assert resources.target("b", "7/" + "k" * 1000).resource == "job/7"
    for key in ("k" * 510, "é" * 100):
        with pytest.raises(ResourceMalformed, match="too long to be a resource"):
            resources.target("b", key)


# Hypothesis also tries the words of the code. The gateway's own folder has no resource.
ANY_KEY = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda key: not key.startswith(".fencing-gateway")
)


@given(ANY_KEY, ANY_KEY)
def test_two_keys_never_share_a_default_resource(one: str, other: str) -> None:
    resources = Resources()
    names = [canonical(resources.target("bucket", key).resource) for key in (one, other)]
    assert (names[0] == names[1]) == (one == other)


SEGMENT = st.sampled_from(["a", "b", "ab", "", "*", "**", "%", "\u00e9"])


ANY_KEYS = st.lists(SEGMENT, min_size=1, max_size=4).map("/".join).filter(bool)


RULES = st.lists(
    st.sampled_from(
        [
            *(("bkt/a/**", "one"), ("bkt/{x}/**", "x/{x}"), ("bkt/{x}/{y}", "y-{y}/{x}"), ("bkt/*/b", "b/{key}")),
            *(("{z}/a/{x}/**", "z/{z}/{x}"), ("bkt/**", "in-{key}"), ("bkt/a/b", "s3/{bucket}/{key}/end")),
            *(("bkt/{x}/*", "w/{x}/{bucket}"), ("*/ab/**", None), ("bkt/{x}", "top/{x}")),
        ]
    ),
    max_size=3,
)


@given(RULES, ANY_KEYS, ANY_KEYS, st.integers(0, 12))
def test_patterns_cover_the_resources_below_a_prefix(
    rules: list[tuple[str, str | None]], key: str, begun: str, length: int
) -> None:
    """The resource of each key below a prefix is covered by one of the patterns."""
    resources = Resources([KeyRule.compile(*rule) for rule in rules])
    for prefix in (key[:length], begun):
        for whole in (prefix + key, prefix):
            if whole:
                resource = resources.target("bkt", whole).resource
                assert any(covers(pattern, resource) for pattern in resources.below("bkt", prefix)), (prefix, whole)


# Keys go through byte for byte, and each is a resource of its own.

# Each key with the resource it belongs to, behind s3/bucket/.
KEYS = [
    ("a/../b", "a/..~/b"),
    ("a/..~/b", "a/..~~/b"),
    ("b", "b"),
    ("/x", "/x"),
    ("x//y", "x//y"),
    ("x/y", "x/y"),
    ("%2f", "%252f"),
    ("a%2Fb", "a%252Fb"),
    ("a+b c", "a+b%20c"),
    ("a+b+c", "a+b+c"),
    ("\u00e9", "%C3%A9"),
    ("e\u0301", "e%CC%81"),
    ("tail/", "tail/"),
    ("..", "..~"),
    ("?a=b&c#d", "%3Fa%3Db&c%23d"),
    ("line\r\n\tfeed", "line%0D%0A%09feed"),
    ("~!$&'()*+,;=:@", "~!$&'()*+%2C;%3D:@"),
]


@over_http
async def test_an_object_is_stored_under_exactly_its_key(shared: Stage) -> None:
    """Keys that differ in their encoding never share an object, nor a resource."""
    s3 = connect(shared.origin, "33")
    for key, resource in KEYS:
        put = await call(s3.put_object, Key=key, Body=key.encode())
        assert put["ResponseMetadata"]["HTTPHeaders"]["fencing-resource"] == f"s3/bucket/{resource}"
        assert await body_of(s3, key) == key.encode()
    assert {key: shared.body(key) for key, _ in KEYS} == {key: key.encode() for key, _ in KEYS}
    for key, _ in KEYS:
        await call(s3.delete_object, Key=key)
        assert shared.body(key) is None
        left = [other for other, _ in KEYS if shared.body(other) is not None]
        assert left == [other for other, _ in KEYS[KEYS.index((key, _)) + 1 :]], "it took no other with it"


SPELLINGS = [("%41%2D~", "A-~"), ("a+b", "a+b"), ("a%2Bb", "a+b"), ("x%2Fy%2fz", "x/y/z"), ("'(*)'", "'(*)'")]


@over_http
@pytest.mark.parametrize(("raw", "key"), SPELLINGS)
async def test_spellings_of_one_key_are_one_resource(shared: Stage, raw: str, key: str) -> None:
    """Percent-encoding what need not be encoded changes nothing: a second spelling is no way around the fence."""
    resource = f"s3/bucket/{key}"
    assert (await shared.barrier(resource, "50")).status_code == 200
    for token, status in (("49", 412), ("50", 200)):
        length = [("content-length", "1")]
        request = head(shared.origin, "PUT", f"/bucket/{raw}", [("fencing-token", token)], unsigned=length)
        reply = await ask(shared.origin, request + b"x")
        assert reply.status == status
    assert reply.headers["fencing-resource"] == resource
    assert shared.body(key) == b"x"
    shared.double.store.bucket("bucket").objects.pop(key)


# The options of a rule: observe instead of enforce, one write per token, one holder per token.

USED, DUPLICATE = (412, "UsedFencingToken"), (412, "DuplicateFencingToken")


shared = module_stage(
    lambda: store("bucket"),
    objects=[
        {"match": "bucket/watched/**", "mode": Enforcement.OBSERVE},
        {"match": "bucket/strict/**", "equal": Equal.STRICT},
    ],
)


@over_http
async def test_a_write_in_observe_mode_passes_and_is_on_record(shared: Stage, key: str) -> None:
    key = f"watched/{key}"
    await call(connect(shared.origin, "34", "bob").put_object, Key=key, Body=b"new")
    assert await outcome(connect(shared.origin, "33", "ann").put_object, Key=key, Body=b"old") == (200, "")
    assert shared.body(key) == b"old"
    assert await outcome(connect(shared.origin).put_object, Key=key, Body=b"bare") == (200, "")
    assert shared.body(key) == b"bare"
    assert await outcome(connect(shared.origin, "32").delete_object, Key=key) == (204, "")
    assert shared.body(key) is None
    assert await outcome(connect(shared.origin).delete_object, Key=key) == (204, "")
    record = await shared.rejections(resource=f"s3/bucket/{key}")
    assert [(one["method"], one["token"], one["reason"], one["enforced"], one["fence"]) for one in record] == [
        ("DELETE", None, "token-required", False, "34"),
        ("DELETE", "32", "token-stale", False, "34"),
        ("PUT", None, "token-required", False, "34"),
        ("PUT", "33", "token-stale", False, "34"),
    ]
    assert [one["payload_size"] for one in record] == [None, None, 4, 3]
    told = [event.rejection for event in shared.events if isinstance(event, WriteRefused)]
    assert {one["id"] for one in record} <= {str(rejection.id) for rejection in told}
    assert await shared.fence(f"s3/bucket/{key}") == "34", "what was not obeyed lowers nothing"


@over_http
async def test_the_answer_tells_the_writer(shared: Stage, key: str) -> None:
    key = f"watched/{key}"

    async def told(operation: str, token: str | None, **arguments: Any) -> str | None:
        answer = await call(getattr(connect(shared.origin, token), operation), **arguments)
        told: str | None = answer["ResponseMetadata"]["HTTPHeaders"].get("fencing-would-refuse")
        return told

    assert await told("put_object", "34", Key=key, Body=b"new") is None
    assert await told("put_object", "33", Key=key, Body=b"old") == "token-stale; fence=34"
    assert await told("put_object", None, Key=key, Body=b"bare") == "token-required; fence=34"
    assert await told("copy_object", "33", Key=key, CopySource=f"bucket/{key}", MetadataDirective="REPLACE") == (
        "token-stale; fence=34"
    )
    completion = await opened(connect(shared.origin, "32"), key, [b"part"])
    assert await told("complete_multipart_upload", "32", **completion) == "token-stale; fence=34"
    several = {"Objects": [{"Key": key}, {"Key": f"{key}-other"}]}
    assert await told("delete_objects", "33", Delete=several) == "token-stale; fence=34"
    assert await told("delete_object", "33", Key=key) == "token-stale; fence=34"


@over_http
async def test_a_malformed_token_is_refused_even_where_it_is_only_observed(shared: Stage, key: str) -> None:
    refused = await outcome(connect(shared.origin, "033").put_object, Key=f"watched/{key}", Body=b"x")
    assert refused == (400, "FencingTokenMalformed")
    assert shared.body(f"watched/{key}") is None


@over_http
async def test_strict_lets_each_token_write_once(shared: Stage, key: str) -> None:
    key = f"strict/{key}"
    s3 = connect(shared.origin, "33")
    assert await outcome(s3.put_object, Key=key, Body=b"first") == (200, "")
    assert await outcome(s3.put_object, Key=key, Body=b"second") == USED
    assert await outcome(s3.delete_object, Key=key) == USED
    assert shared.body(key) == b"first"
    assert await outcome(connect(shared.origin, "34").delete_object, Key=key) == (204, "")
    assert [one["reason"] for one in await shared.rejections(resource=f"s3/bucket/{key}")] == ["token-used"] * 2


@over_http
async def test_a_strict_write_that_starts_again_is_not_its_own_second(shared: Stage, key: str) -> None:
    """The key changes between the look and the write: the same write tries again, with its own token."""
    key = f"strict/{key}"
    putting = outcome(connect(shared.origin, "33").put_object, Key=key, Body=b"mine")
    held, writing = await shared.late(putting, operation="PutObject", key=key)
    shared.double.put("bucket", key, b"somebody's")
    held.release()
    assert await writing == (200, "")
    assert shared.body(key) == b"mine"


@over_http
async def test_two_holders_cannot_share_a_token(shared: Stage, key: str) -> None:
    ann, bob, nobody = (connect(shared.origin, "33", holder) for holder in ("ann", "bob", None))
    assert await outcome(ann.put_object, Key=key, Body=b"ann") == (200, "")
    assert await outcome(bob.put_object, Key=key, Body=b"bob") == DUPLICATE
    assert await outcome(bob.delete_object, Key=key) == DUPLICATE
    assert shared.body(key) == b"ann"
    assert await outcome(ann.put_object, Key=key, Body=b"ann again") == (200, "")
    assert await outcome(nobody.put_object, Key=key, Body=b"unnamed") == (200, ""), "who gives no name is not doubted"
    assert await outcome(connect(shared.origin, "34", "bob").put_object, Key=key, Body=b"bob") == (200, "")
    record = await shared.rejections(resource=f"s3/bucket/{key}", reason="token-duplicate")
    assert [(one["holder"], one["raised_by"]) for one in record] == [("bob", "ann")] * 2


@over_http
async def test_a_write_that_passed_but_cannot_be_put_on_record_is_not_called_unwritten(
    postgres_server: EmbeddedPostgres,
) -> None:
    rules = [{"match": "bucket/watched/**", "mode": Enforcement.OBSERVE}]
    async with staged(postgres_server, S3Double(buckets=["bucket"]), objects=rules) as stage:
        await stage.rows("ALTER TABLE fencing.intake RENAME TO lost")
        answered = await outcome(connect(stage.origin).put_object, Key="watched/k", Body=b"x")
        assert answered == (503, "FencingOutcomeUnknown")
        assert stage.body("watched/k") == b"x"
