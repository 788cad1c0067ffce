"""A stand-in tokenizer for random weights: text is its bytes, and every further id of the vocabulary is a number.

It is made in memory, so a model of random weights needs no file at all.
"""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from engine.text.saved_tokenizer import SavedTokenizer
from engine.text.token_bytes import byte_alphabet

CHAT_TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


def byte_tokenizer(vocab_size: int) -> SavedTokenizer:
    """Ids [0, 256) are the bytes; id i from there on decodes to " i", and is what no text encodes to."""
    alphabet = byte_alphabet()
    space = next(character for character, byte in alphabet.items() if byte == ord(" "))
    vocabulary = dict(alphabet) | {f"{space}{token_id}": token_id for token_id in range(256, vocab_size)}
    pipeline = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pipeline.decoder = decoders.ByteLevel()
    return SavedTokenizer(pipeline, special_tokens={}, eos_token_ids=(), chat_templates={"default": CHAT_TEMPLATE})
