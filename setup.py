"""Compiles the request path with mypyc when a wheel is built; which modules that is says pyproject.toml.

An editable installation stays interpreted, so that edits take effect. So does a wheel that is built where there is
no C compiler or no `Python.h`; it then runs on every platform.

DLBCTL_COMPILE=0 never compiles, DLBCTL_COMPILE=1 fails where it cannot.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import tomllib
from glob import glob
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.errors import BaseError, CCompilerError

# Types of compiled modules count, not complaints about others; what those import (numpy) need not be there.
MYPY_OPTIONS = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]

INTERPRETED = """
*** dlbctl is installed without its compiled request path, because C code cannot be compiled here:
***     {why}
*** It works all the same, at about twice the CPU for each request. To compile it, install a C compiler and Python's
*** headers (Debian: gcc python3-dev), then install dlbctl again. `dlbctl --version` tells which one is installed.
"""


def extensions(folder: Path) -> list[Extension]:
    """The compiled modules; none where they are not wanted or cannot be made. folder: for what is generated."""
    wish = os.environ.get("DLBCTL_COMPILE", "")
    if wish not in {"", "0", "1"}:
        sys.exit(f"DLBCTL_COMPILE={wish}: write 0 for never, 1 for always")
    if wish == "0" or "bdist_wheel" not in sys.argv:
        return []
    why = obstacle(folder)
    if not why:
        return compiled(folder)
    if wish == "1":
        sys.exit(f"DLBCTL_COMPILE=1, and C code cannot be compiled here: {why}")
    sys.stderr.write(INTERPRETED.format(why=why))
    return []


def obstacle(folder: Path) -> str:
    """What keeps C code from being compiled against Python's headers; empty when nothing does."""
    source = folder / "probe.c"
    source.write_text("#include <Python.h>\nPyMODINIT_FUNC PyInit_probe(void) { return NULL; }\n")
    build = Distribution({"ext_modules": [Extension("probe", [str(source)])]}).get_command_obj("build_ext")
    build.build_lib = build.build_temp = str(folder / "probe")
    try:
        build.ensure_finalized()
        build.run()
    except (BaseError, CCompilerError, OSError) as error:
        return str(error)
    return ""


def compiled(folder: Path) -> list[Extension]:
    """Have mypyc turn the modules into C."""
    from mypyc.build import mypycify

    patterns = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["tool"]["dlbctl"]["compiled"]
    modules = [path for pattern in patterns for path in sorted(glob(pattern))]
    options = [*MYPY_OPTIONS, f"--cache-dir={folder / 'mypy'}"]
    made = mypycify([*options, *modules], target_dir=str(folder), group_name="dlbctl")
    for extension in made:
        # Another compiler's new warning about generated code is no reason not to install.
        extension.extra_compile_args = [flag for flag in extension.extra_compile_args if flag != "-Werror"]
    return made


# A build folder that outlives the build would put modules that were since deleted into the next wheel.
build_folder = Path(tempfile.mkdtemp(prefix="dlbctl-build-"))
atexit.register(shutil.rmtree, build_folder, ignore_errors=True)
setup(ext_modules=extensions(build_folder), options={"build": {"build_base": str(build_folder)}})
