"""Each name and each key has one owner, in each spelling, and no rule makes names of another database."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import CrossesDatabases, OwnershipDiffers, StoreError
from gateway.fencing.ownership import (
    Domain,
    Owned,
    Owner,
    Ownership,
    Registered,
    Target,
    check_share,
    owners_in,
    ranges_elsewhere,
    share_of,
    shares_in,
    shown,
    written,
)
from gateway.fencing.ownership_checks import KeyNames, Names, conflicts, foreign_to
from gateway.fencing.resource import escape_path
from gateway.objects.key_rules import DEFAULT_TEMPLATE, KeyRule, Resources
from gateway.objects.s3 import addressing
from gateway.objects.s3.request import classify

NORTH = Domain("north", ("public", "shop"), ("reports", "southern/north/"), ("job/42",), default=True)
SOUTH = Domain(
    "south", ("south",), ("whole", "southern", "shared/tenant-7/", "shared/a b/ü/"), ("tenant-7/**", "tenant-8/*/plan")
)
WEST = Domain("west", ("west",), ("shared/tenant-8/x/", "reports/west/", "southern/west/"), ("lock/**",))
ALL = (NORTH, SOUTH, WEST)
RULES = Ownership(ALL)

OF_NAMES = {
    "north": [
        *("job/42", "anything", "public.orders/5", "unknown.orders/5", "s3/reports/a/b", "s3/other/a", "s3"),
        *("tenant-7", "tenant-70/a", "tenant-8/a/b/plan", "tenant-8/a", "south", "southern.orders/5"),
        "s3/southernmost/a",
    ],
    "south": [
        *("tenant-7/a", "tenant-7/a/b", "tenant-8/a/plan", "south.orders/5", "s3/southern", "s3/whole"),
        *("s3/southern/south.orders", "s3/whole/x"),
    ],
    "west": ["lock/a", "west.a"],
}
OF_PATTERNS = {
    "north": [
        *("s3/other/a/**", "public.orders/**", "job/*", "other/**", "s3/shared/tenant-70/**", "s3/shared/*"),
        "s3/southern/north/**",
    ],
    "south": [
        *("tenant-7/**", "tenant-7/a/*", "tenant-8/*/plan", "s3/whole/**", "south.orders/*", "s3/shared/tenant-7/**"),
        *("s3/shared/tenant-7/a/*", "s3/southern/a/**"),
    ],
    None: [
        *("tenant-8/**", "s3/**", "s3/*/a", "**", "*/a", "s3/shared/**", "s3/southern/**", "s3/southern/*/*"),
        *("s3/reports/**", "s3/shared/*/x"),
    ],
}
OF_TEMPLATES = {
    ("south", None): ["tenant-7/{id}", "tenant-8/{id}/plan", "south.orders/{id}", "s3/whole/{id}"],
    ("south", "north"): ["tenant-7", "tenant-{id}", "tenant-{tenant}/{id}", "s3/reports/{id}", "order/{id}"],
    ("south", "west"): ["lock/{id}"],
    ("north", None): ["order/{id}", "order-{id}/x", "tenant-{id}", "public.orders/{id}", "lock-{id}"],
    ("north", "south"): ["tenant-{id}/x", "{id}/x/y/z", "{id}", "s3/{bucket}/x", "south.{id}"],
}

OF_OWNERS = ["tenant-7", "tenant-8", "plan", "lock", "south.x", "west.", "public.a"]
SEGMENTS = [*OF_OWNERS, "s3", "southern", "reports", "a", "7"]
NAMES = st.lists(st.sampled_from(SEGMENTS), min_size=1, max_size=4).map("/".join)
IN_KEYS = ["tenant-7", "tenant-8", "x", "a b", "ü", "u\u0308", "", ".", "..", ".~", "%2F", "%", "a+b", "north", "west"]
KEYS = st.lists(st.sampled_from([*IN_KEYS, "\x01"]), min_size=1, max_size=5).map("/".join).filter(bool)
BUCKETS = st.sampled_from(["shared", "southern", "reports", "other"])


@pytest.mark.parametrize("owner", OF_NAMES)
def test_each_name_has_one_owner(owner: str) -> None:
    for resource in OF_NAMES[owner]:
        assert RULES.of_resource(resource) == owner, resource
        Owned(RULES, owner).check([resource])
        for other in {"north", "south", "west"} - {owner}:
            with pytest.raises(CrossesDatabases) as refused:
                Owned(RULES, other).check(["nothing-of-it" if other == "north" else f"{other}.x/1", resource])
            assert refused.value.facts == {"resource": resource, "database": owner}


@pytest.mark.parametrize("owner", OF_PATTERNS)
def test_a_pattern_belongs_to_one_database_or_is_refused(owner: str | None) -> None:
    for pattern in OF_PATTERNS[owner]:
        if owner is not None:
            assert RULES.of_pattern(pattern) == owner, pattern
            continue
        with pytest.raises(CrossesDatabases):
            RULES.of_pattern(pattern)


@pytest.mark.parametrize(("database", "foreign"), OF_TEMPLATES)
def test_a_template_that_may_name_resources_of_another_database_is_found(database: str, foreign: str | None) -> None:
    for template in OF_TEMPLATES[database, foreign]:
        assert foreign_to(database, Names.of(template), ALL) == foreign, template


PIECES = st.sampled_from(["{f}", "tenant-{f}", "{f}.x", "s3", "southern", "lock", "plan", "a", "south.{f}", "tenant-7"])


@given(
    st.sampled_from(ALL),
    st.lists(PIECES, min_size=1, max_size=3),
    st.lists(st.sampled_from(SEGMENTS), min_size=3, max_size=3),
)
def test_a_template_that_passes_makes_no_name_of_another_database(
    domain: Domain, pieces: list[str], values: list[str]
) -> None:
    if foreign_to(domain.name, Names.of("/".join(pieces)), ALL) is None:
        name = "/".join(piece.replace("{f}", value) for piece, value in zip(pieces, values, strict=False))
        assert RULES.of_resource(name) == domain.name


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (Domain("a", ("x",)), Domain("b", ("x",)), "x belongs to a as well"),
        (Domain("a", buckets=("x",)), Domain("b", buckets=("x",)), "x belongs to a as well"),
        (Domain("a", resources=("x/**",)), Domain("b", resources=("x/*/y",)), "x/*/y overlaps x/** of a"),
        (Domain("a", ("x",)), Domain("b", resources=("x.orders/**",)), "overlaps the rows of the schema x of a"),
        (Domain("a"), Domain("b", resources=("**",)), "put this database first instead"),
        (Domain("a"), Domain("b", resources=("*/x",)), "begins with a wildcard"),
        (Domain("a"), Domain("b", resources=("s3/x/**",)), "name their bucket in buckets instead"),
        *(
            (SOUTH, Domain("b", buckets=(prefix,)), words)
            for prefix, words in {
                "shared/tenant-7": "must end in a slash: without one it would be about shared/tenant-7-other",
                "shared/*/": "write the name of a bucket, or bucket/prefix/",
                "shared/{tenant}/": "write the name of a bucket, or bucket/prefix/",
                "shared/\x07/": "write the name of a bucket, or bucket/prefix/",
                "shared/a//b/": "has an empty segment",
                "shared/": "leave the slash out for the whole bucket",
                "/tenant-7/": "has an empty segment",
                "shared/../x/": "has an empty segment, or . or ..",
                "shared/tenant-7/a/": "shared/tenant-7/a/ overlaps shared/tenant-7/ of south",
                "shared/a b/": "shared/a b/ overlaps shared/a b/ü/ of south",
                "shared/tenant-7/": "shared/tenant-7/ belongs to south as well",
            }.items()
        ),
    ],
)
def test_no_two_databases_claim_one_name(first: Domain, second: Domain, words: str) -> None:
    assert 1 in [number for number, _, problem in conflicts((first, second)) if words in problem]
    assert list(conflicts(ALL)) == []


# Keys ---------------------------------------------------------------------------------------------------------------


def owner_by_hand(bucket: str, key: str) -> str:
    """Return the owner as the documentation says it, without an index."""
    named = [one for one in ALL if any(f"{bucket}/{key}".startswith(prefix) for prefix in one.prefixes)]
    assert len(named) <= 1
    whole = [one for one in ALL if bucket in one.whole_buckets]
    return (*named, *whole, NORTH)[0].name


def encodings(key: str) -> st.SearchStrategy[bytes]:
    """Return spellings of a key in a path: each byte as it is or percent-encoded, in either case."""
    forms = [
        st.sampled_from(
            [b"%%%02X" % byte, b"%%%02x" % byte]
            + ([bytes([byte])] if 0x20 < byte < 0x7F and byte not in b"%?#" else [])
        )
        for byte in key.encode()
    ]
    return st.tuples(*forms).map(b"".join)


@given(BUCKETS, KEYS, st.data(), st.sampled_from([None, "host"]))
def test_router_and_plane_read_one_key_and_find_one_owner(
    bucket: str, key: str, data: st.DataObject, host: str | None
) -> None:
    """The key is a slash behind its bucket, in a path or in a host, however its bytes are encoded."""
    raw = (b"/" if host else f"/{bucket}/".encode()) + data.draw(encodings(key))
    host = host and bucket
    routed = RULES.of_key(*addressing.read(raw, host))
    request = classify("PUT", raw, b"", [(b"fencing-token", b"5")], host)
    assert (request.bucket, request.key) == (bucket, key)
    assert routed == RULES.of_key(request.bucket, request.key) == owner_by_hand(bucket, key)
    name = f"s3/{bucket}/{escape_path(key)}"
    assert RULES.of_resource(name) == routed
    for one in ALL:
        resources = Resources(owned=Owned(RULES, one.name))
        if one.name == routed and len(name) <= 512:
            assert resources.target(request.bucket, request.key).resource == name
        else:
            with pytest.raises((CrossesDatabases, StoreError)):
                resources.target(request.bucket, request.key)
    # The key that the plane sends on is the same one, encoded in one way.
    assert addressing.read(request.raw_path.encode())[1] == key


@given(BUCKETS, st.text(st.sampled_from("tenant-78/xs. aübwr"), max_size=12), KEYS)
def test_a_listing_asks_all_owners_of_its_keys(bucket: str, prefix: str, key: str) -> None:
    asked = RULES.of_keys(bucket, prefix)
    assert len(asked) == len(set(asked))
    assert RULES.of_key(bucket, prefix + key) in asked
    if len(asked) > 1:
        assert asked[0] == RULES.of_bucket(bucket)


MATCHES = {
    # The rules of the keys in a bucket that is divided.
    ("shared/**", DEFAULT_TEMPLATE): None,
    ("shared/{t}/**", "s3/{bucket}/{t}/all"): ("south", "north"),  # a b is above a prefix
    ("shared/tenant-7/**", "tenant-7/x"): None,
    ("shared/tenant-7/{x}", "tenant-7/{x}"): None,
    ("shared/{t}/**", "s3/{bucket}/{t}"): ("south", "north"),
    ("shared/{t}/{x}", "{t}/x"): ("north", "south"),
    ("shared/**", "s3/{bucket}/x"): ("south", "north"),
    ("shared/**", "s3/{bucket}/tenant-7/{key}"): ("west", "south"),
    ("shared/rest/**", "s3/{bucket}/rest"): None,
    ("shared/rest/**", "s3/{bucket}/tenant-7/x"): ("north", "south"),
    ("shared/*/**", "s3/{bucket}/{key}/x"): ("south", "west"),
    ("shared/{t}", "s3/{bucket}/{t}/x"): ("north", "south"),
    ("shared/%20/**", "s3/{bucket}/%20/{key}"): None,
    ("*/**", "s3/{bucket}/all"): ("west", "north"),
    ("other/**", "s3/shared/tenant-7/all"): ("north", "south"),
}


def test_a_rule_of_keys_names_resources_of_their_own_database() -> None:
    assert {rule: KeyNames(*rule).foreign(ALL) for rule in MATCHES} == MATCHES


IN_MATCHES = st.sampled_from(["{f}", "{g}", "*", "tenant-7", "tenant-8", "x", "%20", "north"])
MADE = st.sampled_from(["{f}", "{g}", "{bucket}", "{key}", "s3", "shared", "southern", "tenant-7", "x", "t-{f}", "%20"])


@given(
    st.sampled_from(["shared", "southern", "reports", "{f}", "*"]),
    st.lists(IN_MATCHES, min_size=1, max_size=3),
    st.sampled_from([[], ["**"]]),
    st.sampled_from([[], ["s3", "{bucket}"]]),
    st.lists(MADE, min_size=1, max_size=4),
    st.lists(st.sampled_from(["tenant-7", "tenant-8", "x", "north", "west", " ", "%20", ""]), min_size=1, max_size=4),
    BUCKETS,
)
def test_a_rule_that_passes_never_names_a_resource_of_another_database(
    first: str, segments: list[str], rest: list[str], own: list[str], made: list[str], key: list[str], bucket: str
) -> None:
    match = "/".join([first, *segments, *rest])
    template = "/".join([*own, *made])
    fields = re.findall(r"\{(\w+)\}", match)
    if len(set(fields)) < len(fields) or set(re.findall(r"\{(\w+)\}", template)) - {*fields, "bucket", "key"}:
        return
    if "{key}" in template[: template.rfind("{")] or KeyNames(match, template).foreign(ALL) is not None:
        return
    name = KeyRule.compile(match, template).resource(bucket, "/".join(key))
    if name is not None:
        assert RULES.of_resource(name) == RULES.of_key(bucket, "/".join(key))


# Shares: what a database says that it owns --------------------------------------------------------------------------


@given(NAMES | st.builds(lambda bucket, key: f"s3/{bucket}/{escape_path(key)}", BUCKETS, KEYS))
def test_all_names_of_other_databases_are_in_the_ranges_that_are_looked_at(name: str) -> None:
    for domain in ALL:
        ranges = ranges_elsewhere(domain.name, ALL)
        found = any(begin <= name and (end is None or name < end) for begin, end in ranges)
        assert found or RULES.of_resource(name) == domain.name, domain.name
        assert all(end is not None and end < later for (_, end), (later, _) in pairwise(ranges))


def test_a_share_is_about_its_own_names_alone() -> None:
    more = Domain("west", WEST.schemas, WEST.buckets, ("lock/**", "job/1"))
    changed = (NORTH, SOUTH, more)
    assert share_of("south", ALL) == share_of("south", changed)
    assert share_of("west", ALL) != share_of("west", changed)
    assert share_of("north", ALL) != share_of("north", changed), "the default one has what no other has"
    exposed = (Domain("north", ("public", "more"), NORTH.buckets, default=True), SOUTH, WEST)
    assert share_of("north", ALL) == share_of("north", exposed), "it has all names of its own anyway"
    turned = (WEST, Domain("south", ("south",), SOUTH.buckets[::-1], SOUTH.resources[::-1]), NORTH)
    assert [share_of(one.name, ALL) for one in ALL] == [share_of(one.name, turned) for one in ALL]


def test_parts_of_a_bucket_count_for_the_one_that_has_the_bucket() -> None:
    others = [(), ("whole/x/",), ("other",)]
    shares = [share_of("south", (NORTH, SOUTH, Domain("west", buckets=buckets))) for buckets in others]
    assert shares[0] == shares[2] != shares[1]


def test_rules_that_were_kept_tell_the_same_shares() -> None:
    rules = written(ALL)
    assert shares_in(rules) == {one.name: share_of(one.name, ALL) for one in ALL}
    assert owners_in(written((*ALL, Domain("empty")))) == {"north", "south", "west"}
    of_a_later_version = json.dumps({**json.loads(rules), "east": {"kinds": ["southern/of/another/kind"]}})
    assert shares_in(of_a_later_version)["south"] != share_of("south", ALL)
    target = Target("south", share_of("south", ALL), rules)
    assert Target.from_json(target.to_json()) == target
    assert target.is_in_force(Registered("south", target.share))
    assert not target.is_in_force(Registered("south", target.share, following=target.to_json()))


SHARE = share_of("south", ALL)


@pytest.mark.parametrize(
    ("owner", "name", "share", "words"),
    [
        (Owner("south", SHARE), "south", '{"only":{}}', "The database south has no names"),
        (Owner("south", SHARE), "north", SHARE, "The DSN of the database south leads to the database north"),
        (Owner("south", SHARE), None, None, "is not one of several yet"),
        (Owner(), "south", SHARE, "The database is south, one of several"),
    ],
)
def test_a_gateway_with_another_share_or_name_is_refused(
    owner: Owner, name: str | None, share: str | None, words: str
) -> None:
    with pytest.raises(OwnershipDiffers, match=words):
        check_share(owner, name, share, changing=False)
    check_share(owner, owner.name, owner.share, changing=False)
    with pytest.raises(OwnershipDiffers, match="are being changed") as refused:
        check_share(owner, owner.name, owner.share, changing=True)
    assert refused.value.retry_after == 2


def test_shares_are_shown_in_words() -> None:
    west = Domain("west", resources=("lock/**",))
    assert shown(share_of("west", (NORTH, west))) == "resources lock/**"
    assert shown(share_of("north", (Domain("north", default=True), west))) == "all names but resources lock/**"
    assert shown(None) == "all names"
