"""The JSON Schema of a plan, made from `documents`. `python -m lium_plan.views.plan_schema FILE` writes it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lium_plan.views.documents import FORMAT_VERSION, Document, PlanDocument


def plan_schema() -> Document:
    from pydantic import TypeAdapter

    made = TypeAdapter(PlanDocument).json_schema(ref_template="#/$defs/{model}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **made,
        "title": f"lium-plan plan, format {FORMAT_VERSION}",
    }


def plan_schema_text() -> str:
    return json.dumps(plan_schema(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(plan_schema_text(), encoding="utf-8")
