"""What numba keeps of a kernel is thrown away when any file of the CPU kernels changes."""

from kernels.cpu import jit


def double(x):
    return 2 * x


def compiled_anew(monkeypatch, digest):
    monkeypatch.setattr(jit, "_folder_digest", lambda: digest)
    kernel = jit.kernel(double)
    assert kernel(3) == 6
    return sum(kernel.stats.cache_misses.values()) > 0


def test_a_kept_kernel_is_that_of_the_same_sources(monkeypatch):
    assert compiled_anew(monkeypatch, "some")
    assert not compiled_anew(monkeypatch, "some")
    assert compiled_anew(monkeypatch, "others")
