import pytest
import torch

from engine.step.arrays import StepArrays, pad_decode
from engine.step.buffers import InputBuffers, table_width

CPU = torch.device("cpu")


def decode_step(batch_size: int, input_id: int = 0, max_blocks: int = 3) -> StepArrays:
    arrays = pad_decode(StepArrays.of_nothing(max_blocks), batch_size)
    arrays.input_ids[:] = input_id
    arrays.block_table[:] = input_id
    return arrays


def tensors(inputs):
    batch = inputs.batch
    fields = ("input_ids", "positions", "rope_lengths", "query_start_loc", "seq_lens", "block_table", "slot_mapping")
    return [inputs.source, inputs.logits_indices, *(getattr(batch, field) for field in fields)]


def test_every_array_arrives():
    arrays = decode_step(5, input_id=7)
    inputs = InputBuffers(CPU).load(arrays)
    batch = inputs.batch
    assert batch.input_ids.tolist() == [7] * 5
    assert batch.block_table[:, :3].tolist() == [[7] * 3] * 5
    assert not batch.block_table[:, 3:].any()
    assert batch.slot_mapping.tolist() == inputs.source.tolist() == [-1] * 5
    assert batch.query_start_loc.tolist() == [0, 1, 2, 3, 4, 5]
    assert inputs.logits_indices.tolist() == [0, 1, 2, 3, 4]
    assert (batch.max_query_len, batch.seq_lens.dtype, batch.positions.dtype) == (1, torch.int32, torch.int64)


def test_equal_shapes_stand_at_equal_addresses_whatever_came_between():
    buffers = InputBuffers(CPU)
    buffers.reserve(64, 64, max_blocks=40)
    first = tensors(buffers.load(decode_step(8), max_blocks=40))
    for batch_size in (64, 1, 3):
        buffers.load(decode_step(batch_size), max_blocks=40)
    second = tensors(buffers.load(decode_step(8, input_id=9), max_blocks=40))
    assert [tensor.data_ptr() for tensor in first] == [tensor.data_ptr() for tensor in second]
    assert first[2].tolist() == [9] * 8                        # a graph that holds the first sees the second


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 8, 13])
def test_kernels_find_every_array_aligned_and_the_tables_rows_too(batch_size):
    inputs = InputBuffers(CPU).load(decode_step(batch_size))
    assert all(tensor.data_ptr() % 16 == 0 for tensor in tensors(inputs))
    assert inputs.batch.block_table.stride(0) % 16 == 0


def test_a_larger_step_makes_room_for_itself():
    buffers = InputBuffers(CPU)
    inputs = buffers.load(decode_step(3000, input_id=4))
    assert inputs.batch.input_ids.tolist() == [4] * 3000


def test_steps_of_one_shape_arrive_though_room_was_made_between_them():
    buffers = InputBuffers(CPU)
    buffers.load(decode_step(3, input_id=1))
    buffers.reserve(2000, 2000, max_blocks=3)
    inputs = buffers.load(decode_step(3, input_id=2))
    assert inputs.batch.input_ids.tolist() == [2] * 3
    assert inputs.batch.input_ids.data_ptr() == buffers._wide._on_device.data_ptr()


def test_the_host_side_of_the_last_step_is_left_alone():
    """On a GPU its copy may still be waiting in the stream."""
    buffers = InputBuffers(CPU, num_steps=2)
    buffers.load(decode_step(2, input_id=1))
    area = buffers._wide
    last = area._host[area._turn]
    before = last[:2].tolist()
    buffers.load(decode_step(2, input_id=2))
    assert area._host[area._turn] is not last
    assert last[:2].tolist() == before


@pytest.mark.parametrize(("max_blocks", "width"), [(1, 16), (16, 16), (17, 32)])
def test_tables_have_few_widths(max_blocks, width):
    assert table_width(max_blocks) == width
