"""Finds costs and mechanisms by file name: a further one is one new file in its package.

Names are listed without importing anything, so that the command line stays quick.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from types import ModuleType

from dlbctl.core.errors import ConfigError
from dlbctl.core.names import did_you_mean


class Registry:
    """The modules of one package, by name: `power_of_d.py` is `power-of-d`."""

    def __init__(self, package: ModuleType, kind: str) -> None:
        self._package = package
        self.kind = kind
        self._loaded: dict[str, ModuleType] = {}

    def __repr__(self) -> str:
        return f"<Registry {self.kind}: {', '.join(self.names())}>"

    def names(self) -> list[str]:
        """Every name that can be chosen, sorted."""
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(self._package.__path__))

    def load(self, name: str, *, where: str) -> ModuleType:
        """The module of that name. ConfigError names the nearest one when there is none."""
        loaded = self._loaded.get(name)
        if loaded is None:  # costs that fall back are asked for while routing, where nothing may look at a disk
            known = self.names()
            if name not in known:
                hint = did_you_mean(name, known, otherwise=f"one of: {', '.join(known)}")
                raise ConfigError(f"{where}: there is no {self.kind} {name!r}", hint=hint)
            loaded = self._loaded[name] = importlib.import_module(f"{self._package.__name__}.{_module(name)}")
        return loaded

    def summary(self, name: str) -> str:
        """The first line of that module's docstring, from its source: a compiled module has none."""
        source = pkgutil.get_data(self._package.__name__, f"{_module(name)}.py")
        assert source is not None
        return (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]


def _module(name: str) -> str:
    return name.replace("-", "_")
