"""Each key of a bucket has one owner, in each spelling, and no rule of keys names what another database owns."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import CrossesDatabases, StoreError
from gateway.fencing.name_ranges import ranges_elsewhere
from gateway.fencing.ownership import Domain, Owned, Ownership
from gateway.fencing.ownership_checks import KeyNames, conflicts
from gateway.fencing.resource import escape_path
from gateway.objects.resource_rules import DEFAULT_TEMPLATE, KeyRule, Resources
from gateway.objects.s3 import addressing
from gateway.objects.s3.request import classify

NORTH = Domain("north", ("public",), ("reports", "southern/north/"), ("job/**",), default=True)
SOUTH = Domain("south", ("south",), ("southern", "shared/tenant-7/", "shared/a b/ü/"), ("tenant-7/**",))
WEST = Domain("west", (), ("shared/tenant-8/x/", "reports/west/", "southern/west/"))
ALL = (NORTH, SOUTH, WEST)
RULES = Ownership(ALL)

OWNERS = {
    ("shared", ""): "north",
    ("shared", "tenant-7"): "north",
    ("shared", "tenant-7/"): "south",
    ("shared", "tenant-7/a"): "south",
    ("shared", "tenant-7//a"): "south",
    ("shared", "tenant-7/../tenant-8/x/a"): "south",
    ("shared", "/tenant-7/a"): "north",
    ("shared", "./tenant-7/a"): "north",
    ("shared", "x/../tenant-7/a"): "north",
    ("shared", "tenant-70/a"): "north",
    ("shared", "tenant-7%2Fa"): "north",
    ("shared", "Tenant-7/a"): "north",
    ("shared", "a b/ü/x"): "south",
    ("shared", "a+b/ü/x"): "north",
    ("shared", "a%20b/ü/x"): "north",
    ("shared", "tenant-8/x"): "north",
    ("shared", "tenant-8/x/y"): "west",
    ("reports", "west/a"): "west",
    ("reports", "weste/a"): "north",
    ("southern", "a"): "south",
    ("southern", "north/a"): "north",
    ("southern", "west/a"): "west",
    ("other", "tenant-7/a"): "north",
}


@pytest.mark.parametrize(("place", "owner"), OWNERS.items())
def test_each_key_has_one_owner(place: tuple[str, str], owner: str) -> None:
    bucket, key = place
    assert RULES.of_key(bucket, key) == owner
    assert RULES.of_resource(f"s3/{bucket}/{escape_path(key)}") == owner
    for one in ALL:
        if one.name == owner:
            Owned(RULES, one.name).check_key(bucket, key)
            continue
        with pytest.raises(CrossesDatabases) as refused:
            Owned(RULES, one.name).check_key(bucket, key)
        assert refused.value.facts["database"] == owner


PIECES = st.sampled_from(
    [
        "tenant-7",
        "tenant-8",
        "x",
        "a b",
        "ü",
        "u\u0308",
        "",
        ".",
        "..",
        ".~",
        "%2F",
        "%",
        "a+b",
        "north",
        "west",
        "\x01",
    ]
)
KEYS = st.lists(PIECES, min_size=1, max_size=5).map("/".join).filter(bool)
BUCKETS = st.sampled_from(["shared", "southern", "reports", "other"])


def owner_by_hand(bucket: str, key: str) -> str:
    """Return the owner as the documentation says it, without an index."""
    named = [one for one in ALL if any(f"{bucket}/{key}".startswith(prefix) for prefix in one.prefixes)]
    assert len(named) <= 1
    whole = [one for one in ALL if bucket in one.whole_buckets]
    return (*named, *whole, NORTH)[0].name


def encodings(key: str) -> st.SearchStrategy[bytes]:
    """Return spellings of a key in a path: each byte as it is or percent-encoded, in either case."""
    bytes_of = key.encode()
    forms = [
        st.sampled_from(
            [b"%%%02X" % byte, b"%%%02x" % byte]
            + ([bytes([byte])] if 0x20 < byte < 0x7F and byte not in b"%?#" else [])
        )
        for byte in bytes_of
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


@pytest.mark.parametrize(
    ("pattern", "owner"),
    [
        ("s3/shared/tenant-7/**", "south"),
        ("s3/shared/tenant-7/a/*", "south"),
        ("s3/shared/tenant-70/**", "north"),
        ("s3/shared/*", "north"),
        ("s3/southern/a/**", "south"),
        ("s3/southern/north/**", "north"),
        ("s3/shared/**", None),
        ("s3/southern/**", None),
        ("s3/southern/*/*", None),
        ("s3/reports/**", None),
        ("s3/shared/*/x", None),
        ("s3/**", None),
    ],
)
def test_credentials_for_keys_are_for_those_of_one_database(pattern: str, owner: str | None) -> None:
    if owner is not None:
        assert RULES.of_pattern(pattern) == owner
        return
    with pytest.raises(CrossesDatabases):
        RULES.of_pattern(pattern)


@given(BUCKETS, KEYS)
def test_names_that_were_left_behind_are_found_below_prefixes(bucket: str, key: str) -> None:
    name = f"s3/{bucket}/{escape_path(key)}"
    for domain in ALL:
        ranges = ranges_elsewhere(domain.name, ALL)
        found = any(begin <= name and (end is None or name < end) for begin, end in ranges)
        assert found or RULES.of_resource(name) == domain.name


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("shared/tenant-7", "must end in a slash: without one it would be about shared/tenant-7-other"),
        ("shared/*/", "write the name of a bucket, or bucket/prefix/"),
        ("shared/{tenant}/", "write the name of a bucket, or bucket/prefix/"),
        ("shared/\x07/", "write the name of a bucket, or bucket/prefix/"),
        ("shared/a//b/", "has an empty segment"),
        ("shared/", "leave the slash out for the whole bucket"),
        ("/tenant-7/", "has an empty segment"),
        ("shared/../x/", "has an empty segment, or . or .."),
        ("shared/tenant-7/a/", "shared/tenant-7/a/ overlaps shared/tenant-7/ of south"),
        ("shared/a b/", "shared/a b/ overlaps shared/a b/ü/ of south"),
        ("shared/tenant-7/", "shared/tenant-7/ belongs to south as well"),
    ],
)
def test_a_prefix_that_would_not_divide_a_bucket_clearly_is_refused(rule: str, words: str) -> None:
    found = [problem for number, key, problem in conflicts((SOUTH, Domain("east", buckets=(rule,)))) if number == 1]
    assert any(words in problem for problem in found), found
    assert list(conflicts(ALL)) == []


MATCHES = {
    # The rules of the keys in a bucket that is divided.
    ("shared/**", DEFAULT_TEMPLATE): None,
    ("reports/{t}/**", "s3/{bucket}/{t}/all"): None,
    ("shared/{t}/**", "s3/{bucket}/{t}/all"): ("south", "north"),  # a b is above a prefix
    ("{b}/{t}/{u}/**", "s3/{bucket}/{t}/{u}/all"): None,
    ("shared/tenant-7/**", "tenant-7/x"): None,
    ("shared/tenant-7/{x}", "tenant-7/{x}"): None,
    ("shared/{t}/**", "s3/{bucket}/{t}"): ("south", "north"),
    ("shared/{t}/**", "t/{t}"): ("south", "north"),
    ("shared/{t}/**", "{t}/x"): ("south", "north"),
    ("shared/{t}/{x}", "{t}/x"): ("north", "south"),
    ("shared/**", "s3/{bucket}/x"): ("south", "north"),
    ("shared/**", "s3/{bucket}/tenant-7/{key}"): ("west", "south"),
    ("shared/rest/**", "s3/{bucket}/rest"): None,
    ("shared/rest/**", "s3/{bucket}/tenant-7/x"): ("north", "south"),
    ("shared/*/**", "s3/{bucket}/{key}/x"): ("south", "west"),
    ("shared/{t}", "s3/{bucket}/{t}/x"): ("north", "south"),
    ("shared/%20/**", "s3/{bucket}/%20/{key}"): None,
    ("*/**", "s3/{bucket}/all"): ("west", "north"),
    ("other/**", "s3/{bucket}/all"): None,
    ("other/**", "s3/shared/tenant-7/all"): ("north", "south"),
    ("southern/{t}/**", "s3/{bucket}/{t}/all"): None,
}


@pytest.mark.parametrize(("rule", "foreign"), MATCHES.items())
def test_a_rule_of_keys_names_resources_of_their_own_database(
    rule: tuple[str, str], foreign: tuple[str, str] | None
) -> None:
    found = KeyNames(*rule).foreign(ALL)
    assert (found is None) == (foreign is None), found
    assert found == foreign


SEGMENTS = st.sampled_from(["{f}", "{g}", "*", "tenant-7", "tenant-8", "x", "%20", "north"])
MADE = st.sampled_from(["{f}", "{g}", "{bucket}", "{key}", "s3", "shared", "southern", "tenant-7", "x", "t-{f}", "%20"])


@given(
    st.sampled_from(["shared", "southern", "reports", "{f}", "*"]),
    st.lists(SEGMENTS, min_size=1, max_size=3),
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
