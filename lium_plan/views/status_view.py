"""Pods as they are now, for people and for machines."""

from __future__ import annotations

from lium_plan.answers import PodStatus, StatusAnswer, TaskStatus
from lium_plan.money import summed
from lium_plan.views.columns import columns
from lium_plan.views.diagnostics_json import document
from lium_plan.views.documents import Document
from lium_plan.views.money import number
from lium_plan.views.paint import PLAIN, Paint, printable
from lium_plan.views.times import duration, stamp


def status_text(answer: StatusAnswer, paint: Paint = PLAIN) -> str:
    """A line a pod, then the sums; then a line a task."""
    if not answer.pods:
        return "No pods.\n"
    headers = ("ADDRESS", "STATUS", "PHASE", "GPU", "USE", "AGE", "$/H", "SPENT", "TTL LEFT", "DRIFT", "NODE")
    prices, price = summed([pod.price_per_hour_usd for pod in answer.pods])
    spent, so_far = summed([pod.spent_usd for pod in answer.pods])
    rows = [_row(*each) for each in zip(answer.pods, prices, spent, strict=True)]
    table = columns(headers, rows, right=(5, 6, 7, 8), paint=paint, least=(10, 2, 5, 3, 4))
    noun = "pod" if len(answer.pods) == 1 else "pods"
    sums = f"\n{len(answer.pods)} {noun}, {paint('bold', f'{price}/h')}, {so_far} so far.\n"
    return f"{table}{sums}{_tasks_text(answer.tasks, paint)}"


def _tasks_text(tasks: tuple[TaskStatus, ...], paint: Paint) -> str:
    if not tasks:
        return ""
    rows = [
        (
            task.address,
            task.status + ("" if task.probed or task.status != "running" else " (as last seen)"),
            "" if task.exit_code is None else str(task.exit_code),
            *("" if at is None else stamp(at.replace(microsecond=0)) for at in (task.started_at, task.ended_at)),
            printable(task.log or ""),
        )
        for task in tasks
    ]
    headers = ("TASK", "STATUS", "EXIT", "STARTED", "ENDED", "LOG")
    table = columns(headers, rows, right=(2,), paint=paint, least=(5, 3, 4))
    return f"\n{table}{''.join(map(_last_words, tasks))}"


def _last_words(task: TaskStatus) -> str:
    if not task.last_lines:
        return ""
    return f"\n{task.address}, its last lines:\n" + "".join(f"    {printable(line)}\n" for line in task.last_lines)


def _row(pod: PodStatus, price: str, spent: str) -> tuple[str, ...]:
    use = pod.use
    return (
        pod.address,
        pod.status,
        printable(pod.phase),
        f"{pod.gpu_count}×{pod.gpu}",
        f"{use.utilisation_percent}% {use.memory_used_mib}/{use.memory_total_mib}MiB" if use is not None else "",
        duration(pod.age_s),
        price if pod.price_per_hour_usd else "",
        spent,
        duration(pod.ttl_left_s) if pod.ttl_left_s is not None else "none",
        printable(", ".join(pod.drift)),
        pod.node_id,
    )


def status_json(answer: StatusAnswer) -> Document:
    return document(
        {
            "pods": [_pod_json(pod) for pod in answer.pods],
            "tasks": [_task_json(task) for task in answer.tasks],
            "total_per_hour_usd": number(answer.total_per_hour_usd),
            "total_spent_usd": number(answer.total_spent_usd),
        },
        answer.diagnostics,
    )


def _task_json(task: TaskStatus) -> Document:
    return {
        "address": task.address,
        "status": task.status,
        "exit_code": task.exit_code,
        "started_at": None if task.started_at is None else stamp(task.started_at),
        "ended_at": None if task.ended_at is None else stamp(task.ended_at),
        "log": task.log,
        "probed": task.probed,
        "last_lines": list(task.last_lines),
    }


def _pod_json(pod: PodStatus) -> Document:
    row: Document = {
        "address": pod.address,
        "id": pod.id,
        "name": pod.name,
        "phase": pod.phase,
        "status": pod.status,
        "age_s": pod.age_s,
        "price_per_hour_usd": number(pod.price_per_hour_usd),
        "spent_usd": number(pod.spent_usd),
        "ttl_left_s": pod.ttl_left_s,
        "drift": list(pod.drift),
        "node_id": pod.node_id,
        "gpu": pod.gpu,
        "gpu_count": pod.gpu_count,
    }
    if pod.use is not None:
        row["gpu_use"] = {
            "utilisation_percent": pod.use.utilisation_percent,
            "memory_used_mib": pod.use.memory_used_mib,
            "memory_total_mib": pod.use.memory_total_mib,
        }
    return row
