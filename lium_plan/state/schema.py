"""The JSON Schema of a snapshot, generated from the dataclasses that the codec reads and writes by."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lium_plan.kinds.protocol import Json
from lium_plan.state.codec import FORMAT, LARGEST_NUMBER, LINEAGE_PATTERN, STATE


def state_schema() -> Mapping[str, Json]:
    """A JSON Schema (2020-12) of `<stack>.json`. What it can't say (keys that match rows) the codec checks."""
    schema = STATE.schema
    properties, required = schema["properties"], schema["required"]
    assert isinstance(properties, Mapping)
    assert isinstance(required, list)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "lium-plan state snapshot",
        **schema,
        "required": ["format", "checksum", *required],
        "properties": {
            "format": {"const": FORMAT},
            "checksum": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            **properties,
            "lineage": {"type": "string", "pattern": f"^{LINEAGE_PATTERN}$"},
            "salt": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
            "project": {"type": "string", "minLength": 1},
            "stack": {"type": "string", "minLength": 1},
            "serial": {"type": "integer", "minimum": 0, "maximum": LARGEST_NUMBER},
            "sequence": {"type": "integer", "minimum": 0, "maximum": LARGEST_NUMBER},
        },
    }


def render_state_schema() -> str:
    """The text of `schemas/state.schema.json`."""
    return json.dumps(state_schema(), indent=2) + "\n"
