import torch

from bench.timing import measured_peaks, read_bytes_per_s


def test_memory_is_read_with_the_threads_asked_for_and_no_setting_is_left_behind(monkeypatch):
    torch.set_num_threads(1)
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    assert 1e8 < read_bytes_per_s(2**22, num_threads=2) < 1e13
    assert asked == [2, 1]


def test_a_processors_peaks_are_those_of_reading_and_of_products():
    peaks = measured_peaks(torch.device("cpu"), tiny=True)
    assert 1e8 < peaks.bytes_per_s < 1e13
    assert 1e7 < peaks.flop_per_s < 1e14
