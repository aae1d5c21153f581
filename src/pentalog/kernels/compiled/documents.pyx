"""JSON documents into columns; the twin, and the contract, are in `pure/documents.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport (
    PyByteArray_AS_STRING,
    PyByteArray_FromStringAndSize,
    PyByteArray_Resize,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.math cimport isfinite
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

from pentalog.kernels.compiled.json_text cimport Bytes, is_utf8, name_end, put_escaped, string_end

from pentalog.kernels.document_facts import Documents, Field

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* text, char** end, void* overflow) except? -1.0

cdef enum:
    INT8 = 0
    INT64 = 3
    FLOAT64 = 4
    BOOLEAN = 5
    TEXT = 6

    DOCUMENT_BYTES_MAX = 1000
    NUMBER_BYTES_MAX = 63
    DEPTH_MAX = 32
    EXACT_POWER_MAX = 22
    DIGITS_MAX = 19
    TEXT_BYTES_MAX = 0x7FFFFFFF

cdef uint64_t EXACT_MAX = <uint64_t>1 << 53
cdef double[23] POWERS
cdef Py_ssize_t _power
POWERS[0] = 1.0
for _power in range(1, 23):
    POWERS[_power] = POWERS[_power - 1] * 10.0

cdef struct Column:
    Bytes name
    Py_ssize_t name_size
    int kind
    bint needed
    char* data
    char* offsets
    unsigned char* validity
    Py_ssize_t used
    Py_ssize_t nulls
    Py_ssize_t seen
    bint filled

cdef struct Number:
    bint negative
    bint whole
    bint exact
    uint64_t digits
    int power


cdef inline Bytes _after_blanks(Bytes at, Bytes end) noexcept:
    while at < end and at[0] == 0x20:
        at += 1
    return at


cdef inline bint _is_digit(unsigned char one) noexcept:
    return 0x30 <= one <= 0x39


cdef Bytes _number(Bytes at, Bytes end, Number* found) noexcept:
    """Behind a number, or NULL."""
    cdef int digits = 0
    cdef int exponent = 0
    cdef bint below = False
    found.negative = at < end and at[0] == 0x2D
    found.whole = True
    found.digits = 0
    found.power = 0
    if found.negative:
        at += 1
    if at >= end or not _is_digit(at[0]):
        return NULL
    if at[0] == 0x30 and at + 1 < end and _is_digit(at[1]):
        return NULL
    while at < end and _is_digit(at[0]):
        if digits < DIGITS_MAX:
            found.digits = found.digits * 10 + (at[0] - 0x30)
        digits += found.digits != 0
        at += 1
    if at < end and at[0] == 0x2E:
        found.whole = False
        at += 1
        if at >= end or not _is_digit(at[0]):
            return NULL
        while at < end and _is_digit(at[0]):
            if digits < DIGITS_MAX:
                found.digits = found.digits * 10 + (at[0] - 0x30)
                found.power -= 1
            digits += found.digits != 0
            at += 1
    if at < end and (at[0] == 0x65 or at[0] == 0x45):
        found.whole = False
        at += 1
        if at < end and (at[0] == 0x2B or at[0] == 0x2D):
            below = at[0] == 0x2D
            at += 1
        if at >= end or not _is_digit(at[0]):
            return NULL
        while at < end and _is_digit(at[0]):
            if exponent < 10000:
                exponent = exponent * 10 + (at[0] - 0x30)
            at += 1
        found.power += -exponent if below else exponent
    found.exact = digits <= DIGITS_MAX
    return at


cdef Bytes _word(Bytes at, Bytes end, const char* word, Py_ssize_t size) noexcept:
    return at + size if end - at >= size and memcmp(at, word, size) == 0 else NULL


cdef Bytes _skip(Bytes at, Bytes end, int depth) noexcept:
    """Behind any value, or NULL."""
    cdef Number number
    cdef unsigned char close
    if at >= end:
        return NULL
    if at[0] == 0x22:
        at = string_end(at + 1, end)
        return at + 1 if at != NULL else NULL
    if at[0] == 0x74:
        return _word(at, end, b"true", 4)
    if at[0] == 0x66:
        return _word(at, end, b"false", 5)
    if at[0] == 0x6E:
        return _word(at, end, b"null", 4)
    if at[0] != 0x7B and at[0] != 0x5B:
        return _number(at, end, &number)
    if depth == DEPTH_MAX:
        return NULL
    close = at[0] + 2
    at = _after_blanks(at + 1, end)
    if at < end and at[0] == close:
        return at + 1
    while True:
        if close == 0x7D:
            if at >= end or at[0] != 0x22:
                return NULL
            at = name_end(at + 1, end)
            if at == NULL:
                return NULL
            at = _after_blanks(at + 1, end)
            if at >= end or at[0] != 0x3A:
                return NULL
            at = _after_blanks(at + 1, end)
        at = _skip(at, end, depth + 1)
        if at == NULL:
            return NULL
        at = _after_blanks(at, end)
        if at >= end:
            return NULL
        if at[0] == close:
            return at + 1
        if at[0] != 0x2C:
            return NULL
        at = _after_blanks(at + 1, end)


cdef bint _is_plain(Bytes at, Py_ssize_t size) noexcept:
    """An object, by its looks, in one line."""
    cdef unsigned char odd = 0
    cdef unsigned char high = 0
    cdef Py_ssize_t place
    if size < 2 or size > DOCUMENT_BYTES_MAX or at[0] != 0x7B or at[size - 1] != 0x7D:
        return False
    for place in range(size):
        odd |= (at[place] < 0x20) | (at[place] == 0x7F)
        high |= at[place]
    return not odd and (high < 0x80 or is_utf8(at, at + size))


cdef Bytes _put_float(Column* column, Py_ssize_t row, Bytes at, Bytes end) except? NULL:
    cdef Number found
    cdef double value
    cdef char[NUMBER_BYTES_MAX + 1] text
    cdef Bytes behind = _number(at, end, &found)
    if behind == NULL or behind - at > NUMBER_BYTES_MAX:
        return NULL
    if (
        found.exact
        and found.digits <= EXACT_MAX
        and -EXACT_POWER_MAX <= found.power <= EXACT_POWER_MAX
    ):
        # Both are exact, so one rounding is all there is.
        value = <double>found.digits
        value = value / POWERS[-found.power] if found.power < 0 else value * POWERS[found.power]
        value = -value if found.negative else value
    else:
        memcpy(text, at, behind - at)
        text[behind - at] = 0
        value = PyOS_string_to_double(text, NULL, NULL)
    if not isfinite(value) or (value == 0 and found.negative):
        return NULL
    memcpy(column.data + 8 * row, &value, 8)
    return behind


cdef Bytes _put_whole(Column* column, Py_ssize_t row, Bytes at, Bytes end) noexcept:
    cdef Number found
    cdef Bytes behind = _number(at, end, &found)
    cdef uint64_t limit = (<uint64_t>1 << (8 * (1 << column.kind) - 1)) - 1
    cdef int64_t value
    if behind == NULL or not found.whole or not found.exact:
        return NULL
    if found.digits > limit + found.negative or (found.negative and not found.digits):
        return NULL
    # Least and greatest differ by one, which the two's complement takes care of.
    value = <int64_t>(0 - found.digits) if found.negative else <int64_t>found.digits
    # On either order of bytes the number is narrowed by its type, not by its place.
    _put_narrow(column.data, column.kind, row, value)
    return behind


cdef inline void _put_narrow(char* data, int kind, Py_ssize_t row, int64_t value) noexcept:
    cdef int8_t one
    cdef int16_t two
    cdef int32_t four
    if kind == INT64:
        memcpy(data + 8 * row, &value, 8)
    elif kind == 2:
        four = <int32_t>value
        memcpy(data + 4 * row, &four, 4)
    elif kind == 1:
        two = <int16_t>value
        memcpy(data + 2 * row, &two, 2)
    else:
        one = <int8_t>value
        memcpy(data + row, &one, 1)


cdef Bytes _put(Column* column, Py_ssize_t row, Bytes at, Bytes end) except? NULL:
    """Behind a value that is the row's in this column, or NULL."""
    cdef Bytes behind
    cdef Py_ssize_t size
    if at >= end:
        return NULL
    if at[0] == 0x6E:
        return _word(at, end, b"null", 4)
    if column.kind == TEXT:
        behind = string_end(at + 1, end) if at[0] == 0x22 else NULL
        if behind == NULL:
            return NULL
        size = behind - at - 1
        if memchr(at + 1, 0x5C, size) == NULL:
            memcpy(column.data + column.used, at + 1, size)
        else:
            size = put_escaped(column.data + column.used, at + 1, behind)
            if size < 0:
                return NULL
        column.used += size
        behind += 1
    elif column.kind == BOOLEAN:
        behind = _word(at, end, b"true", 4)
        if behind != NULL:
            column.data[row >> 3] |= <char>(1 << (row & 7))
        else:
            behind = _word(at, end, b"false", 5)
            if behind == NULL:
                return NULL
    elif column.kind == FLOAT64:
        behind = _put_float(column, row, at, end)
    else:
        behind = _put_whole(column, row, at, end)
    column.filled = behind != NULL
    return behind


