"""A llama model of random weights, a few hundred kilobytes in a GGUF file, that real llama.cpp serves.

Its vocabulary is the 256 bytes in GPT-2's spelling with a few merges, so it reads any text. It writes
printable ASCII only and never ends by itself: a stream is as long as `max_tokens` says, a chunk a token.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

CONTEXT = 65536  # tokens
_WIDTH, _LAYERS, _HEADS, _KV_HEADS = 64, 2, 2, 1
_SPECIAL = ["<unk>", "<|im_start|>", "<|im_end|>"]
_MERGES = ["t h", "th e", "i n", "a n", "e r"]
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)


def write_tiny_gguf(path: Path) -> None:
    """Write the model; the same bytes every time."""
    writer = gguf.GGUFWriter(str(path), "llama")
    _add_shape(writer)
    tokens = _SPECIAL + [_spelling(byte) for byte in range(256)] + [merge.replace(" ", "") for merge in _MERGES]
    _add_vocabulary(writer, tokens)
    _add_weights(writer, [_is_printable(token) for token in tokens])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _spelling(byte: int) -> str:
    """The character that stands for a byte in GPT-2's vocabulary: itself if it prints, else past U+00FF."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in prints:
        return chr(byte)
    return chr(256 + byte - sum(other < byte for other in prints))


def _is_printable(token: str) -> bool:
    return token not in _SPECIAL and all(33 <= ord(char) < 127 for char in token)


def _add_shape(writer: gguf.GGUFWriter) -> None:
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(2 * _WIDTH)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _add_vocabulary(writer: gguf.GGUFWriter, tokens: list[str]) -> None:
    kinds = [gguf.TokenType.CONTROL if token in _SPECIAL else gguf.TokenType.NORMAL for token in tokens]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(_MERGES)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(_TEMPLATE)


def _add_weights(writer: gguf.GGUFWriter, printable: list[bool]) -> None:
    """Random matrices, but for dimension 0: one in every embedding and written by no layer.

    So it stays positive, and the output matrix uses it to hold back every token that is not printable.
    """
    rng = np.random.default_rng(0)

    def matrix(*shape: int) -> NDArray[np.float32]:
        return (rng.standard_normal(shape) * 0.3).astype(np.float32)

    def residual(*shape: int) -> NDArray[np.float32]:
        weight = matrix(*shape)
        weight[0] = 0.0
        return weight

    ones = np.ones(_WIDTH, np.float32)
    embedding, output = matrix(len(printable), _WIDTH), matrix(len(printable), _WIDTH)
    embedding[:, 0] = 1.0
    output[:, 0] = np.where(printable, 0.0, -1000.0)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", output)
    kv_width = _KV_HEADS * _WIDTH // _HEADS
    for layer in range(_LAYERS):
        weights = {
            "attn_norm": ones,
            "ffn_norm": ones,
            "attn_q": matrix(_WIDTH, _WIDTH),
            "attn_k": matrix(kv_width, _WIDTH),
            "attn_v": matrix(kv_width, _WIDTH),
            "attn_output": residual(_WIDTH, _WIDTH),
            "ffn_gate": matrix(2 * _WIDTH, _WIDTH),
            "ffn_up": matrix(2 * _WIDTH, _WIDTH),
            "ffn_down": residual(_WIDTH, 2 * _WIDTH),
        }
        for name, weight in weights.items():
            writer.add_tensor(f"blk.{layer}.{name}.weight", weight)
