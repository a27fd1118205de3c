"""The errors a user meets: each knows its exit code and says what to do next."""

from __future__ import annotations

from typing import ClassVar

REPEATED_LETTERS = 80


def shortened(text: str) -> str:
    """What somebody else wrote, as a message repeats it: the beginning of what is too long for one."""
    return text if len(text) <= REPEATED_LETTERS else f"{text[:REPEATED_LETTERS]}..."


class DlbctlError(Exception):
    """Something the user has to know; the command line prints it without a traceback.

    message: one line that says what is wrong and where. hint: what to do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(DlbctlError):
    """The command line's words do not fit together."""

    exit_code = 2


class ConfigError(DlbctlError):
    """A configuration or trace file that cannot be used; the message names file and key or line."""

    exit_code = 3


class UnreachableError(DlbctlError):
    """A router, server or admin socket that does not answer."""

    exit_code = 4


class ObjectiveMissedError(DlbctlError):
    """The run went well and the service objective (`--slo`) was not met."""

    exit_code = 5
