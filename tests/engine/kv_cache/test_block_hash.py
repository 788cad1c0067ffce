from engine.kv_cache.block_hash import block_hash, root_hash


def test_hash_covers_every_token_before_the_block():
    root = root_hash("")
    assert block_hash(block_hash(root, [1, 2]), [5, 6]) == block_hash(block_hash(root, [1, 2]), [5, 6])
    assert block_hash(block_hash(root, [1, 2]), [5, 6]) != block_hash(block_hash(root, [1, 3]), [5, 6])


def test_hash_depends_on_order_and_on_the_limits_between_tokens():
    root = root_hash("")
    assert len({block_hash(root, tokens) for tokens in ([1, 2], [2, 1], [12], [1, 2, 0], [0, 1, 2], [258])}) == 6


def test_salts_separate_equal_tokens():
    assert block_hash(root_hash("tenant a"), [1, 2]) != block_hash(root_hash("tenant b"), [1, 2])


def test_hash_is_the_same_in_every_process():
    assert block_hash(root_hash("salt"), [1, 151_935]).hex() == "e6163505ec41af381cd0efda93ce9c62"
