"""Memory for large results; the twin is `pure/buffers.py`."""

from cpython.bytearray cimport PyByteArray_FromStringAndSize


def new_buffer(Py_ssize_t size):
    """A bytearray of `size` bytes with any content, to be filled by the caller."""
    if size < 0:
        raise ValueError(f"a buffer of {size} bytes")
    return PyByteArray_FromStringAndSize(NULL, size)
