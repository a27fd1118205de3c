"""Decisions. Pure: no sockets, clock, files or global randomness (a test holds it)."""
