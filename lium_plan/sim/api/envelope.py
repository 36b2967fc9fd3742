"""Refusals and validation errors in the server's error envelope (contract §1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse, Response

from lium_plan.sim.exchange import exchange_of
from lium_plan.sim.refusal import Refusal, invalid
from lium_plan.sim.rows import Json


def envelope(refusal: Refusal, request_id: str) -> dict[str, Json]:
    if refusal.flat:
        return {"success": False, "code": refusal.code, "message": refusal.message, **(refusal.data or {})}
    body: dict[str, Json] = {
        "success": False,
        "error": {
            "code": refusal.code,
            "message": refusal.message,
            "hint": refusal.hint,
            "request_id": request_id,
        },
        "message": refusal.message if refusal.data is None else dict(refusal.data),
        "status_code": refusal.status,
    }
    if refusal.fields:
        body["validation_errors"] = [{"field": field, "message": message} for field, message in refusal.fields]
    return body


def validation_refusal(errors: Sequence[Any]) -> Refusal:
    """One field per pydantic error, named without `body`, `query` or `path` in front."""
    fields = []
    for item in errors:
        parts = [str(part) for part in item["loc"]]
        if parts and parts[0] in ("body", "query", "path", "header"):
            parts = parts[1:]
        fields.append((".".join(parts) or "body", str(item["msg"])))
    return Refusal(422, "validation_error", "Validation error", fields=tuple(fields))


def refusal_response(refusal: Refusal, request_id: str) -> JSONResponse:
    return JSONResponse(envelope(refusal, request_id), refusal.status, headers=refusal.headers)


def install(app: FastAPI) -> None:
    """Routes may raise Refusal. Unknown routes and methods stay FastAPI's own `{"detail": …}`; the one other
    refusal of its own, a body that is no text, is given the envelope."""

    async def on_refusal(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, Refusal)
        return refusal_response(problem, exchange_of(request).request_id)

    async def on_invalid(request: Request, problem: Exception) -> Response:
        assert isinstance(problem, RequestValidationError)
        return refusal_response(validation_refusal(problem.errors()), exchange_of(request).request_id)

    async def on_no_text(request: Request, problem: Exception) -> Response:
        return refusal_response(invalid("body", "JSON decode error"), exchange_of(request).request_id)

    app.add_exception_handler(400, on_no_text)
    app.add_exception_handler(Refusal, on_refusal)
    app.add_exception_handler(RequestValidationError, on_invalid)
