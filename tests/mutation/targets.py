"""What is mutated, and which tests may find it. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ALL = ("",)
"""Every function of a module, and what stands outside of functions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`targets`: the functions of each file, by the beginning of their qualified names. `tests`: as pytest takes them.

    Tests in process only, and fast ones: each mutant may run all that cover it. `left_out` are parts of test ids.
    """

    targets: Mapping[str, tuple[str, ...]]
    tests: tuple[str, ...]
    left_out: tuple[str, ...] = ()


RECOVERY = {
    "lium_plan/engine/recover.py": ALL,
    "lium_plan/engine/run.py": ("_Begin", "EngineRun.effect", "EngineRun._let_finish"),
    "lium_plan/operations/settling.py": ALL,
    "lium_plan/operations/recovering.py": ALL,
    "lium_plan/operations/aftermath.py": ALL,
    "lium_plan/planning/late.py": ALL,
    "lium_plan/kinds/failures.py": (
        "make",
        "record_made",
        "look_for",
        "delete",
        "begun_inputs",
        "pause",
        "settle_delete",
    ),
    "lium_plan/kinds/pod/orders.py": ALL,
    "lium_plan/kinds/pod/rent.py": ALL,
    "lium_plan/kinds/pod/rows.py": ALL,
    "lium_plan/kinds/pod/removal.py": ALL,
    "lium_plan/kinds/pod/driver.py": (
        "PodDriver.settle",
        "PodDriver._settle",
        "PodDriver._given_back",
        "PodDriver._has_template",
    ),
    "lium_plan/kinds/pod/extensions.py": ("settle_extension",),
    "lium_plan/kinds/volume/driver.py": ("VolumeDriver.settle", "VolumeDriver._settle_create"),
    "lium_plan/kinds/template/driver.py": ("TemplateDriver.settle", "TemplateDriver._settle_create"),
    "lium_plan/kinds/credential/driver.py": (
        "CredentialDriver.settle",
        "CredentialDriver._settle_create",
        "CredentialDriver._is_ours",
        "CredentialDriver._used_by_foreign_template",
    ),
    "lium_plan/kinds/bootstrap/driver.py": ("BootstrapDriver.settle",),
    "lium_plan/kinds/task/driver.py": ("TaskDriver.settle",),
}
JOURNAL = {
    "lium_plan/state/journal.py": ALL,
    "lium_plan/state/journalfile.py": ALL,
    "lium_plan/state/model.py": ALL,
    "lium_plan/state/local.py": (
        "_line",
        "LocalStore.load",
        "LocalStore._look",
        "LocalStore._interpret",
        "LocalStore._without_snapshot",
        "LocalStore._open_session",
        "LocalStore._end_session",
        "LocalStore.append",
        "LocalStore.compact",
        "LocalStore._start",
        "LocalStore._write_snapshot",
        "LocalStore._require",
    ),
}
ORDERING = {
    "lium_plan/planning/order.py": ALL,
    "lium_plan/planning/sequence.py": ALL,
    "lium_plan/planning/reinstating.py": ALL,
    "lium_plan/engine/walk.py": ALL,
}

ORDERING_PLAN = Plan(
    targets=ORDERING,
    tests=("tests/engine", "tests/planning/test_order.py", "tests/planning/test_cases.py"),
    left_out=("test_what_has_been_applied_needs_nothing",),
)
JOURNAL_PLAN = Plan(
    targets=JOURNAL,
    tests=("tests/state", "tests/planning/test_bookkeeping.py"),
    # What runs lium-plan in a process of its own meets unchanged code there.
    left_out=(
        *("test_marks.py", "test_state_lock.py", "test_a_failed_fsync_counts", "test_a_disk_that_is_really_full"),
        *("test_two_writers_and_a_reader", "test_a_killed_owner_blocks_nobody"),
    ),
)
RECOVERY_PLAN = Plan(
    targets=RECOVERY,
    tests=(
        "tests/engine",
        "tests/kinds",
        "tests/simulation/test_settling.py",
        *(
            f"tests/simulation/test_settling_{name}.py"
            for name in ("rents", "deletes", "creations", "effects", "extensions", "tasks")
        ),
        *(
            f"tests/simulation/test_{name}.py"
            for name in (
                "lost_answers",
                "wrong_answers",
                "recovering",
                "aftermath",
                "rents_in_trouble",
                "creations_in_trouble",
                "pods_that_stay",
                "waiting_for_others",
            )
        ),
        *(f"tests/simulation/test_simulation_{name}.py" for name in ("created", "deletion", "limits")),
    ),
    left_out=(
        # Of many alike a few are enough: one position of the delete that fails.
        *(
            f"position[{kind}-{n}]"
            for kind in ("500", "500-after", "lost-before", "lost-after", "409")
            for n in range(5)
        ),
        *("test_f1_25_templates", "test_f1_an_interrupt_during_a_wait_for_a_limit", "test_f4_bodies_of_every_shape"),
    ),
)
PLANS = (ORDERING_PLAN, JOURNAL_PLAN, RECOVERY_PLAN)
