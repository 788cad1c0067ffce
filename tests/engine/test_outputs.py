import pickle
import struct

from engine.outputs import RequestOutput, TokenLogprobs
from engine.request import FinishReason

ENTRIES = tuple(TokenLogprobs(token_id, -1.0, 1) for token_id in range(3))
FIRST = RequestOutput("a", (1, 2), "ab", 5, 2, 4, ENTRIES[:2], ENTRIES)
LAST = RequestOutput(
    "a", (3,), "c", 5, 3, 4, ENTRIES[2:], None, FinishReason.STOP, stop_reason="d", error="e", vector=b"1234"
)


def test_two_outputs_as_one_have_the_tokens_of_both_and_end_as_the_later_does():
    whole = FIRST.then(LAST)
    assert whole == LAST._replace(token_ids=(1, 2, 3), text="abc", logprobs=ENTRIES, prompt_logprobs=ENTRIES)
    assert (FIRST.is_finished, whole.is_finished) == (False, True)


def test_an_output_is_the_same_value_in_another_process():
    copy = pickle.loads(pickle.dumps(LAST))
    assert (type(copy), copy) == (RequestOutput, LAST)


def test_a_vector_is_little_endian_whatever_the_machine():
    assert RequestOutput("a", vector=struct.pack("<2f", 1.5, -2.0)).vector_values().tolist() == [1.5, -2.0]
