"""The JSON Schema of a manifest, generated from the blocks: for editors, and for reporting shape errors.

`python -m lium_plan.manifest.schema` writes `schemas/manifest.schema.json`; a test keeps that fresh. Owns nothing of
the meaning: every type's schema stands beside its reader in `kinds.fields`. `${{ … }}` is allowed in every typed field.
What no schema can say is left to `validate`: sums and comparisons (`4..2`, `90m`), names that must be declared, the
models of GPUs with all the ways of writing one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from lium_plan.addresses import NAME

if TYPE_CHECKING:
    from jsonschema.protocols import Validator
    from pydantic import BaseModel

    from lium_plan.kinds.fields import Schema

DROPPED_MOUNTS = ("/bin", "/dev", "/etc", "/proc", "/sys")
"""Below them the server mounts no local volume (contract §2.9)."""
REFUSED_WORDS = ("exec", "ls")
REFUSED_CHARACTERS = "&;|$(){}<>`\n\r"
"""What the platform takes in no start command but inside of quotes (contract §2.9.3, §15.8)."""
SCHEMA_ID = "manifest.schema.json"
_NAMES = {
    "variables": "[a-z_][a-z0-9_]{0,63}",
    "outputs": "[a-z][a-z0-9_-]{0,63}",
}


@lru_cache(maxsize=1)
def schema() -> Schema:
    """The whole document. Shared: don't change it."""
    from pydantic.json_schema import models_json_schema

    from lium_plan.kinds import registry
    from lium_plan.manifest import blocks

    models: dict[str, type[BaseModel]] = {section.key: section.load_block() for section in registry.sections()}
    lists: dict[str, type[BaseModel]] = {
        "imports": blocks.ImportBlock,
        "moved": blocks.MovedBlock,
        "removed": blocks.RemovedBlock,
    }
    every: list[type[BaseModel]] = [
        *models.values(),
        blocks.VariableBlock,
        blocks.PolicyBlock,
        *lists.values(),
    ]
    _, found = models_json_schema([(model, "validation") for model in every], ref_template="#/$defs/{model}")
    definitions: Schema = found["$defs"]
    for definition in definitions.values():
        _allow_expressions(definition)
    properties: Schema = {
        "version": {"description": "Version of this format", "type": "integer", "const": 1},
        "project": {
            "description": "Everything of this manifest on the account is marked with it",
            "type": "string",
            "pattern": f"^{NAME}$",
        },
        "include": {
            "description": "Other files of this manifest",
            "type": "array",
            "items": {"type": "string"},
        },
        "variables": _entries("variables", "VariableBlock", "Values given from outside"),
        **{key: _entries(key, model.__name__, model.__doc__ or "") for key, model in models.items()},
        "policy": {
            "description": _first_line(blocks.PolicyBlock),
            "anyOf": [{"$ref": "#/$defs/PolicyBlock"}, {"type": "null"}],
        },
        "outputs": {
            "description": "Values shown after an apply and by `lium-plan output`",
            "type": ["object", "null"],
            "propertyNames": {"pattern": f"^{_NAMES['outputs']}$"},
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        },
        **{
            key: {
                "description": _first_line(model),
                "type": ["array", "null"],
                "items": {"$ref": f"#/$defs/{model.__name__}"},
            }
            for key, model in lists.items()
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "lium-plan manifest",
        "type": "object",
        "additionalProperties": False,
        "required": ["project"],
        "properties": properties,
        "$defs": definitions,
    }


def _first_line(model: type[BaseModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def _given(name: str) -> Schema:
    """Written, and not null."""
    return {"required": [name], "properties": {name: {"not": {"type": "null"}}}}


def _unless_expression(rule: Schema) -> Schema:
    from lium_plan.kinds.fields import EXPRESSION

    return {"anyOf": [rule, EXPRESSION]}


def _rules() -> dict[str, Schema]:
    """What `checks` says of an entry's fields together, as far as JSON Schema can say it; by section."""
    foreign: Schema = {"if": _given("id"), "then": {"maxProperties": 1}}
    command: Schema = {"pattern": _command()}
    one_word: Schema = {"not": {"type": "string", "pattern": r"\S\s+\S"}}
    kept_mount: Schema = {"not": {"type": "string", "pattern": f"^(?:{'|'.join(DROPPED_MOUNTS)})(?:/|$)"}}
    ready: Schema = {"if": {"type": "object"}, "then": {"oneOf": [_given("port"), _given("command")]}}
    return {
        "volumes": {**foreign, "properties": {"lifecycle": _ignorable("volumes")}},
        "templates": {
            "allOf": [foreign, {"anyOf": [_given("image"), _given("id")]}],
            "properties": {
                "entrypoint": _unless_expression(one_word),
                "command": _unless_expression(command),
                "local_volume": kept_mount,
                "lifecycle": _ignorable("templates"),
            },
        },
        "fleets": {
            "not": {"allOf": [_given("template"), _given("image")]},
            "properties": {
                "bootstrap": {"properties": {"ready": ready}},
                "retry": {"properties": {"on_events": {"minItems": 1}}},
                "lifecycle": _ignorable("fleets"),
            },
        },
        "tasks": {
            "properties": {"commands": {"minItems": 1}},
            "if": {"required": ["on_completion"], "properties": {"on_completion": {"const": "destroy-fleet"}}},
            "then": {"properties": {"wait": _unless_expression({"const": "completed"})}},
        },
    }


def _command() -> str:
    """Words of plain, quoted and escaped characters, none of which is refused as it stands: `checks_templates`."""
    plain = rf"""[^\s'"\\{REFUSED_CHARACTERS.strip()}]"""
    part = rf"""(?:{plain}|'[^']*'|"[^"]*"|\\[\s\S])"""
    space = r"[^\S\n\r]"
    refused = rf"(?!(?:{'|'.join(REFUSED_WORDS)})(?!\S))"
    end = r"(?![\s\S])"  # `$` also matches before a last line break
    return rf"^{space}*(?:{refused}{part}+(?:{space}+|{end}))*{end}"


def _ignorable(key: str) -> Schema:
    from lium_plan.kinds.fields import EXPRESSION
    from lium_plan.manifest.checks_ignored import IGNORABLE, OPEN_BELOW

    known = IGNORABLE[key]
    below = [re.escape(name) for name in OPEN_BELOW if name.removesuffix(".") in known]
    names: list[Schema] = [{"enum": list(known)}, *({"pattern": f"^{name}[^.]*$"} for name in below), EXPRESSION]
    return {"properties": {"ignore_changes": {"items": {"anyOf": names}}}}


def _entries(key: str, model: str, description: str) -> Schema:
    entry: Schema = {"$ref": f"#/$defs/{model}"}
    if key == "volumes":
        entry = {"anyOf": [entry, {"type": "null"}]}
    rule = _rules().get(key)
    return {
        "description": description.strip().splitlines()[0] if description.strip() else key,
        "type": ["object", "null"],
        "propertyNames": {"pattern": f"^{_NAMES.get(key, NAME)}$"},
        "additionalProperties": entry if rule is None else {"allOf": [entry, rule]},
    }


def _allow_expressions(definition: Schema) -> None:
    """Lists, maps and blocks may be one whole expression too; scalars say so themselves."""
    from lium_plan.kinds.fields import EXPRESSION

    for name, prop in definition.get("properties", {}).items():
        prop.pop("title", None)
        # Defaults are told in the descriptions: pydantic's are internal values.
        prop.pop("default", None)
        if "$ref" in prop or prop.get("type") in ("array", "object"):
            described = {"description": prop.pop("description")} if "description" in prop else {}
            definition["properties"][name] = {"anyOf": [prop, EXPRESSION], **described}
        elif "anyOf" in prop and not any(option == EXPRESSION for option in prop["anyOf"]):
            prop["anyOf"] = [*prop["anyOf"], EXPRESSION]


@lru_cache(maxsize=16)
def validator_for(model: type[BaseModel]) -> Validator:
    """Checks one entry, as it is written, against the schema. Loads jsonschema."""
    return _strict({"$defs": schema()["$defs"], "$ref": f"#/$defs/{model.__name__}"})


def document_validator() -> Validator:
    """Checks a whole manifest. Loads jsonschema."""
    return _strict(schema())


def _strict(document: Schema) -> Validator:
    from jsonschema import Draft202012Validator, validators

    def is_integer(_: object, value: object) -> bool:
        # jsonschema counts 3.0 as an integer; we don't, since nothing is coerced here.
        return isinstance(value, int) and not isinstance(value, bool)

    checker = Draft202012Validator.TYPE_CHECKER.redefine("integer", is_integer)
    made: type[Validator] = validators.extend(Draft202012Validator, type_checker=checker)  # type: ignore[no-untyped-call]
    return made(document)


def text() -> str:
    """The schema file's content."""
    return json.dumps(schema(), indent=2, ensure_ascii=False, sort_keys=False, default=str) + "\n"


def main(arguments: Iterable[str] = ()) -> None:
    target = next(iter(arguments), None)
    path = Path(target) if target else Path(__file__).parents[2] / "schemas" / "manifest.schema.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
