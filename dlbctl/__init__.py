"""dlbctl: a global load balancer for LLM inference, in two tiers of routers."""

__version__ = "0.1.0"
