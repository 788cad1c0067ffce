"""What all tests share. Must not import torch: it reads the number of threads once."""

import os

# Two OpenMP threads cost tiny models far more than they gain, above all where tests run beside each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
