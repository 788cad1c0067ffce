import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.params import SamplingParams
from engine.sampling.penalties import PenaltyState, apply_penalties

VOCAB = 40
deterministic = settings(deadline=None, derandomize=True)
token_ids = st.lists(st.integers(0, VOCAB - 1), max_size=30)


def state(prompt=(), output=(), eos=(), **params) -> PenaltyState:
    sampling = SamplingParams(max_tokens=99, **params)
    return PenaltyState(sampling, prompt, output, eos_token_ids=eos, vocab_size=VOCAB)


def logits(num_rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def penalised(rows: torch.Tensor, *states: PenaltyState | None) -> torch.Tensor:
    rows = rows.clone()
    apply_penalties(rows, states)
    return rows


def one_by_one(row: list[float], prompt, output, params: SamplingParams) -> list[float]:
    """The definition, token by token."""
    row = list(row)
    for token_id in {*prompt, *output}:
        value = torch.tensor(row[token_id])
        factor = torch.tensor(params.repetition_penalty)
        row[token_id] = float(value / factor if value > 0 else value * factor)
    for token_id in set(output):
        row[token_id] -= params.frequency_penalty * output.count(token_id) + params.presence_penalty
    for token_id, bias in params.logit_bias.items():
        row[token_id] += bias
    return row


@deterministic
@given(
    token_ids, token_ids,
    st.sampled_from([0.0, 1.9, -2.0]), st.sampled_from([0.0, 0.5]), st.sampled_from([1.0, 1.3, 0.7]),
    st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 2.5]), max_size=4),
)  # fmt: skip
def test_agrees_with_the_definition(prompt, output, presence, frequency, repetition, bias):
    params = {"presence_penalty": presence, "frequency_penalty": frequency,
              "repetition_penalty": repetition, "logit_bias": bias}  # fmt: skip
    (row,) = penalised(logits(), state(prompt, output, **params))
    expected = one_by_one(logits()[0].tolist(), prompt, output, SamplingParams(max_tokens=99, **params))
    torch.testing.assert_close(row, torch.tensor(expected), rtol=1e-6, atol=1e-5)


@deterministic
@given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=60), st.integers(0, 60))
def test_repetition_penalty_is_that_of_transformers(ids, num_prompt_tokens):
    from transformers import RepetitionPenaltyLogitsProcessor

    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([ids]), logits())
    prompt, output = ids[:num_prompt_tokens], ids[num_prompt_tokens:]
    assert torch.equal(penalised(logits(), state(prompt, output, repetition_penalty=1.3)), expected)


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty"])
def test_openai_penalties_leave_the_prompt_alone(penalty):
    assert torch.equal(penalised(logits(), state([1, 2, 2], **{penalty: 1.9})), logits())


@deterministic
@given(token_ids, token_ids, st.integers(0, 30))
def test_tokens_appended_count_like_tokens_given(prompt, output, known):
    params = {"presence_penalty": 0.3, "frequency_penalty": 0.7, "repetition_penalty": 1.2, "min_tokens": 12}
    grown = state(prompt, output[:known], eos=(3,), **params)
    for token_id in output[known:]:
        grown.append(token_id)
    assert torch.equal(penalised(logits(), grown), penalised(logits(), state(prompt, output, eos=(3,), **params)))


def test_a_row_does_not_depend_on_its_neighbours():
    states = [
        state([1, 2], [3, 3], repetition_penalty=1.3),
        None,
        state([1], [4], presence_penalty=1.0, min_tokens=5, eos=(7,)),
        state(logit_bias={5: 1.5, 6: -100.0}),
        state([9], [9] * 5, frequency_penalty=0.1, repetition_penalty=0.8),
        None,
    ]
    rows = logits(len(states))
    together = penalised(rows, *states)
    for index, alone in enumerate(states):
        assert torch.equal(penalised(rows[index:index + 1], alone)[0], together[index])
    assert torch.equal(together[1], rows[1])


def test_lo_06_before_min_tokens_nothing_can_end_the_request():
    young = state(eos=(3, 4), min_tokens=2, stop_token_ids=(5, VOCAB + 1))
    (row,) = penalised(logits(), young)
    assert [i for i in range(VOCAB) if row[i] == float("-inf")] == [3, 4, 5]
    young.append(0)
    young.append(0)
    assert torch.equal(penalised(logits(), young), logits())


def test_ignored_end_tokens_stay_possible_before_min_tokens():
    (row,) = penalised(logits(), state(eos=(3,), ignore_eos=True, min_tokens=2, stop_token_ids=(5,)))
    assert [i for i in range(VOCAB) if row[i] == float("-inf")] == [5]


def test_states_that_change_nothing_cost_nothing():
    rows = logits(2)
    apply_penalties(rows, [None, state([1], [2])])
    assert torch.equal(rows, logits(2))


def forbidden(row: torch.Tensor) -> set[int]:
    return set((row == -torch.inf).nonzero().flatten().tolist())


def test_only_allowed_tokens_may_be_drawn():
    rows = penalised(logits(2), state(allowed_token_ids=(3, 31, 32, 39)), None)
    assert forbidden(rows[0]) == set(range(VOCAB)) - {3, 31, 32, 39}
    assert torch.equal(rows[1], logits(2)[1])


def test_a_bad_word_is_never_completed():
    words = ((5,), (7, 8), (7, 9, 10))
    for output, expected in [((), {5}), ((7,), {5, 8}), ((9,), {5}), ((7, 9), {5, 10}), ((1, 7, 9), {5, 10}),
                             ((7, 9, 1), {5})]:  # fmt: skip
        assert forbidden(penalised(logits(), state((7, 9), output, bad_words=words))[0]) == expected


def test_bad_words_follow_the_output_as_it_grows():
    growing = state(bad_words=((1, 2, 3),))
    for token_id, expected in [(1, set()), (2, {3}), (2, set()), (1, set()), (2, {3})]:
        growing.append(token_id)
        assert forbidden(penalised(logits(), growing)[0]) == expected


def test_bad_words_and_ends_that_come_too_early_are_both_kept_out():
    early = state(eos=(4,), min_tokens=2, bad_words=((4,), (9,)))
    assert forbidden(penalised(logits(), early)[0]) == {4, 9}
