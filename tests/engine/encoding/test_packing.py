from engine.encoding.packing import in_turns, pack


def packed(*lengths, max_num_tokens=10, max_num_texts=4):
    texts = [(f"t{index}", length) for index, length in enumerate(lengths)]
    return pack(texts, max_num_tokens=max_num_tokens, max_num_texts=max_num_texts)


def test_a_step_takes_the_oldest_texts_that_fit():
    assert packed(3, 4, 3, 1) == ["t0", "t1", "t2"]


def test_shorter_texts_fill_what_a_longer_one_leaves():
    assert packed(6, 5, 4, 1) == ["t0", "t2"]


def test_the_oldest_goes_however_long_it_is():
    assert packed(40, 1) == ["t0"]


def test_the_number_of_texts_is_bounded():
    assert packed(1, 1, 1, 1, 1) == ["t0", "t1", "t2", "t3"]


def test_nothing_waits_for_ever_behind_shorter_texts():
    waiting = {"long": 10}
    for step in range(3):
        waiting = {f"short {step}": 1, **waiting} if step == 0 else {**waiting, f"short {step}": 1}
        taken = pack(waiting.items(), max_num_tokens=10, max_num_texts=4)
        waiting = {text: length for text, length in waiting.items() if text not in taken}
        if "long" in taken:
            break
    assert step == 1                                       # one older text went before it


def test_tenants_take_turns_beginning_with_the_oldest_text():
    assert list(in_turns({"a1": "a", "a2": "a", "b1": "b", "a3": "a", "n1": None, "b2": "b"})) == [
        "a1", "b1", "n1", "a2", "b2", "a3",
    ]  # fmt: skip
    assert list(in_turns({"a1": None, "a2": None})) == ["a1", "a2"]
