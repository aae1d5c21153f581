"""The kernels in Python: what a machine without a C compiler runs, and what the tests compare."""
