"""Writes the man pages from the code: the command line, the configuration's structures, the policies."""