cdef Column* _named(Column* columns, Py_ssize_t count, Py_ssize_t* likely, Bytes name,
                    Py_ssize_t size) noexcept:
    """The column of that name; documents mostly have their fields in the same order."""
    cdef Py_ssize_t step
    cdef Py_ssize_t place
    cdef Py_ssize_t first = likely[0]
    for step in range(count):
        place = first + step if first + step < count else first + step - count
        if columns[place].name_size == size and memcmp(columns[place].name, name, size) == 0:
            likely[0] = place + 1 if place + 1 < count else 0
            return &columns[place]
    return NULL


cdef bint _row(Column* columns, Py_ssize_t count, Py_ssize_t row, Bytes at, Bytes end) except -1:
    """Whether a plain document is certain; its fields are put in place."""
    cdef Bytes name
    cdef Column* column
    cdef Py_ssize_t likely = 0
    at = _after_blanks(at + 1, end)
    if at[0] == 0x7D:
        return at + 1 == end
    while True:
        if at >= end or at[0] != 0x22:
            return False
        name = at + 1
        at = name_end(name, end)
        if at == NULL:
            return False
        column = _named(columns, count, &likely, name, at - name)
        at = _after_blanks(at + 1, end)
        if at >= end or at[0] != 0x3A:
            return False
        at = _after_blanks(at + 1, end)
        if column == NULL:
            at = _skip(at, end, 0)
        else:
            if column.seen == row:
                return False
            column.seen = row
            at = _put(column, row, at, end)
        if at == NULL:
            return False
        at = _after_blanks(at, end)
        if at >= end:
            return False
        if at[0] == 0x7D:
            return at + 1 == end
        if at[0] != 0x2C:
            return False
        at = _after_blanks(at + 1, end)


