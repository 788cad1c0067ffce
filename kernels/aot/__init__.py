"""Ahead-of-time compilation of every shipped Triton kernel, with gates on its machine code: no GPU takes part.

    python -m kernels.aot            all models, all architectures
    python -m kernels.aot --quick    the part that `make test` runs

models.py        the shapes that are compiled
launches.py      host functions run on meta tensors; every launch is caught
selection.py     which launches a run compiles, and their names
compile.py       one process a launch, in parallel, cached by source hash
machine_code.py  SASS and AMDGCN text to instructions and resources
control_flow.py  the loops among the instructions
figures.py       what a launch costs, from the two
gates.py         what a figure may be, and the named exceptions
snapshot.py      the committed figures: drift, and the table in docs/kernels.md
wheels.py        another triton version, beside the installed one
"""
