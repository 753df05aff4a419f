"""The share of a database changes if the names change that it owns. A gateway with another share is refused."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import OwnershipDiffers
from gateway.fencing.name_ranges import ranges_elsewhere
from gateway.fencing.ownership import Domain, Ownership
from gateway.fencing.shares import (
    Owner,
    Registered,
    Target,
    check,
    owners_in,
    share_of,
    shares_in,
    shown,
    written,
)

NORTH = Domain("north", ("public",), ("reports",), default=True)
SOUTH = Domain("south", ("south",), ("southern",), ("tenant-7/**", "tenant-8/*/plan"))
WEST = Domain("west", (), (), ("lock/**",))
ALL = (NORTH, SOUTH, WEST)
MORE = Domain("west", (), (), ("lock/**", "job/1"))

NAMES = st.lists(
    st.sampled_from(
        ["tenant-7", "tenant-8", "plan", "s3", "southern", "lock", "south.x", "public.a", "job", "1", "zz"]
    ),
    min_size=1,
    max_size=4,
).map("/".join)


def test_a_share_is_about_its_own_names_alone() -> None:
    changed = (NORTH, SOUTH, MORE)
    assert share_of("south", ALL) == share_of("south", changed)
    assert share_of("west", ALL) != share_of("west", changed)
    assert share_of("north", ALL) != share_of("north", changed), "the default one has what no other has"
    exposed = (Domain("north", ("public", "more"), default=True), SOUTH, WEST)
    assert share_of("north", ALL) == share_of("north", exposed), "it has all names of its own anyway"
    turned = (WEST, Domain("south", ("south",), ("southern",), SOUTH.resources[::-1]), NORTH)
    assert [share_of(one.name, ALL) for one in ALL] == [share_of(one.name, turned) for one in ALL]


def test_parts_of_a_bucket_count_for_the_one_that_has_the_bucket() -> None:
    part = Domain("west", buckets=("southern/x/",))
    shares = [share_of("south", (NORTH, SOUTH, one)) for one in (WEST, part, Domain("west", buckets=("other",)))]
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


@given(NAMES)
def test_all_names_of_other_databases_are_in_the_ranges_that_are_looked_at(name: str) -> None:
    for domain in ALL:
        if Ownership(ALL).of_resource(name) != domain.name:
            ranges = ranges_elsewhere(domain.name, ALL)
            assert any(begin <= name and (end is None or name < end) for begin, end in ranges), domain.name
            assert all(end is not None and end < later for (_, end), (later, _) in pairwise(ranges))


@pytest.mark.parametrize(
    ("owner", "name", "share", "words"),
    [
        (Owner("south", "mine"), "south", '{"only":{}}', "The database south has no names"),
        (Owner("south", "mine"), "north", "mine", "The DSN of the database south leads to the database north"),
        (Owner("south", "mine"), None, None, "is not one of several yet"),
        (Owner(), "south", "mine", "The database is south, one of several"),
    ],
)
def test_a_gateway_with_another_share_or_name_is_refused(
    owner: Owner, name: str | None, share: str | None, words: str
) -> None:
    owner = owner if owner.share is None else Owner(owner.name, share_of("south", ALL))
    share = share_of("south", ALL) if share == "mine" else share
    with pytest.raises(OwnershipDiffers, match=words):
        check(owner, name, share, changing=False)
    check(owner, owner.name, owner.share, changing=False)
    with pytest.raises(OwnershipDiffers, match="are being changed") as refused:
        check(owner, owner.name, owner.share, changing=True)
    assert refused.value.retry_after == 2


def test_shares_are_shown_in_words() -> None:
    assert shown(share_of("west", ALL)) == "resources lock/**"
    assert shown(share_of("north", (NORTH, WEST))) == "all names but resources lock/**"
    assert shown(None) == "all names"
