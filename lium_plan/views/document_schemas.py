"""The JSON Schemas of what commands print, made from `documents`: `plan`, `show` (a state), `events` (a line of a run).

Readers must accept fields that they don't know, so none forbids them.
"""

from __future__ import annotations

import json
from typing import Any

from lium_plan.views.documents import FORMAT_VERSION, Document, EventLine, PlanDocument, StateDocument

DOCUMENTS: dict[str, tuple[Any, str]] = {
    "plan": (PlanDocument, "plan"),
    "show": (StateDocument, "show --json of a state"),
    "events": (EventLine, "a line of apply --json, destroy --json and --json-into"),
}
"""Name -> the shape, and its title."""


def document_schema(name: str) -> Document:
    """Raises `KeyError` for a name that is not in `DOCUMENTS`."""
    from pydantic import TypeAdapter

    shape, title = DOCUMENTS[name]
    made = TypeAdapter(shape).json_schema(ref_template="#/$defs/{model}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "title": f"lium-plan {title}, format {FORMAT_VERSION}",
    }


def document_schema_text(name: str) -> str:
    return json.dumps(document_schema(name), indent=2, ensure_ascii=False, sort_keys=True) + "\n"
