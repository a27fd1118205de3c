from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from dlbctl.commands.engine import engine
from dlbctl.core.errors import ConfigError
from dlbctl.engine.profile import adjusted, builtin_names, load_profile, parse_profile

MINIMAL = """
name = "mine"
max_model_tokens = 4096
kv_blocks = 512
step_base_s = 0.02
prefill_token_s = 0.0001
decode_seq_s = 0
context_token_s = 0
mean_output_tokens = 100
"""


def test_built_in_profiles_are_valid_and_named_like_their_files() -> None:
    assert builtin_names() == ["h100", "l40s", "laptop"]
    assert [load_profile(name).name for name in builtin_names()] == builtin_names()


def test_the_commands_help_names_every_built_in_profile() -> None:
    text = inspect.signature(engine).parameters["profile"].default.help
    assert ", ".join(builtin_names()) in text


def test_the_h100_is_about_three_times_the_l40s() -> None:
    fast, slow = load_profile("h100"), load_profile("l40s")
    for figure in ("step_base_s", "prefill_token_s", "decode_seq_s", "context_token_s"):
        assert 2.5 <= getattr(slow, figure) / getattr(fast, figure) <= 4.5


def test_a_file_is_read_and_defaults_fill_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(MINIMAL)
    profile = load_profile(str(file))
    assert (profile.name, profile.max_num_seqs, profile.block_tokens) == ("mine", 64, 16)


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"here: unknown key 'kv_block'") as caught:
        parse_profile(MINIMAL + "kv_block = 3\n", where="here")
    assert caught.value.hint == "did you mean kv_blocks?"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ("step_base_s = 0\n", "step_base_s"),
        ('kv_blocks = "many"\n', "kv_blocks"),
        ("kv_blocks = 255\n", "does not fit"),
        ("max_batch_tokens = 64\n", "max_batch_tokens"),
        ("= 3\n", "not TOML"),
    ],
)
def test_bad_values_are_refused_with_their_place(change: str, complaint: str) -> None:
    key = change.split(" =")[0]
    kept = "".join(line for line in MINIMAL.splitlines(True) if not line.startswith(key + " "))
    with pytest.raises(ConfigError, match=complaint) as caught:
        parse_profile(kept + change, where="file.toml")
    assert caught.value.message.startswith("file.toml: ")


def test_a_missing_value_is_named() -> None:
    with pytest.raises(ConfigError, match="max_model_tokens"):
        parse_profile('name = "x"', where="x.toml")


def test_an_unknown_profile_is_a_configuration_error_that_names_the_nearest_or_all() -> None:
    with pytest.raises(ConfigError, match="no engine profile 'l40'") as caught:
        load_profile("l40")
    assert caught.value.hint == "did you mean l40s?"
    with pytest.raises(ConfigError, match="no engine profile 'tpu'") as caught:
        load_profile("tpu")
    assert "h100, l40s, laptop" in caught.value.hint
    assert caught.value.exit_code == 3


def test_adjusting_a_profile_validates_it_again() -> None:
    assert adjusted(load_profile("l40s"), max_num_seqs=3).max_num_seqs == 3
    with pytest.raises(ConfigError, match="max_batch_tokens"):
        adjusted(load_profile("l40s"), max_num_seqs=4096)