cdef bint _take(Column* columns, Py_ssize_t count, Py_ssize_t row, Bytes at,
                Py_ssize_t size) except -1:
    """Add one document to all columns, or to none."""
    cdef Column* column
    cdef Py_ssize_t place
    cdef bint certain
    cdef int32_t bound
    cdef unsigned char bit = <unsigned char>(1 << (row & 7))
    for place in range(count):
        column = &columns[place]
        column.filled = False
        column.seen = -1
        if bit == 1:
            column.validity[row >> 3] = 0
            if column.kind == BOOLEAN:
                column.data[row >> 3] = 0
        if column.kind == BOOLEAN:
            column.data[row >> 3] &= <char>~bit
    certain = _row(columns, count, row, at, at + size)
    for place in range(count):
        certain = certain and (columns[place].filled or not columns[place].needed)
    for place in range(count):
        column = &columns[place]
        if not certain:
            if column.kind == TEXT:
                memcpy(&bound, column.offsets + 4 * row, 4)
                column.used = bound
            continue
        if column.filled:
            column.validity[row >> 3] |= bit
        else:
            column.nulls += 1
            if column.kind < FLOAT64:
                _put_narrow(column.data, column.kind, row, 0)
            elif column.kind == FLOAT64:
                memset(column.data + 8 * row, 0, 8)
        if column.kind == TEXT:
            bound = <int32_t>column.used
            memcpy(column.offsets + 4 * (row + 1), &bound, 4)
    return certain


cdef inline Py_ssize_t _data_bytes(int kind, Py_ssize_t rows, Py_ssize_t text) noexcept:
    if kind == TEXT:
        return text
    if kind == BOOLEAN:
        return (rows + 7) >> 3
    return rows << (kind if kind < FLOAT64 else 3)


cdef tuple _finished(Column* columns, list buffers, Py_ssize_t rows):
    cdef Py_ssize_t place
    cdef Column* column
    fields = []
    for place in range(len(buffers)):
        column = &columns[place]
        data, offsets, validity = buffers[place]
        PyByteArray_Resize(data, _data_bytes(column.kind, rows, column.used))
        if column.kind == TEXT:
            PyByteArray_Resize(offsets, 4 * (rows + 1))
        PyByteArray_Resize(validity, (rows + 7) >> 3 if column.nulls else 0)
        fields.append(Field(data, offsets, validity, column.nulls))
    return tuple(fields)


