"""`dlbctl up`: its words, and the errors it gives before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from dlbctl.commands import up
from dlbctl.core.errors import ConfigError, UnreachableError, UsageError


def run(*words: str) -> None:
    """Run the command as the app does, with its errors raised."""
    app = typer.Typer()
    app.command()(up.up)
    result = CliRunner().invoke(app, list(words))
    if result.exception:
        raise result.exception


@pytest.mark.parametrize("text", ["soon", "10d", "-5s", "1e3", "5 s"])
def test_a_duration_that_is_none_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="not a duration"):
        run(f"--for={text}")


def test_a_fleet_file_is_checked_before_a_folder_is_made(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text("regions = 3\n")
    with pytest.raises(ConfigError, match="unknown key regions"):
        run(str(tmp_path / "fleet.toml"), "--dir", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_stop_without_a_running_fleet_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(UnreachableError, match="no fleet of this user runs"):
        run("--stop")
    with pytest.raises(UnreachableError, match="no fleet runs here") as caught:
        run("--stop", "--dir", str(tmp_path))
    assert caught.value.exit_code == 4
