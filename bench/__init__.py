"""Measurements: ratios against peers in one run, medians, memory. `make bench`, or `python -m bench NAME…`."""
