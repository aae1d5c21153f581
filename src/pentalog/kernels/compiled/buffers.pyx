"""Memory for large results; the twin is `pure/buffers.py`."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize

from pentalog.kernels.compiled.wire cimport expect_large


def new_buffer(Py_ssize_t size):
    """A bytearray of `size` bytes with any content, to be filled by the caller."""
    cdef bytearray made
    if size < 0:
        raise ValueError(f"a buffer of {size} bytes")
    made = PyByteArray_FromStringAndSize(NULL, size)
    expect_large(PyByteArray_AS_STRING(made), size)
    return made
