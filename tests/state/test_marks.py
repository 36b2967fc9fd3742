"""Names that carry our marks, and reading them back."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_samples import LINEAGE, SALT

from lium_plan.addresses import MEMBER, NAME
from lium_plan.marks import (
    Marks,
    keyed_hash,
    lineage_mark,
    nonce_of,
    parse_pod_name,
    parse_template_name,
    parse_volume_name,
    pod_name,
    pod_tail,
    scope_mark,
    template_name,
    volume_base,
    volume_name,
)


@given(
    st.text(max_size=20),
    st.binary(min_size=5, max_size=5),
    st.from_regex(NAME, fullmatch=True),
    st.from_regex(MEMBER, fullmatch=True),
)
def test_pod_names_fit_and_are_read_back(project: str, random: bytes, fleet: str, member: str) -> None:
    name = pod_name(project, "prod", LINEAGE, nonce_of(random), fleet, member)
    assert re.fullmatch(r"[a-z0-9-]{1,63}", name)
    parsed = parse_pod_name(name)
    assert parsed is not None
    assert (parsed.scope, parsed.lineage) == (scope_mark(project, "prod"), lineage_mark(LINEAGE))
    assert parsed.nonce == nonce_of(random)
    assert parsed.tail == pod_tail(fleet, member)
    assert parsed.tail.endswith(f"-{member}")


def test_members_of_a_long_fleet_stay_apart() -> None:
    names = {pod_name("p", "s", LINEAGE, "aaaaaaaa", "f" * 32, str(member)) for member in range(2000)}
    assert len(names) == 2000


@pytest.mark.parametrize("name", ["", "lp-", "web", "lp-12345g-a1b2c3-aaaaaaaa-x-0", "lp-123456-a1b2c3-aaaaaaaa-"])
def test_other_names_carry_no_mark(name: str) -> None:
    assert parse_pod_name(name) is None


@pytest.mark.parametrize("nonce", ["", "short", "AAAAAAAA", "aaaaaaa1"])
def test_a_wrong_nonce_is_refused(nonce: str) -> None:
    with pytest.raises(ValueError):
        pod_name("p", "s", LINEAGE, nonce, "x", "0")


def test_a_nonce_needs_five_bytes() -> None:
    assert nonce_of(b"\0\0\0\0\0") == "aaaaaaaa"
    with pytest.raises(ValueError):
        nonce_of(b"1234")


@given(st.text(max_size=150))
def test_volume_names_end_in_the_mark(base: str) -> None:
    name = volume_name(base, Marks("0a0a0a", "b1b1b1"))
    assert len(name) <= 100
    assert parse_volume_name(name) == Marks("0a0a0a", "b1b1b1")
    assert volume_base(name) == base[:83]


def test_unmarked_volumes() -> None:
    assert parse_volume_name("data-lp-0a0a0a-b1b1b1-old") is None
    assert volume_base("data") == "data"


def test_templates_are_shared_within_a_state_and_never_between_states() -> None:
    content = {"image": "ubuntu", "ports": [22, 80], "env": {"B": "2", "A": "1"}}
    name = template_name(LINEAGE, SALT, content)
    assert name == template_name(LINEAGE, SALT, {"env": {"A": "1", "B": "2"}, "ports": (22, 80), "image": "ubuntu"})
    assert name != template_name(LINEAGE, bytes(32), content)
    assert name != template_name(LINEAGE, SALT, {**content, "ports": [80, 22]})
    parsed = parse_template_name(name)
    assert parsed is not None
    assert (parsed.lineage, len(parsed.digest)) == ("a1b2c3", 12)
    assert parse_template_name("my template") is None


def test_scopes_and_hashes_tell_apart() -> None:
    assert scope_mark("p", "a") != scope_mark("p", "b")
    assert keyed_hash(SALT, "hunter2") == keyed_hash(SALT, "hunter2")
    assert keyed_hash(SALT, "hunter2") != keyed_hash(bytes(32), "hunter2")
    assert "hunter2" not in keyed_hash(SALT, "hunter2")
