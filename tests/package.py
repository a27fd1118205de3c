"""Where the dlbctl under test is: the sources, or the compiled package made of them."""

from __future__ import annotations

from pathlib import Path

import dlbctl

# The first entry of PYTHONPATH for processes that must run the same one.
FOLDER = Path(dlbctl.__file__).resolve().parents[1]
