import threading

import torch

from engine.device import computing_alone


def test_threads_made_in_here_compute_alone_and_nobody_after_it():
    """What a thread sets would be everybody's: an engine that has loaded its model must not compute alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        seen = []
        with computing_alone():
            _in_a_thread(lambda: seen.append(torch.get_num_threads()))
        _in_a_thread(lambda: seen.append(torch.get_num_threads()))
        assert [*seen, torch.get_num_threads()] == [1, 2, 2]
    finally:
        torch.set_num_threads(before)


def _in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
