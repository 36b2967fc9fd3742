"""What waits for what, in three languages."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from lium_plan.answers import GraphAnswer
from lium_plan.cli.main import main
from lium_plan.views.graph_view import FORMATS, graph_dot, graph_mermaid, graph_svg

GRAPH = GraphAnswer(
    (
        ("fleet.a[0]", "1×H100"),
        ("fleet.a[0].bootstrap", "1 command"),
        ("task.t[0]", 'say "hi" <b> #1 & go'),
        ("template.t", "ubuntu:22.04"),
    ),
    (
        ("template.t", "fleet.a[0]"),
        ("fleet.a[0]", "fleet.a[0].bootstrap"),
        ("fleet.a[0].bootstrap", "task.t[0]"),
        ("fleet.a[0]", "task.t[0]"),
    ),
)
MANIFEST = """\
version: 1
project: demo
templates: {t: {image: ubuntu}}
volumes: {v: {}}
fleets: {a: {resources: {gpu: H100}, template: t, volume: v, ttl: 2h, bootstrap: {commands: [x]}}}
tasks: {go: {fleet: a, commands: [y]}}
"""


def test_dot() -> None:
    text = graph_dot(GRAPH)
    assert '"template.t" -> "fleet.a[0]";' in text
    assert '"task.t[0]" [label = "task.t[0]\\nsay \\"hi\\" <b> #1 & go"];' in text
    assert text.startswith("digraph lium_plan {\n")
    assert text.endswith("}\n")


def test_mermaid() -> None:
    assert graph_mermaid(GRAPH) == (
        "flowchart LR\n"
        '  n0["fleet.a[0]<br>1×H100"]\n'
        '  n1["fleet.a[0].bootstrap<br>1 command"]\n'
        '  n2["task.t[0]<br>say #quot;hi#quot; &lt;b&gt; #35;1 &amp; go"]\n'
        '  n3["template.t<br>ubuntu:22.04"]\n'
        "  n3 --> n0\n  n0 --> n1\n  n1 --> n2\n  n0 --> n2\n"
    )


def test_the_picture_is_sound_and_whatever_waits_stands_to_the_right() -> None:
    root = ElementTree.fromstring(graph_svg(GRAPH))
    words = {item.text: float(item.attrib["x"]) for item in root.iter("{http://www.w3.org/2000/svg}text")}
    assert all(words[before] < words[after] for before, after in GRAPH.edges)
    assert 'say "hi" <b> #1 & go' in words
    boxes = list(root.iter("{http://www.w3.org/2000/svg}rect"))[1:]
    assert len(boxes) == 4
    right = max(float(box.attrib["x"]) + float(box.attrib["width"]) for box in boxes)
    assert right < float(root.attrib["width"])


@pytest.mark.parametrize("form", FORMATS)
def test_nothing_declared_is_a_graph_too(form: str) -> None:
    assert FORMATS[form](GraphAnswer((), ()))


@pytest.mark.parametrize("form", FORMATS)
def test_the_command_draws_a_manifest(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lium.yaml").write_text(MANIFEST, encoding="utf-8")
    assert main(["graph", "--format", form]) == 0
    shown = capsys.readouterr().out
    for address in ("template.t", "volume.v", "fleet.a[0]", "fleet.a[0].bootstrap", "task.go[0]"):
        assert address in shown
    if form == "dot":
        for edge in ('"template.t" -> "fleet.a[0]"', '"volume.v" -> "fleet.a[0]"', '.bootstrap" -> "task.go[0]"'):
            assert edge in shown
    (tmp_path / "lium.yaml").write_text("project: [", encoding="utf-8")
    assert main(["graph"]) == 1
