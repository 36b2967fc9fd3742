"""Manifests that several tests begin with."""

from __future__ import annotations

PAIR = """\
version: 1
project: pair

templates:
  base:
    image: ubuntu:22.04

fleets:
  workers:
    nodes: 2
    resources: {gpu: "RTX4090:1"}
    max_price: 2.00
    template: base
    ttl: 2h
"""
"""Two pods on one template."""

HANGING = (
    PAIR
    + """\
    bootstrap:
      commands:
        - echo begun
        - sleep 600
"""
)
"""The same with a bootstrap that does not end by itself."""
