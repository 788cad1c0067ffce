"""What all tests share. Must not import torch: it reads the number of threads once."""

import os

# Two OpenMP threads cost tiny models far more than they gain, above all where tests run beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Before anyone imports Triton, which transformers does: its kernels run in the interpreter here.
os.environ.setdefault("TRITON_INTERPRET", "1")
