"""The client of Lium's HTTP API: endpoints, wire models, errors, limits and the poller.

It knows nothing of plans, kinds or state. httpx is loaded by `transport.py` alone, so `errors`, `models` and `windows`
can be imported without it; this file imports nothing for the same reason.
"""

import sys

# httpx brings a command line of its own along where it can import one, and that costs as much time as all the rest of
# it. It takes a failing import for an extra that is not installed.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
