"""The checksum of record batches; the twin is `pure/crc32c.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t

from pentalog.kernels.compiled.wire cimport crc32c_by_tables, crc32c_of, crc32c_prepare

cdef Py_ssize_t UNLOCK_BYTES = 1 << 20

crc32c_prepare()


def crc32c(data, uint32_t value=0):
    """CRC-32C of `data`, going on from `value`."""
    cdef Py_buffer view
    cdef uint32_t crc
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len > UNLOCK_BYTES:
            with nogil:
                crc = crc32c_of(<const unsigned char*>view.buf, view.len, value)
        else:
            crc = crc32c_of(<const unsigned char*>view.buf, view.len, value)
    finally:
        PyBuffer_Release(&view)
    return crc


def crc32c_portable(data, uint32_t value=0):
    """The same by tables, as on a CPU without the instruction."""
    cdef Py_buffer view
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        return crc32c_by_tables(<const unsigned char*>view.buf, view.len, value)
    finally:
        PyBuffer_Release(&view)
