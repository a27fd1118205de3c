"""`dlbctl check`: exit 0 for what would start, 3 with file and fault for what would not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dlbctl.commands.check import check
from dlbctl.core.errors import ConfigError
from tests.acceptance.commands import dlbctl

ROOT = '[root]\nlisten = "127.0.0.1:0"\n[[cell]]\nname = "eu"\nleaves = ["http://127.0.0.1:1"]\n'
LEAF = '[leaf]\ncell = "eu"\n[[server]]\nurl = "http://127.0.0.1:1"\n[[server]]\nurl = "http://127.0.0.1:2"\n'
FLEET = '[[region]]\nname = "us-ashburn"\n[[region]]\nname = "eu-frankfurt"\n'


def test_as_a_process_it_says_ok_or_ends_with_3(tmp_path: Path) -> None:
    path = tmp_path / "any.toml"
    path.write_text(ROOT)
    assert dlbctl("check", path) == (0, f"{path}: a root of 1 cell, 0 endpoints configured: ok\n", "")
    path.write_text(ROOT + "leafs = 1\n")
    code, out, err = dlbctl("check", path)
    assert (code, out) == (3, "")
    assert err == f"dlbctl: error: {path}: unknown key cell[0].leafs\n  did you mean leaves?\n"


def test_a_full_disk_is_one_line_and_no_success(tmp_path: Path) -> None:
    path = tmp_path / "any.toml"
    path.write_text(ROOT)
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "dlbctl", "check", str(path)]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr == "dlbctl: error: standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ROOT, "a root of 1 cell, 0 endpoints configured: ok"),
        (LEAF, "a leaf of 2 servers in eu: ok"),
        (FLEET, "a fleet of 2 regions: ok"),
    ],
)
def test_what_would_start_is_told_in_a_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "[a].toml"
    path.write_text(text)
    check(path)
    assert capsys.readouterr().out == f"{path}: {said}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has neither [root], [leaf] nor [[region]]"),
        ("x = ", "not valid TOML"),
        (ROOT + '[leaf]\ncell = "eu"\n', "unknown key leaf"),
        ("root = 1\n", "root"),
        (ROOT.replace("[root]", '[root]\npeer_token_file = "/none"'), "peer_token_file: /none"),
        (ROOT + '[[endpoint]]\nname = "m"\npolicy = "discrete/latancy"\n', "endpoint[0].policy"),
        (LEAF.replace("127.0.0.1:2", "127.0.0.1:1"), "two entries have the same name or address"),
        (LEAF.replace("[leaf]", '[leaf]\nadmin = "0.0.0.0:1"'), "leaf.admin"),
        (FLEET + '[[region]]\nname = "eu-frankfurt"\n', "region[2].name"),
        (FLEET.replace('"us-ashburn"', '"mars"'), "no delay is known from"),
        ('policy = "discrete/nope"\n' + FLEET, "root of us-ashburn: endpoint[0].policy: there is no cost 'nope'"),
        (FLEET + "[override.root.root]\nlsten = 1\n", "root of us-ashburn: unknown key root.lsten"),
        (FLEET + "[override.leaf.leaf]\ndrain_s = -1\n", "leaf of us-ashburn: leaf.drain_s: cannot be negative"),
        (FLEET + '[override.leaf.leaf]\npeer_token_file = "/none"\n', "peer_token_file: /none"),
        (FLEET + 'profile = "nope"\n', "no engine profile 'nope'"),
    ],
)
def test_what_would_not_start_is_told_with_its_place(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "any.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        check(path)
    assert said in caught.value.message


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        check(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        check(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'x = "\xe9"')
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        check(tmp_path / "latin.toml")
