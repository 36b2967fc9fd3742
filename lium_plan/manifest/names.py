"""What `${{ var.… }}`, `${{ env.… }}`, `${{ project }}`, `${{ stack }}` and `file(…)` mean while a manifest is loaded.

Owns reading of files named in expressions. Refuses unknown variables, unset environment variables (unless in
`default(…)`), and files that are no text or too big.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from lium_plan.diagnostics import Diagnostics
from lium_plan.expressions import ExpressionError, MissingValue, Reference, Text
from lium_plan.kinds.protocol import Json
from lium_plan.kinds.values import shown
from lium_plan.manifest.document import Document
from lium_plan.manifest.source import read_bytes
from lium_plan.manifest.tree import Known
from lium_plan.manifest.variables import Variable

MAX_FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that a manifest may ask for besides what is written in it."""

    project: str
    stack: str
    variables: Mapping[str, Variable | None]
    environ: Mapping[str, str]
    volume_ids: Mapping[str, str]
    """Ids of volumes that are somebody else's: known already."""

    def resolve(self, text: Text, document: Document, sensitive_environment: bool) -> Text:
        """Fill in all that is known at load. Raises `ExpressionError`."""
        return self.resolve_in(text, document.path.parent, sensitive_environment)

    def resolve_in(self, text: Text, directory: Path, sensitive_environment: bool) -> Text:
        filled = text.resolve(_Names(self, directory, sensitive_environment))
        return filled if filled.known else filled.fill(self._lookup)

    def _lookup(self, reference: Reference) -> Json | None:
        return self.volume_ids.get(reference.name) if reference.head == "volume" else None


@dataclass(frozen=True, slots=True)
class _Names:
    inputs: Inputs
    directory: Path
    sensitive_environment: bool

    def value(self, root: str, key: str) -> tuple[Json, bool]:
        if root == "project":
            return self.inputs.project, False
        if root == "stack":
            return self.inputs.stack, False
        if root == "env":
            if key not in self.inputs.environ:
                raise MissingValue(f"the environment variable {key} is not set")
            value = self.inputs.environ[key]
            if any("\ud800" <= char <= "\udfff" for char in value):  # how Python keeps bytes that are no text
                raise ExpressionError(f"the environment variable {key} is not UTF-8 text")
            return value, self.sensitive_environment
        if key not in self.inputs.variables:
            near = get_close_matches(key, list(self.inputs.variables), 1, 0.6)
            hint = f"; did you mean 'var.{near[0]}'?" if near else ": declare it under `variables:`"
            raise ExpressionError(f"unknown variable 'var.{key}'{hint}")
        variable = self.inputs.variables[key]
        if variable is None:
            raise Known(f"var.{key} has no value")
        return variable.value, variable.sensitive

    def file(self, path: str) -> str:
        faults = Diagnostics()
        data = read_bytes(self.directory / Path(path).expanduser(), path, faults, limit=MAX_FILE_BYTES)
        if data is None:
            raise ExpressionError(next((item.message for item in faults), f"can't read {shown(path)}"))
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise ExpressionError(f"{shown(path)} is not UTF-8 text") from None
