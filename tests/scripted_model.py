"""SCRIPT: a tiny Llama whose greedy output is known in advance, because its next token depends on its last one only.

Attention and MLP contribute nothing, and the embeddings of the tokens that matter are orthogonal. Good for streaming,
stop strings, UTF-8 and ends; blind to the KV cache.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.tiny_tokenizer import EOS, tiny_tokenizer

HIDDEN_SIZE = 64
LOGIT = 4.0


@dataclass(frozen=True)
class Chain:
    """Token ids that follow a prompt, then EOS or, looped, the first again."""

    token_ids: Sequence[int]
    loops: bool = False


def write_scripted_model(folder: Path, texts: Mapping[str, str | bytes], loops: Mapping[str, bytes]) -> None:
    """A checkpoint that answers a prompt ending in one of the characters of `texts` or `loops` with what that names.

    Values of `texts` are cut into tokens at "|". Values of `loops` are single tokens, repeated without end.
    """
    answers = {name: text.encode() if isinstance(text, str) else text for name, text in texts.items()}
    pieces = [piece for answer in answers.values() for piece in answer.split(b"|")]
    tokenizer = tiny_tokenizer([piece for piece in [*pieces, *loops.values()] if len(piece) > 1])
    vocabulary = {_bytes_of(tokenizer, token_id): token_id for token_id in range(len(tokenizer))}
    chains = {name: Chain([vocabulary[piece] for piece in answer.split(b"|")]) for name, answer in answers.items()}
    chains |= {name: Chain([vocabulary[token]], loops=True) for name, token in loops.items()}
    by_token = {vocabulary[name.encode()]: chain for name, chain in chains.items()}
    model = scripted_llama(by_token, len(tokenizer), tokenizer.convert_tokens_to_ids(EOS))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _bytes_of(tokenizer: object, token_id: int) -> bytes:
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    to_byte = {character: byte for byte, character in bytes_to_unicode().items()}
    token = tokenizer.convert_ids_to_tokens(token_id)  # type: ignore[attr-defined]
    return bytes(to_byte[character] for character in token) if all(c in to_byte for c in token) else token.encode()


def scripted_llama(chains: Mapping[int, Chain], vocab_size: int, eos: int) -> LlamaForCausalLM:
    """A model that follows a token id of `chains` with what that names, and any other token with `eos`."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab_size, hidden_size=HIDDEN_SIZE, intermediate_size=HIDDEN_SIZE, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=2048, tie_word_embeddings=False,
            bos_token_id=None, eos_token_id=eos,
        )
    ).float()  # fmt: skip
    special = [*chains, *(token_id for chain in chains.values() for token_id in chain.token_ids), eos]
    assert len(set(special)) == len(special) < HIDDEN_SIZE, "tokens of chains and their names must be distinct and few"
    directions = {token_id: torch.eye(HIDDEN_SIZE)[row] for row, token_id in enumerate(special, 1)}
    head = torch.zeros(vocab_size, HIDDEN_SIZE)
    for name, chain in chains.items():
        followers = [*chain.token_ids, chain.token_ids[0] if chain.loops else eos]
        for token_id, following in zip((name, *chain.token_ids), followers, strict=True):
            head[following] += LOGIT * directions[token_id]
    head[eos] += LOGIT * torch.eye(HIDDEN_SIZE)[0]         # what follows any other token, the chains' names included
    with torch.no_grad():
        for token_id in range(vocab_size):
            model.model.embed_tokens.weight[token_id] = directions.get(token_id, torch.eye(HIDDEN_SIZE)[0])
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.copy_(head)
    return model
