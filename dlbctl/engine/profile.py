"""What kind of machine an engine pretends to be: the figures of its speed and of its memory."""

from __future__ import annotations

import tomllib
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dlbctl.core.errors import ConfigError
from dlbctl.core.names import did_you_mean

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Speed and memory of one engine; a profile file has exactly these keys.

    A step takes `step_base_s` + `prefill_token_s` x prompt tokens in it + `decode_seq_s` x decoding
    sequences + `context_token_s` x the tokens those sequences hold in the KV cache.
    """

    name: str
    max_num_seqs: Count = 64
    """Sequences in the batch at once."""
    max_batch_tokens: Count = 2048
    """Tokens one step may compute; prompts longer than what is left of it are prefilled in chunks."""
    max_model_tokens: Count
    """Prompt and output of one request together."""
    block_tokens: Count = 16
    """Tokens of one KV block, the unit of the prefix cache."""
    kv_blocks: Count
    step_base_s: Annotated[float, Meta(gt=0)]
    prefill_token_s: Seconds
    decode_seq_s: Seconds
    context_token_s: Seconds
    mean_output_tokens: Annotated[float, Meta(ge=1)]
    """Mean length of an answer whose request does not fix it."""

    def __post_init__(self) -> None:
        if self.max_batch_tokens <= self.max_num_seqs:
            raise ValueError("max_batch_tokens must exceed max_num_seqs: decoding may not crowd out prefill")
        if self.max_model_tokens > self.kv_blocks * self.block_tokens:
            raise ValueError("max_model_tokens does not fit into kv_blocks x block_tokens")

    def blocks_for(self, tokens: int) -> int:
        """KV blocks that hold so many tokens."""
        return -(-tokens // self.block_tokens)


def builtin_names() -> list[str]:
    """Names of the profiles that come with the program."""
    files = resources.files("dlbctl.engine").joinpath("profiles").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_profile(name_or_file: str) -> Profile:
    """A built-in profile by name, or a TOML file; ConfigError says what is wrong with it and where."""
    if name_or_file in builtin_names():
        text = resources.files("dlbctl.engine").joinpath("profiles", f"{name_or_file}.toml").read_text()
        return parse_profile(text, where=name_or_file)
    path = Path(name_or_file)
    if not path.is_file():
        built_in = builtin_names()
        usual = f"built in: {', '.join(built_in)}; or give a TOML file with the same keys"
        raise ConfigError(
            f"no engine profile {name_or_file!r}", hint=did_you_mean(name_or_file, built_in, otherwise=usual)
        )
    return parse_profile(path.read_text(encoding="utf-8", errors="replace"), where=str(path))


def parse_profile(text: str, *, where: str) -> Profile:
    """A profile from TOML text; `where` names its source in errors (ConfigError)."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not TOML: {error}") from error
    _refuse_unknown_keys(values, where)
    try:
        return msgspec.convert(values, Profile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}", hint="compare with a built-in profile") from error


def adjusted(profile: Profile, **values: int) -> Profile:
    """The profile with some values replaced, validated again (ConfigError)."""
    try:
        return msgspec.convert({**msgspec.structs.asdict(profile), **values}, Profile)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{profile.name}: {error}") from error


def _refuse_unknown_keys(values: dict[str, Any], where: str) -> None:
    known = Profile.__struct_fields__
    for key in values:
        if key not in known:
            hint = did_you_mean(key, known, otherwise=f"keys: {', '.join(known)}")
            raise ConfigError(f"{where}: unknown key {key!r}", hint=hint)
