"""Traces in, timed requests out, reports."""
