"""Small manifests for single cases."""

from __future__ import annotations

HEAD = "version: 1\nproject: cases\n"


def fleet(nodes: int | str = 1, *, more: str = "", tail: str = "") -> str:
    """A fleet `a` on a plain image. `more` are lines of its block (indented by four), `tail` further sections."""
    return (
        f"{HEAD}fleets:\n  a:\n    nodes: {nodes}\n    resources: {{gpu: 'RTX4090:1'}}\n    max_price: 1.00\n"
        f"    image: ubuntu:22.04\n    ttl: 24h\n{more}{tail}"
    )


def tails(nodes: int) -> tuple[str, ...]:
    return tuple(f"a-{number}" for number in range(nodes))


BOOTSTRAP = "    bootstrap: {commands: [make ready], timeout: 5m}\n"
VOLUME = "    volume: data\n"
VOLUMES = "volumes:\n  data: {description: data}\n"
