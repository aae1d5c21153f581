"""The kernels in Cython; a module is missing here if it could not be compiled."""
