import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.stop_strings import StopChecker, TextDelta

deterministic = settings(deadline=None, derandomize=True)
TEXTS = st.lists(st.text("ab", max_size=5), max_size=12)
STOPS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3)


def brute_force(pieces: list[str], stops: list[str], include_stop: bool, first_stopping: int) -> list[TextDelta]:
    """What to let through with each piece, found by looking at the whole text again and again."""
    deltas, text, num_shown = [], "", 0
    for number, piece in enumerate(pieces):
        known, text = len(text), text + piece
        found = [
            (start, order)
            for order, stop in enumerate(stops)
            for start in range(len(text))
            if text.startswith(stop, start) and known < start + len(stop)
        ]
        if found and number >= first_stopping:
            start, order = min(found)
            end = start + (len(stops[order]) if include_stop else 0)
            return [*deltas, TextDelta(text[num_shown:end], stops[order])]
        beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
        held = 0 if include_stop else max((len(b) for b in beginnings if text.endswith(b)), default=0)
        deltas.append(TextDelta(text[num_shown:len(text) - held]))
        num_shown = len(text) - held
    return [*deltas, TextDelta(text[num_shown:])]


@deterministic
@given(TEXTS, STOPS, st.booleans(), st.integers(0, 6))
def test_agrees_with_brute_force(pieces, stops, include_stop, first_stopping):
    checker, deltas = StopChecker(stops, include_stop=include_stop), []
    for number, piece in enumerate(pieces):
        deltas.append(checker.push(piece, may_stop=number >= first_stopping))
        if deltas[-1].stop:
            break
    else:
        deltas.append(TextDelta(checker.flush()))
    assert deltas == brute_force(pieces, stops, include_stop, first_stopping)


def test_without_stop_strings_everything_passes_at_once():
    checker = StopChecker(())
    assert checker.push("abc") == TextDelta("abc")
    assert checker.flush() == ""


def test_the_stop_string_that_begins_first_wins_over_the_one_listed_first():
    assert StopChecker(("cd", "bcde")).push("abcdef") == TextDelta("a", "bcde")


def test_of_two_that_begin_together_the_one_listed_first_wins():
    assert StopChecker(("bcd", "bc")).push("abcdef") == TextDelta("a", "bcd")


def test_a_stop_string_across_pieces_never_leaks():
    checker = StopChecker(("STOP",))
    assert [checker.push(piece) for piece in ("go ST", "O", "P!")] == [
        TextDelta("go "), TextDelta(""), TextDelta("", "STOP")
    ]


@pytest.mark.parametrize("length", [1_000, 4_000])
def test_long_repetitive_stop_strings_take_linear_time(length):
    """A quadratic search would compare 4 · 10^9 characters here."""
    checker = StopChecker(("a" * length + "b",))
    released = sum(len(checker.push("a").text) for _ in range(20 * length))
    assert released == 19 * length
