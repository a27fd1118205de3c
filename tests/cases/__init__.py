"""Faults that users of comparable routers and proxies reported in public, each as a test of its own.

A docstring says the case in this project's words, its number in the list, and the report (repository#number; `!` for
a change request).
"""
