"""Block hashes: the names under which full blocks of K/V are found again.

A block's hash covers its own tokens and, through its parent's hash, every token before them: two blocks with one
hash hold the K/V of the same tokens at the same positions. The digest has 128 bits of BLAKE2b, so a clash cannot
be found by chance or by design and hits need no comparison of tokens; it is the same in every process.
"""

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_DIGEST_BYTES = 16


def root_hash(salt: str) -> bytes:
    """The parent of a first block. Requests with different salts share no block."""
    return blake2b(salt.encode(), digest_size=_DIGEST_BYTES, person=b"root").digest()


def block_hash(parent: bytes, token_ids: Sequence[int]) -> bytes:
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=_DIGEST_BYTES).digest()
