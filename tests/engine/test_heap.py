import ctypes

from engine import heap


def test_it_can_be_called_at_any_time():
    heap.give_back_freed_memory()


def test_a_library_without_such_a_call_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    heap.give_back_freed_memory()
