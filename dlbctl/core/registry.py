"""Finds costs and mechanisms by file name: a further one is one new file in its package.

Names are listed without importing anything, so that the command line stays quick.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from dlbctl.core.errors import ConfigError


class Registry:
    """The modules of one package, by name: `power_of_d.py` is `power-of-d`."""

    def __init__(self, package: ModuleType, kind: str) -> None:
        self._package = package
        self.kind = kind

    def __repr__(self) -> str:
        return f"<Registry {self.kind}: {', '.join(self.names())}>"

    def names(self) -> list[str]:
        """Every name that can be chosen, sorted."""
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(self._package.__path__))

    def load(self, name: str, *, where: str) -> ModuleType:
        """The module of that name. ConfigError names the nearest one when there is none."""
        if name not in self.names():
            raise ConfigError(f"{where}: there is no {self.kind} {name!r}", hint=f"one of: {', '.join(self.names())}")
        return importlib.import_module(f"{self._package.__name__}.{name.replace('-', '_')}")

    def summary(self, name: str) -> str:
        """The first line of that module's docstring."""
        return (self.load(name, where=self.kind).__doc__ or "").strip().splitlines()[0]
