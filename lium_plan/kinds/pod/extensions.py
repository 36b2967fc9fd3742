"""What became of an extension of a pod's time to live whose answer was not recorded: the server's row says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from lium_plan.kinds.pod.lifetimes import EXTENDED, shown_moment
from lium_plan.kinds.protocol import Ledger, OpenEffect, Outcome, Record, Settlement
from lium_plan.lium.models import Pod

SLACK = timedelta(seconds=1)
"""The server keeps whole seconds."""


def settle_extension(ledger: Ledger, effect: OpenEffect, pods: Mapping[str, Pod]) -> Settlement:
    """`pods`: a good list, by id. Done where the pod has the end that was asked for; else it certainly did not take."""
    record = ledger.record(effect.address)
    pod = pods.get(str(effect.data.get("id")))
    until = datetime.fromisoformat(str(effect.data.get("until")))
    took = pod is not None and pod.removal_at is not None and abs(pod.removal_at - until) <= SLACK
    if record is None or pod is None or record.id != pod.id or not took:
        ledger.failed(effect, "the server shows another end")
        return Settlement(Outcome.NOT_DONE, "the server shows another end: it was not extended")
    ledger.done(effect, extended(record, until))
    return Settlement(Outcome.DONE, f"it was extended to {shown_moment(until)}")


def extended(record: Record, until: datetime) -> Record:
    """It holds until the manifest's `ttl` changes."""
    end = until.isoformat()
    return replace(record, attributes={**record.attributes, "removal_at": end, EXTENDED: end})
