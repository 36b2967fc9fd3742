"""`python -m lium_plan`."""

from __future__ import annotations

import sys

from lium_plan.cli.main import main

sys.exit(main())
