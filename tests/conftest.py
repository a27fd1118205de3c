"""What every test may rely on."""

from __future__ import annotations

import signal

# A shell that starts the tests in the background has them ignore SIGINT, and the processes they start as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
