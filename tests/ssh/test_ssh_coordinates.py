from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lium_plan.ssh.coordinates import parse_connect_command
from lium_plan.ssh.errors import BadConnectCommand
from lium_plan.ssh.protocol import Coordinates


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ssh root@1.2.3.4 -p 20022", Coordinates("root", "1.2.3.4", 20022)),
        ("ssh -p 20022 root@1.2.3.4", Coordinates("root", "1.2.3.4", 20022)),
        ("ssh root@1.2.3.4", Coordinates("root", "1.2.3.4", 22)),
        ("  ssh\troot@node-7.example.com  -p  1 ", Coordinates("root", "node-7.example.com", 1)),
        ("ssh root@2001:db8::1 -p 65535", Coordinates("root", "2001:db8::1", 65535)),
        ("ssh root@[2001:db8::1]", Coordinates("root", "2001:db8::1", 22)),
        ("ssh a.b-c_d@localhost", Coordinates("a.b-c_d", "localhost", 22)),
        ("ssh root@" + ".".join(["a" * 61] * 4), Coordinates("root", ".".join(["a" * 61] * 4), 22)),
    ],
)
def test_accepts_the_one_shape(text: str, expected: Coordinates) -> None:
    assert parse_connect_command(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ssh",
        "ssh -p 22",
        "scp root@h",
        "ssh h",
        "ssh @h",
        "ssh root@",
        "ssh -oProxyCommand=id root@h",
        "ssh root@h -o X=y",
        "ssh root@h -p",
        "ssh root@h -p 0",
        "ssh root@h -p 65536",
        "ssh root@h -p 022",
        "ssh root@h -p ２２",
        "ssh root@h -p22",
        "ssh root@h -p 1 -p 2",
        "ssh root@h id",
        "ssh root@h\nid",
        "ssh root@h;id",
        "ssh root@$(id)",
        "ssh root@-h",
        "ssh root@a..b",
        "ssh root@999.1.1.1",
        "ssh root@fe80::1%eth0",
        "ssh -root@h",
        "ssh " + "r" * 33 + "@h",
        "ssh root@" + "a." * 127 + "b",
        "ssh root@[h]",
        "ssh root@h " + " " * 600,
    ],
)
def test_refuses_everything_else(text: str) -> None:
    with pytest.raises(BadConnectCommand) as caught:
        parse_connect_command(text)
    assert "ssh USER@HOST [-p PORT]" in str(caught.value)


@given(st.text(max_size=40))
def test_whatever_is_accepted_holds_nothing_a_shell_or_ssh_would_read_otherwise(tail: str) -> None:
    try:
        found = parse_connect_command(f"ssh root@{tail}")
    except BadConnectCommand:
        return
    assert not set(found.host) & set(" \t\n;$`'\"\\|&<>()%@/")
    assert not found.host.startswith("-")
    assert 1 <= found.port <= 65535
