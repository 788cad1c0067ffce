import torch

from engine.model.weights.rows import Stacked, copied

CPU = torch.device("cpu")


def numbered(num_rows, columns=3):
    return torch.arange(num_rows * columns, dtype=torch.float32).view(num_rows, columns)


def test_stacked_parts_read_as_one_weight_wherever_a_slice_begins_and_ends():
    parts = [numbered(5), numbered(1) + 100, numbered(4) + 200]
    whole, stacked = torch.cat(parts), Stacked(parts)
    assert stacked.shape == (10, 3)
    for first in range(10):
        for end in range(first + 1, 12):
            assert torch.equal(stacked[first:end], whole[first:end])
    assert torch.equal(stacked[:], whole)


def test_the_first_rows_alone():
    stacked = Stacked([numbered(5)], 3)
    assert stacked.shape == (3, 3)
    assert torch.equal(stacked[2:9], numbered(5)[2:3])
    assert Stacked([numbered(5)], 7).shape == (5, 3)


def test_a_copy_shares_no_memory_and_has_the_dtype_asked_for():
    source = numbered(1000, 1024)
    copy = copied(source, CPU, torch.float16)
    assert torch.equal(copy, source.half())
    same = copied(source, CPU, torch.float32)
    assert torch.equal(same, source)
    assert same.data_ptr() != source.data_ptr()
