"""Faults in a manifest: each has its own message, at its place, without a key and without a server (D13, J2)."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tests.support.projects import Project

GOOD = """\
version: 1
project: faulty

variables:
  count: {type: integer, default: 2}

templates:
  torch:
    image: ubuntu:22.04

fleets:
  trainers:
    nodes: ${{ var.count }}
    resources:
      gpu: RTX4090:1
      memory: 16GB..
    max_price: 1.00
    template: torch
    ttl: 2h
    bootstrap:
      commands:
        - nvidia-smi
"""

FAULTS = {
    "a misspelt key": (
        "    bootstrap:",
        "    bootstrp:",
        "bootstrp",
        r"unknown key .bootstrp..*did you mean .bootstrap.",
    ),
    "a key twice": ("    ttl: 2h", "    ttl: 2h\n    max_price: 2.00", "max_price: 2.00", r"max_price"),
    "a word for a number": ("    max_price: 1.00", "    max_price: cheap", "cheap", r"cheap|number"),
    "a time to live in minutes": ("    ttl: 2h", "    ttl: 90m", "90m", r"hours"),
    "a template that is not there": ("    template: torch", "    template: troch", "troch", r"troch.*torch"),
    "a variable that is not there": ("var.count }}", "var.cuont }}", "var.cuont", r"cuont.*count"),
    "an indent with a tab": ("      memory: 16GB..", "\tmemory: 16GB..", "\t", r"tab"),
    "shell outside quotes": (
        "    image: ubuntu:22.04",
        "    image: ubuntu:22.04\n    command: sleep 1 && sleep 2",
        "sleep 1",
        r"quotes|shell",
    ),
}


@pytest.fixture
def keyless(project: Project) -> Project:
    """Nothing of an account is in the environment."""
    return dataclasses.replace(project, more={"LIUM_API_KEY": "", "LIUM_BASE_URL": ""})


def test_without_a_fault_it_is_valid(keyless: Project) -> None:
    keyless.write(GOOD)
    assert keyless.run("validate", "--json", expect=0).json["valid"] is True


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_said_at_its_place(keyless: Project, name: str) -> None:
    before, after, marked, words = FAULTS[name]
    assert GOOD.count(before) == 1
    manifest = GOOD.replace(before, after)
    keyless.write(manifest)
    line = next(number for number, text in enumerate(manifest.splitlines(), 1) if marked in text)
    column = manifest.splitlines()[line - 1].index(marked) + 1

    shown = keyless.run("validate", expect=1)
    assert f"lium.yaml:{line}:{column}: error: " in shown.err, (line, column, shown)
    assert re.search(words, shown.err, re.IGNORECASE | re.DOTALL), shown
    assert shown.err.count(": error: ") == 1, shown

    (found,) = keyless.run("validate", "--json", expect=1).json["diagnostics"]
    assert (found["severity"], found["line"], found["column"]) == ("error", line, column)


def test_all_of_them_are_said_at_once_and_nothing_is_planned(keyless: Project) -> None:
    manifest = GOOD
    for name in ("a misspelt key", "a word for a number", "a time to live in minutes"):
        before, after, *_ = FAULTS[name]
        manifest = manifest.replace(before, after)
    keyless.write(manifest)
    assert keyless.run("validate", expect=1).err.count(": error: ") == 3


def test_the_messages_differ(keyless: Project) -> None:
    messages = set()
    for before, after, *_ in FAULTS.values():
        keyless.write(GOOD.replace(before, after))
        (found,) = keyless.run("validate", "--json", expect=1).json["diagnostics"]
        messages.add(found["message"])
    assert len(messages) == len(FAULTS)


def test_plan_says_the_same_and_asks_nobody(project: Project) -> None:
    before, after, *_ = FAULTS["a misspelt key"]
    project.write(GOOD.replace(before, after))
    assert "lium.yaml:20:5: error: " in project.run("plan", expect=1).err
    assert project.sim.requests(project.account) == []
