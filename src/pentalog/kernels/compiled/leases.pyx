"""States of deliveries, many at a time; the twin, and the layout, are in `pure/leases.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pentalog.kernels.compiled.wire cimport add_i64, i64_at, subtract_i64

cdef enum:
    ATTEMPT_MAX = 99

cdef struct Window:
    int64_t shift
    Py_ssize_t size
    unsigned char* states


cdef int _read_windows(list windows, Window* found) except -1:
    cdef Py_ssize_t index
    cdef int64_t first, floor
    for index in range(len(windows)):
        found[index].size = 0
        entry = windows[index]
        if entry is None:
            continue
        first, floor, states = entry
        if type(states) is not bytearray:
            raise TypeError("the states of a window are a bytearray")
        found[index].shift = subtract_i64(subtract_i64(first, 1), floor)
        found[index].size = PyByteArray_GET_SIZE(states)
        found[index].states = <unsigned char*>PyByteArray_AS_STRING(states)
    return 0


def acknowledge(tags, windows):
    """(how many were on lease and are settled now, the tags that were not)."""
    cdef list given = list(windows)
    cdef Py_ssize_t count = len(given)
    cdef Py_ssize_t index, tag_count
    cdef Py_ssize_t unknown_bytes = 0
    cdef int64_t settled = 0
    cdef int64_t place
    cdef uint64_t tag
    cdef Py_buffer view
    cdef const unsigned char* at
    cdef unsigned char* unknown = NULL
    cdef Window* found = NULL
    PyObject_GetBuffer(tags, &view, PyBUF_SIMPLE)
    try:
        if view.len % 8:
            raise ValueError(f"{view.len} bytes are no list of tags of 8 bytes each")
        found = <Window*>malloc(max(count, 1) * sizeof(Window))
        unknown = <unsigned char*>malloc(max(view.len, 1))
        if found == NULL or unknown == NULL:
            raise MemoryError
        _read_windows(given, found)
        tag_count = view.len // 8
        at = <const unsigned char*>view.buf
        for index in range(tag_count):
            tag = <uint64_t>i64_at(at)
            if <Py_ssize_t>(tag >> 48) < count:
                place = add_i64(<int64_t>(tag & 0xFFFFFFFFFFFFULL), found[tag >> 48].shift)
                if (
                    0 <= place < found[tag >> 48].size
                    and 1 <= found[tag >> 48].states[place] <= ATTEMPT_MAX
                ):
                    found[tag >> 48].states[place] = 0
                    settled += 1
                    at += 8
                    continue
            memcpy(unknown + unknown_bytes, at, 8)
            unknown_bytes += 8
            at += 8
        return settled, PyBytes_FromStringAndSize(<const char*>unknown, unknown_bytes)
    finally:
        free(found)
        free(unknown)
        PyBuffer_Release(&view)


def settled_prefix(bytearray states not None):
    """How many states at the beginning are settled."""
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(states)
    cdef const unsigned char* at = <const unsigned char*>PyByteArray_AS_STRING(states)
    cdef Py_ssize_t index = 0
    while index < size and at[index] == 0:
        index += 1
    return index
