"""Old pods beside the ones that are to take their places: what a record says from then on. Pure."""

from __future__ import annotations

from dataclasses import replace

from lium_plan.kinds.protocol import Record

SET_UP = "set_up"
"""The attribute that says whether it was ready and set up when it left its address: it had taken the place, then."""


def deposed(pod: Record, setup: Record | None, *, protected: bool = False) -> Record:
    """`pod` beside its successor. `setup`: the record of its address's bootstrap, which may be about another pod."""
    is_done = setup is not None and setup.status == "ready" and setup.attributes.get("pod_id") == pod.id
    was_set_up = pod.status == "ready" and (is_done or not pod.inputs.get("bootstrapped"))
    before = pod.attributes.get(SET_UP, False)
    attributes = {**pod.attributes, SET_UP: was_set_up or before}
    return replace(pod, deposed=True, attributes=attributes, protected=protected)


def was_set_up(pod: Record) -> bool:
    """Of a deposed one; of which nothing is known, it was."""
    return bool(pod.attributes.get(SET_UP, True))
