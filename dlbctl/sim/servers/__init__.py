"""Modelled inference servers: how long each request takes. One file per kind; `plan.py` says how they are described."""
