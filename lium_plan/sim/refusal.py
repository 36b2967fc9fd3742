"""Why a request is refused, as data; `api.envelope` gives it the wire's shape (contract §1.3)."""

from __future__ import annotations

from collections.abc import Mapping

from lium_plan.sim.rows import Json


class Refusal(Exception):
    """`code` is None where the contract knows none, so that clients can't come to rely on an invented one."""

    def __init__(
        self,
        status: int,
        code: str | None,
        message: str,
        *,
        data: Mapping[str, Json] | None = None,
        hint: str | None = None,
        fields: tuple[tuple[str, str], ...] = (),
        headers: Mapping[str, str] | None = None,
        flat: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.data = dict(data) if data is not None else None
        self.hint = hint
        self.fields = fields
        """(field, message) pairs of a body that failed validation."""
        self.headers = dict(headers or {})
        self.flat = flat
        """rent-by-spec's 409 has a body without `error` (contract §2.5)."""


def invalid(field: str, message: str) -> Refusal:
    return Refusal(422, "validation_error", "Validation error", fields=((field, message),))


def not_found(what: str) -> Refusal:
    return Refusal(404, "not_found", f"{what} not found")


def conflict(message: str) -> Refusal:
    return Refusal(409, "pod_state_conflict", message)
