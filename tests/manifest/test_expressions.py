"""The `${{ … }}` language, and texts that become known step by step."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lium_plan.addresses import Address
from lium_plan.expressions import ExpressionError, MissingValue, PlainFloat, Reference, Text, parse
from lium_plan.kinds.protocol import Json

HOST = Reference("fleet", "x", "0", ("host",))
HOSTS = Reference("fleet", "x", "*", ("host",))


class Values:
    """Names with fixed values; `secret` and everything of the environment is sensitive."""

    VARIABLES: Mapping[str, Json] = {
        "n": 3,
        "secret": "canary",
        "list": ["a", "b"],
        "map": {"k": {"z": 1.5}},
        "versions": {"py": PlainFloat("3.10"), "all": [PlainFloat("3.10"), 3, "3.9", {"é": None}]},
        "yes": True,
    }

    def value(self, root: str, key: str) -> tuple[Json, bool]:
        if root == "var":
            if key not in self.VARIABLES:
                raise ExpressionError(f"unknown variable {key}")
            return self.VARIABLES[key], key == "secret"
        if root == "env":
            if key == "UNSET":
                raise MissingValue("not set")
            return f"value of {key}", True
        return root.upper(), False

    def file(self, path: str) -> str:
        return f"content of {path}"


def resolved(source: str) -> Text:
    return parse(source).resolve(Values())


@pytest.mark.parametrize(
    "source", ["$VAR ${VAR} $(date) $$ {{ x }} }} $ {{", "", "a\nb", "$${VAR}", "${ {x}}", "{{{{", "#{}"]
)
def test_what_is_the_shells_stays(source: str) -> None:
    text = parse(source)
    assert text.known
    assert text.reveal() == source


def test_an_escape() -> None:
    assert parse("a $${{ b }} c").reveal() == "a ${{ b }} c"
    assert resolved("$${{ x }}${{ project }}").reveal() == "${{ x }}PROJECT"


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("${{ var.n }}", 3),
        ("${{var.yes}}", True),
        ("${{ var.list }}", ["a", "b"]),
        ("${{ var.list[1] }}", "b"),
        ("${{ var.map.k.z }}", 1.5),
        ("n=${{ var.n }} ${{ var.yes }}", "n=3 true"),
        ("${{ project }}/${{ stack }}", "PROJECT/STACK"),
        ("${{ lower('ABC') }}", "abc"),
        ("${{ length(var.list) }}", 2),
        ('${{ join(", ", var.list) }}', "a, b"),
        ("${{ join(var.list, '-') }}", "a-b"),
        ("${{ replace('a.b.c', '.', '-') }}", "a-b-c"),
        ("${{ file('x.txt') }}", "content of x.txt"),
        ("${{ default(env.UNSET, 'd') }}", "d"),
        ("${{ default(null, var.n) }}", 3),
        ("${{ default('a', env.UNSET) }}", None),
        ("${{ default(var.map.nope, 'd') }}", "d"),
        ("${{ default(var.map.k.nope, var.list[7], 'd') }}", "d"),
        ("python:${{ var.versions.py }}", "python:3.10"),
        ("${{ join(',', var.versions.all) }}", '3.10,3,3.9,{"é": null}'),
        ("${{ replace(var.versions.py, '.', '') }}", "310"),
        ("${{ default(null, 3.10) }}!", "3.10!"),
        ("${{ var.versions }}!", '{"py": 3.10, "all": [3.10, 3, "3.9", {"é": null}]}!'),
        ("${{ 'it }} is' }}", "it }} is"),
        ('${{ "q\\"\\n" }}', 'q"\n'),
        ("${{ 1.50 }}", PlainFloat("1.50")),
        ("${{ -2 }}", -2),
        ("${{ true }}", True),
    ],
)
def test_values(source: str, value: Json) -> None:
    if value is None:
        with pytest.raises(MissingValue):
            resolved(source)
        return
    text = resolved(source)
    assert text.known
    assert text.value(lambda _: None) == value
    assert type(text.value(lambda _: None)) is type(value)


@pytest.mark.parametrize(
    ("source", "offset", "message"),
    [
        ("a ${{ }}", 6, "is empty"),
        ("a ${{ var.x", 2, "without its"),
        ("${{ 'open }}", 4, "expected a name"),
        ("${{ flet.x[0].host }}", 4, "did you mean 'fleet'?"),
        ("${{ fleet.x.host }}", 4, "say of which member: fleet.x[0].host"),
        ("${{ fleet.x[0].hots }}", 4, "did you mean 'host'?"),
        ("${{ fleet.x[0].ports }}", 21, "expected '.'"),
        ("${{ fleet.x[0].ports.99999 }}", 4, "is no port"),
        ("${{ fleet.x[a b].host }}", 14, "expected ']'"),
        ("${{ fleet.X[0].host }}", 4, "is no fleet's name"),
        ("${{ volume.v.name }}", 4, "a volume has no 'name'"),
        ("${{ member.rank }}", 4, "member.name, member.index"),
        ("${{ nope(1) }}", 4, "unknown function 'nope'"),
        ("${{ lowr('A') }}", 4, "did you mean 'lower'?"),
        ("${{ lower() }}", 4, "takes 1 argument, not 0"),
        ("${{ lower(fleet.x[*].host) }}", 4, "takes strings, not a list"),
        ("${{ join('a', 'b') }}", 4, "takes a separator and a list"),
        ("${{ 1 2 }}", 6, "after the expression"),
        ("${{ lower(0755) }}", 10, "write '0755' for the text"),
        ("${{ a + b }}", 4, "unknown name 'a'"),
        ("${{ env.1x }}", 8, "expected a name after env"),
        ("${{ " + "lower(" * 30 + "'a'" + ")" * 30 + " }}", 130, "nested too deeply"),
    ],
)
def test_faults_have_their_offset(source: str, offset: int, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(source)
    assert message in str(caught.value)
    assert caught.value.offset == offset


def test_default_steps_over_a_part_that_is_missing_not_over_one_that_can_not_be() -> None:
    with pytest.raises(ExpressionError, match=r"there is no 'x' in var\.n"):
        resolved("${{ default(var.n.x, 'd') }}")
    with pytest.raises(ExpressionError, match=r"there is no 'nope' in var\.map"):
        resolved("${{ default(null, var.map.nope) }}")


def test_references() -> None:
    text = parse(
        "${{ fleet.x[0].host }}:${{ fleet.x[0].ports.8000 }} ${{ join(' ', fleet.x[*].host) }}${{ volume.v.id }}"
    )
    assert text.references == (
        HOST,
        Reference("fleet", "x", "0", ("ports", "8000")),
        HOSTS,
        Reference("volume", "v", None, ("id",)),
    )
    assert [reference.text for reference in text.references] == [
        "fleet.x[0].host",
        "fleet.x[0].ports.8000",
        "fleet.x[*].host",
        "volume.v.id",
    ]
    assert not text.known
    with pytest.raises(ValueError, match="not known yet"):
        text.reveal()


@pytest.mark.parametrize(
    ("member", "addresses"), [("1", ["1"]), ("*", ["0", "1", "2"]), ("first", ["0"]), ("head", ["head"])]
)
def test_addresses_of_a_reference(member: str, addresses: list[str]) -> None:
    found = Reference("fleet", "x", member, ("host",)).addresses(lambda _: ("0", "1", "2"))
    assert found == tuple(Address.of("fleet", "x", one) for one in addresses)
    assert Reference("fleet", "x", member, ("host",)).addresses(lambda _: ())[:0] == ()


def test_filling_step_by_step() -> None:
    text = parse("http://${{ fleet.x[0].host }}:${{ fleet.x[0].ports.8000 }}/${{ member.name }}-${{ member.index }}")
    bound = text.bind_member("head", 0)
    assert text.uses_member
    assert not bound.uses_member
    half = bound.fill(lambda reference: "1.2.3.4" if reference == HOST else None)
    assert half.source == "http://1.2.3.4:${{ fleet.x[0].ports.8000 }}/head-0"
    assert half.value(lambda _: None) is None
    assert half.value(lambda _: 30001) == "http://1.2.3.4:30001/head-0"
    assert half.fill(lambda _: 30001).reveal() == "http://1.2.3.4:30001/head-0"


def test_a_whole_list_keeps_its_type() -> None:
    text = parse("${{ fleet.x[*].host }}")
    assert text.list_valued
    assert text.value(lambda _: ["a", "b"]) == ["a", "b"]
    assert parse("${{ join(',', fleet.x[*].host) }}").value(lambda _: ["a", "b"]) == "a,b"
    assert parse("${{ length(fleet.x[*].host) }}").value(lambda _: ["a", "b"]) == 2


def test_default_waits_for_what_is_not_known() -> None:
    text = resolved("${{ default(fleet.x[0].host, 'none') }}")
    assert not text.known
    assert text.value(lambda _: "h") == "h"


@pytest.mark.parametrize(
    "source",
    [
        "${{ var.secret }}",
        "a ${{ var.secret }} b",
        "${{ lower(var.secret) }}",
        "${{ join(var.secret, var.list) }}",
        "${{ replace(fleet.x[0].host, 'a', var.secret) }}",
        "${{ default(var.secret, 'x') }}",
        "${{ env.HOME }}",
        "${{ lower(env.HOME) }} ${{ fleet.x[0].host }}",
    ],
)
def test_secrets_taint_and_are_never_shown(source: str) -> None:
    text = resolved(source)
    assert text.sensitive
    filled = text.fill(lambda _: "host")
    assert filled.sensitive
    for shown in (text, filled):
        for form in (str(shown), repr(shown), shown.source, repr(shown.parts), shown.fingerprint()):
            assert "canary" not in form
            assert "value of" not in form


def test_a_secret_is_revealed_on_request_only() -> None:
    text = resolved("token=${{ var.secret }}")
    assert text.reveal() == "token=canary"
    assert text.source == "token=${{ var.secret }}"
    assert Text.of("canary", sensitive=True).source == "(sensitive)"
    assert Text.of("canary", True).reveal() == "canary"


def test_fingerprints_tell_changes_of_secrets() -> None:
    assert Text.of("a", True).fingerprint() != Text.of("b", True).fingerprint()
    assert Text.of("a", True).fingerprint() == Text.of("a", True).fingerprint()


def test_equal_texts_are_equal() -> None:
    assert resolved("a${{ var.n }}") == Text.of("a3")
    assert hash(resolved("a${{ var.n }}")) == hash(Text.of("a3"))
    assert parse("${{ fleet.x[0].host }}") == parse("${{fleet.x['0'].host}}")


@given(st.text(alphabet="${} fletx.[]0*'\"(),varjoin\\\n", max_size=40))
def test_any_text_parses_or_is_refused_with_an_offset_inside(source: str) -> None:
    offset = 0
    try:
        parse(source)
    except ExpressionError as fault:
        offset = fault.offset
    assert 0 <= offset <= len(source)


@given(st.text(max_size=40))
def test_a_plain_text_is_itself(source: str) -> None:
    text = Text.of(source)
    assert text.reveal() == source
    assert text.resolve(Values()) is text
