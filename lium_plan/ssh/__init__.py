"""Reaching a machine over SSH: open, put, run, follow.

`protocol` is what others program against; `connector` is its implementation on asyncssh, which only `wire`
imports, and only when a first connection is made. Nothing here knows kinds, state, plans or Lium's API.
"""
