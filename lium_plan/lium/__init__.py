"""The client of Lium's HTTP API: endpoints, wire models, errors, limits and the poller.

It knows nothing of plans, kinds or state. httpx is loaded by `transport.py` alone, so `errors`, `models` and `windows`
can be imported without it; this file imports nothing for the same reason.
"""