cdef list _prepared(Column* columns, tuple names, bytes kinds, bytes needed, Py_ssize_t count,
                    Py_ssize_t text):
    """Room for every column, as large as it could become."""
    cdef Py_ssize_t place
    cdef Column* column
    cdef int32_t nothing = 0
    cdef bytes name
    buffers = []
    for place in range(len(names)):
        column = &columns[place]
        name = names[place]
        column.name = <Bytes>PyBytes_AS_STRING(name)
        column.name_size = PyBytes_GET_SIZE(name)
        column.kind = kinds[place]
        column.needed = needed[place] != 0
        column.used = 0
        column.nulls = 0
        data = PyByteArray_FromStringAndSize(NULL, _data_bytes(column.kind, count, text))
        offsets = PyByteArray_FromStringAndSize(NULL, 4 * (count + 1) if column.kind == TEXT else 0)
        validity = PyByteArray_FromStringAndSize(NULL, (count + 7) >> 3)
        column.data = PyByteArray_AS_STRING(data)
        column.offsets = PyByteArray_AS_STRING(offsets)
        column.validity = <unsigned char*>PyByteArray_AS_STRING(validity)
        if column.kind == TEXT:
            memcpy(column.offsets, &nothing, 4)
        buffers.append((data, offsets, validity))
    return buffers


def parse_documents(offsets, data, validity, Py_ssize_t first, tuple names, bytes kinds,
                    bytes needed):
    """Values into columns; a value that is not certain is in none of them."""
    cdef Py_buffer bounds, content, bits
    cdef Column* columns = NULL
    cdef Py_ssize_t count, index, place, text_bytes
    cdef Py_ssize_t rows = 0
    cdef int32_t start, end
    cdef unsigned char* flags
    PyObject_GetBuffer(offsets, &bounds, PyBUF_SIMPLE)
    PyObject_GetBuffer(data, &content, PyBUF_SIMPLE)
    PyObject_GetBuffer(validity, &bits, PyBUF_SIMPLE)
    try:
        count = bounds.len // 4 - 1
        if count < 0 or len(kinds) != len(names) or len(needed) != len(names):
            raise ValueError("documents need one offset more than values, and each field its kind")
        if any(kind > TEXT for kind in kinds):
            raise ValueError(f"a field may be of kind 0 to {TEXT}")
        if bits.len and (first < 0 or bits.len * 8 < first + count):
            raise ValueError("there are fewer bits than values")
        columns = <Column*>malloc(max(len(names), 1) * sizeof(Column))
        if columns == NULL:
            raise MemoryError
        text_bytes = _text_bytes(&bounds, count)
        if text_bytes > TEXT_BYTES_MAX:
            raise ValueError(f"{text_bytes} bytes of values are more than offsets can tell")
        buffers = _prepared(columns, names, kinds, needed, count, text_bytes)
        certain = PyByteArray_FromStringAndSize(NULL, (count + 7) >> 3)
        flags = <unsigned char*>PyByteArray_AS_STRING(certain)
        memset(flags, 0, (count + 7) >> 3)
        for index in range(count):
            memcpy(&start, <char*>bounds.buf + 4 * index, 4)
            memcpy(&end, <char*>bounds.buf + 4 * index + 4, 4)
            if not 0 <= start <= end <= content.len:
                raise ValueError(f"value {index} is not inside the data")
            place = first + index
            if bits.len and not (<Bytes>bits.buf)[place >> 3] >> (place & 7) & 1:
                continue
            if not _is_plain(<Bytes>content.buf + start, end - start):
                continue
            if _take(columns, len(names), rows, <Bytes>content.buf + start, end - start):
                flags[index >> 3] |= <unsigned char>(1 << (index & 7))
                rows += 1
        return Documents(rows, certain, _finished(columns, buffers, rows))
    finally:
        free(columns)
        PyBuffer_Release(&bits)
        PyBuffer_Release(&content)
        PyBuffer_Release(&bounds)


cdef Py_ssize_t _text_bytes(Py_buffer* bounds, Py_ssize_t count) noexcept:
    """What all values that can be certain have together, whatever the offsets say."""
    cdef Py_ssize_t index
    cdef Py_ssize_t total = 0
    cdef int32_t start, end
    for index in range(count):
        memcpy(&start, <char*>bounds.buf + 4 * index, 4)
        memcpy(&end, <char*>bounds.buf + 4 * index + 4, 4)
        if start <= end and <int64_t>end - start <= DOCUMENT_BYTES_MAX:
            total += <int64_t>end - start
    return total
