"""Quality against float32: the text, its windows, and what is counted."""

import math

import pytest

from bench.quality import Predictions, compared, docstrings, windows_of


def test_docstrings_come_module_by_module(tmp_path):
    (tmp_path / "b.py").write_text('"""second"""\n')
    (tmp_path / "a.py").write_text('"""first"""\ndef f():\n    """inside"""\n\ndef g():\n    return 1\n')
    assert list(docstrings(tmp_path)) == ["first", "inside", "second"]


def test_windows_are_whole_and_a_short_text_is_refused():
    assert windows_of(range(100), 8, 20) == [tuple(range(8)), tuple(range(8, 16))]
    with pytest.raises(ValueError, match="200 tokens asked for, the text has 100"):
        windows_of(range(100), 8, 200)


def test_agreement_and_perplexity_are_against_the_reference():
    reference = Predictions((math.log(0.5), math.log(0.5), math.log(0.5), math.log(0.5)), (1, 2, 3, 4))
    worse = Predictions((math.log(0.25), math.log(0.5), math.log(0.5), math.log(0.25)), (1, 2, 3, 9))
    quality = compared("int8", worse, reference)
    assert reference.perplexity == pytest.approx(2)
    assert quality.perplexity_ratio == pytest.approx(math.sqrt(2))
    assert (quality.agreement, quality.num_tokens) == (0.75, 4)
    assert "agrees at 75.00 % of 4 positions" in str(quality)
