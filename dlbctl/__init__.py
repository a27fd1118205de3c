"""dlbctl: a global load balancer for LLM inference, in two tiers of routers."""

from __future__ import annotations

__version__ = "0.1.0"


def is_compiled() -> bool:
    """Whether the request path of this installation runs compiled (`setup.py`), not interpreted."""
    from importlib.util import find_spec  # only --version asks

    found = find_spec("dlbctl.core.tier")
    return found is not None and not str(found.origin).endswith(".py")
