"""What must be the same wherever the tests are started from."""

from __future__ import annotations

import signal

# Under `nohup` and some job runners SIGHUP is ignored, and children inherit that. lium-plan respects it, so the tests
# of a closed terminal would wait for nothing.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
