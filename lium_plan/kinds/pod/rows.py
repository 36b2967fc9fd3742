"""Which row of a list is a record's. The answer to a rent may name another pod's id; a pod's name never changes.

So an id counts only under the record's name: nothing may be judged, worked on or deleted that is called differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lium_plan.kinds.protocol import Record

if TYPE_CHECKING:
    from lium_plan.lium.models import Pod

MISNAMED = "MISNAMED"
"""The status of an observation: the record's id is that of another pod, and its own name is not listed."""


def own_row(record: Record, pods: Mapping[str, Pod]) -> Pod | None:
    """The row with the record's id, unless it is another pod's."""
    pod, name = pods.get(str(record.id)), record.attributes.get("pod_name")
    is_anothers = pod is not None and name and pod.name and pod.name != name
    return None if is_anothers else pod


def row_of(record: Record, pods: Mapping[str, Pod]) -> Pod | None:
    """Its own row; for want of that the only one that bears its name, under whatever id."""
    own = own_row(record, pods)
    name = record.attributes.get("pod_name")
    if own is not None or not name:
        return own
    namesakes = [pod for pod in pods.values() if pod.name == name]
    return namesakes[0] if len(namesakes) == 1 else None


def misnamed(record: Record, pods: Mapping[str, Pod]) -> str | None:
    """Why the record's id is none of its own, and its name is not listed; None when nothing says so."""
    name = record.attributes.get("pod_name")
    if not name or row_of(record, pods) is not None:
        return None
    other = pods.get(str(record.id))
    if other is not None:
        return f"its rent was answered with the id of pod {other.name}, and no list shows {name}"
    return f"its rent was answered with another pod's id, and no list shows {name}" if record.id is None else None
