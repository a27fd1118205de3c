"""The folder of one fleet's run: generated TOML, logs, sockets and fleet.json, and the lock of who runs there."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import time
from hashlib import blake2b
from pathlib import Path

import msgspec
from msgspec import Struct

from dlbctl.core.errors import DlbctlError, UnreachableError, UsageError

# sun_path holds 108 bytes on Linux and 104 on BSD and macOS, with the closing zero.
_SOCKET_PATH_BYTES = 103
_LONGEST_SOCKET_NAME = 64
_STOP_TIMEOUT_S = 20.0


class RegionRecord(Struct, frozen=True, kw_only=True):
    """Where the processes of one region answer."""

    name: str
    url: str
    demand: float
    root_admin: str
    leaf: str
    leaf_admin: str
    engines: tuple[str, ...]

    @property
    def target(self) -> str:
        """The region's root as `dlbctl replay --target` takes it, with the weight of its clients."""
        return f"{self.name}={self.url}:{self.demand:g}"


class LinkRecord(Struct, frozen=True, kw_only=True):
    """One way through the delay relay."""

    source: str
    destination: str
    url: str
    delay_ms: float


class FleetRecord(Struct, frozen=True, kw_only=True):
    """fleet.json: what runs, where it answers, and which process is which."""

    pid: int
    directory: str
    model: str
    relay_control: str
    regions: tuple[RegionRecord, ...]
    links: tuple[LinkRecord, ...]
    pids: dict[str, int]

    @property
    def admin(self) -> str:
        """Every root's admin address as `--admin` and DLBCTL_ADMIN take them, with commas."""
        return ",".join(region.root_admin for region in self.regions)

    @property
    def target(self) -> str:
        """Every root as DLBCTL_TARGET takes them, with commas; a region without clients is no target."""
        return ",".join(region.target for region in self.regions if region.demand > 0)


class RunFolder:
    """The folder while this process runs a fleet in it."""

    def __init__(self, path: Path) -> None:
        """Make the folder if need be and take its lock; DlbctlError where another fleet runs in it."""
        self.path = path.absolute()
        try:
            (self.path / "logs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DlbctlError(
                f"{self.path}: cannot be the fleet's folder: {error.strerror}", hint="choose another --dir"
            ) from error
        self._lock = _locked(self.path)
        if self._lock is None:
            raise DlbctlError(
                f"{self.path}: another fleet runs in this folder",
                hint=f"End it with `dlbctl up --stop --dir {self.path}`, or choose another --dir.",
            )
        (self.path / "fleet.json").unlink(missing_ok=True)
        self.sockets = _socket_folder(self.path)
        for stale in self.sockets.glob("*.sock"):  # of a fleet that was killed
            stale.unlink()

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def config(self, name: str) -> Path:
        """Return where a process's TOML is kept."""
        return self.path / f"{name}.toml"

    def log(self, name: str) -> Path:
        """Return where what a process says is kept."""
        return self.path / "logs" / f"{name}.log"

    def socket(self, name: str) -> Path:
        """Return a path that is short enough for a unix socket."""
        return self.sockets / f"{name}.sock"

    def write_record(self, record: FleetRecord) -> None:
        """Write fleet.json, whole or not at all."""
        fresh = self.path / "fleet.json.new"
        fresh.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2))
        fresh.replace(self.path / "fleet.json")

    def release(self) -> None:
        """Give the folder up; files and logs stay."""
        if self.sockets != self.path:
            shutil.rmtree(self.sockets, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)


def fresh_folder() -> Path:
    """Make a new folder for one run under this user's runtime folder."""
    return Path(tempfile.mkdtemp(prefix="up-", dir=_own(_runs())))


def read_record(path: Path) -> FleetRecord:
    """Return the fleet.json of a folder; UnreachableError where there is none that can be read."""
    try:
        return msgspec.json.decode((path / "fleet.json").read_bytes(), type=FleetRecord)
    except (OSError, msgspec.DecodeError) as error:
        raise UnreachableError(f"{path}: no fleet has come up here", hint="Is it the right --dir?") from error


def running_fleets() -> list[FleetRecord]:
    """Return the records of this user's fleets that are up, those in a folder of their own (`--dir`) left out."""
    return [read_record(folder) for folder in _running() if (folder / "fleet.json").exists()]


def stop_fleet(path: Path | None, *, timeout_s: float = _STOP_TIMEOUT_S) -> Path:
    """End the fleet that runs in `path`, by default the only one that runs; return its folder."""
    folder = _the_running_one() if path is None else path.absolute()
    if not _is_running(folder):
        raise UnreachableError(f"{folder}: no fleet runs here", hint="Nothing had to be stopped.")
    pid = read_record(folder).pid
    os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + timeout_s
    while _is_running(folder):
        if time.monotonic() > deadline_s:
            raise DlbctlError(
                f"{folder}: the fleet (pid {pid}) has not ended within {timeout_s:g} s",
                hint=f"`kill -9 {pid}` ends it with all its processes.",
            )
        time.sleep(0.05)
    return folder


def _runs() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "dlbctl" if runtime else Path(tempfile.gettempdir()) / f"dlbctl-{os.getuid()}"


def _running() -> list[Path]:
    return [folder for folder in sorted(_runs().glob("up-*")) if _is_running(folder)]


def _the_running_one() -> Path:
    running = _running()
    if len(running) == 1:
        return running[0]
    if not running:
        raise UnreachableError("no fleet of this user runs", hint="One started with --dir is stopped with --dir.")
    names = "\n  ".join(str(folder) for folder in running)
    raise UsageError(f"{len(running)} fleets run", hint=f"Name one with --dir:\n  {names}")


def _locked(folder: Path, kind: int = fcntl.LOCK_EX) -> int | None:
    """Take the folder's lock; None where another process has it. The kernel frees it on any death."""
    fd = os.open(folder / "fleet.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _is_running(folder: Path) -> bool:
    if not (folder / "fleet.lock").exists():
        return False
    # Shared, so that two who look at the same time do not take each other for a fleet.
    fd = _locked(folder, fcntl.LOCK_SH)
    if fd is not None:
        os.close(fd)
    return fd is None


def _socket_folder(folder: Path) -> Path:
    """Return the run's folder, or a short one instead where a socket's whole path would not fit the kernel.

    The short one's name follows from the run's, so that the next fleet there clears away what a killed one left.
    """
    if len(os.fsencode(folder)) + 1 + _LONGEST_SOCKET_NAME <= _SOCKET_PATH_BYTES:
        return folder
    digest = blake2b(os.fsencode(folder), digest_size=6).hexdigest()
    return _own(Path("/tmp") / f"dlbctl-{os.getuid()}-{digest}")  # noqa: S108 - the shortest there is; _own checks it


def _own(folder: Path) -> Path:
    """Make a folder that only this user can enter; DlbctlError where somebody else was first."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise DlbctlError(f"{folder}: belongs to another user", hint="Choose a folder of your own with --dir.")
    return folder
