"""Whose a remote thing is: the records that carry its id, whatever becomes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from state_samples import address, local, record, writing

POD = record("fleet.x[0]", "pod-0")


def test_the_holders_of_an_id_are_those_of_now(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        assert ledger.holders("pod", "pod-0") == ()
        ledger.put(POD)
        ledger.put(record("fleet.x[1]", None))
        ledger.put(record("volume.v", "pod-0"))
        assert ledger.holders("pod", "pod-0") == (POD,), "of that kind"
        ledger.move("fleet.x[0]", address("fleet.y[0]"))
        moved = replace(POD, address=address("fleet.y[0]"))
        assert ledger.holders("pod", "pod-0") == (moved,)
        ledger.put(replace(moved, id="pod-1"))
        assert ledger.holders("pod", "pod-0") == ()
        assert [row.id for row in ledger.holders("pod", "pod-1")] == ["pod-1"]
        ledger.remove("fleet.y[0]", "gone")
        assert ledger.holders("pod", "pod-1") == ()


def test_templates_of_one_content_are_held_at_each_of_their_addresses(tmp_path: Path) -> None:
    with writing(local(tmp_path)) as ledger:
        rows = [record("template.a", "t"), record("template.b", "t")]
        for row in reversed(rows):
            ledger.put(row)
        assert ledger.holders("template", "t") == tuple(rows)
        old = replace(rows[0], deposed=True)
        ledger.put(old)
        assert ledger.holders("template", "t") == (old, rows[1])
