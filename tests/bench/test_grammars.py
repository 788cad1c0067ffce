from bench.grammar_cases import CASES
from bench.grammars import LLGuidance, installed_bytes, judge, measure, table
from tests.engine.sampling.grammar.tokenizers import BYTE_LEVEL

FEATURES = {case.feature: case for case in CASES}


def judged(feature: str, encode=lambda text: BYTE_LEVEL.encode(text, add_special_tokens=False)):
    library = LLGuidance()
    end_id = BYTE_LEVEL.vocab_size
    library.prepare(
        [BYTE_LEVEL.token_bytes(i) for i in range(end_id)] + [b"<end>"],
        [*sorted(BYTE_LEVEL.special_token_ids), end_id], end_id, encode,
    )  # fmt: skip
    return judge(library, FEATURES[feature], encode, end_id, rounds=2)


def test_a_feature_that_works_is_enforced_and_timed():
    finding = judged("minimum, maximum")
    assert finding.verdict == "enforced" and finding.detail == ""
    assert finding.worst_us >= finding.first_us > 0 and finding.second_us > 0 and finding.compile_ms > 0


def test_a_feature_that_is_refused_says_why():
    finding = judged("uniqueItems")
    assert finding.verdict == "refused" and "uniqueItems" in finding.detail


def test_texts_that_are_judged_wrongly_are_named(monkeypatch):
    class AnyText(LLGuidance):
        def compile(self, kind, text):
            return super().compile("regex", "(?s:.*)")

    class NoText(LLGuidance):
        def compile(self, kind, text):
            return super().compile("regex", "x{99}")

    for library, verdict in ((AnyText(), "too loose"), (NoText(), "too tight")):
        about, found = measure(library, BYTE_LEVEL, rounds=1)
        assert {finding.verdict for finding in found} == {verdict}
        assert all(finding.detail for finding in found)
        assert about["version"] in table(about, found)


def test_features_are_named_once():
    assert len(FEATURES) == len(CASES)
    assert all(case.valid and case.invalid for case in CASES)


def test_installed_size_counts_files():
    assert installed_bytes(["llguidance"]) > 10**6
