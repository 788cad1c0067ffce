"""Policies on real tensors: a request's tokens do not depend on the policy; the rows computed are those it pays for."""

import pytest

from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams
from engine.scheduling.policies import policy_names
from tests.engine.model.driver import load
from tests.engine.model_core import Schedule, build, serve
from tests.helpers_models import prompt, rand_config, save_checkpoint

# Where a policy would wait for others: nobody else comes, and the clock of the tests stands still.
PARAMETERS = {
    "static": {"batch_size": 3, "queue_end_ms": 0},
    "static_impatient": {"batch_size": 3, "max_wait_ms": 0},
    "packed_static": {"batch_size": 3, "queue_end_ms": 0},
    "turbo": {"batch_size": 3},
}
LENGTHS = [(5, 9), (33, 2), (17, 6), (1, 12), (20, 5), (9, 1), (28, 7)]          # prompt, output


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rand")
    save_checkpoint(folder, rand_config())
    return load(folder)


def run(model, policy: str, lengths, *, num_blocks: int, as_on_gpu: bool = False, **parameters):
    """Tokens by request id, greedy and drawn ones, and the rows that the decoder computed in each step."""
    schedule = Schedule(
        budget=64, block_size=8, num_blocks=num_blocks, as_on_gpu=as_on_gpu, policy=policy,
        parameters=PARAMETERS.get(policy, {}) | parameters,
    )  # fmt: skip
    core = build(model, schedule)
    requests = [
        GenerationRequest(
            str(number), tuple(prompt(length)),
            SamplingParams(max_tokens=output, temperature=float(number % 2), seed=number, ignore_eos=True),
        )
        for number, (length, output) in enumerate(lengths)
    ]  # fmt: skip
    rows: list[int] = []
    forward = model.decoder.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            model.decoder, "forward", lambda inputs, kv: rows.append(len(inputs.input_ids)) or forward(inputs, kv)
        )
        return serve(core, *requests), rows


@pytest.fixture(scope="module")
def expected(model):
    tokens, _ = run(model, "chunked", LENGTHS, num_blocks=64)
    assert [len(tokens[str(number)]) for number in range(len(LENGTHS))] == [output for _, output in LENGTHS]
    return tokens


@pytest.mark.parametrize("as_on_gpu", [False, True], ids=["in turn", "as on a GPU"])
@pytest.mark.parametrize("policy", policy_names())
def test_every_policy_gives_the_same_tokens_to_the_bit(model, expected, policy: str, as_on_gpu: bool):
    tokens, _ = run(model, policy, LENGTHS, num_blocks=12, as_on_gpu=as_on_gpu)     # two or three requests at once
    assert tokens == expected


def test_padded_batch_computes_its_size_times_its_longest_rows(model):
    _, rows = run(model, "static", [(5, 4), (33, 9), (17, 2)], num_blocks=64)
    assert rows == [3 * 33] + [3] * 8


def test_packed_batch_computes_live_rows_only(model):
    _, rows = run(model, "packed_static", [(5, 4), (33, 9), (17, 2)], num_blocks=64)
    assert rows == [5 + 33 + 17, 3, 2, 2, 1, 1, 1, 1, 1]
