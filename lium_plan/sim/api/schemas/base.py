"""What every answer's shape is built on, and the refusals (contract §1.3)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Stamp = str
"""Naive ISO 8601, which is no RFC 3339 date-time."""


class Row(BaseModel):
    """Fields are only ever added, so that more of them are allowed."""

    model_config = ConfigDict(extra="allow")


class ErrorBody(Row):
    code: str | None
    message: str
    hint: str | None
    request_id: str


class FieldError(Row):
    field: str
    message: str


class Envelope(Row):
    success: Literal[False]
    error: ErrorBody
    message: str | dict[str, Any]
    status_code: int
    validation_errors: list[FieldError] = []


class FlatRefusal(Row):
    """The 409 of rent-by-spec."""

    success: Literal[False]
    code: str
    message: str


class Detail(Row):
    """What the framework itself says of an unknown route or method."""

    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    "4XX": {"description": "Refused", "model": Envelope | FlatRefusal | Detail},
    "5XX": {"description": "The server's fault", "model": Envelope},
}


class Done(Row):
    success: bool
