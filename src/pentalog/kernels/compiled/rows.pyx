"""Rows in columns become record batches; the twin is `pure/rows.py`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from pentalog.kernels.compiled.wire cimport (
    crc32c_of,
    crc32c_prepare,
    put_i16,
    put_i64,
    put_u32,
    put_varint,
    subtract_i64,
    varint_bytes,
)

from pentalog.kernels.facts import Malformed
from pentalog.kernels.row_facts import EncodedRows

crc32c_prepare()

ctypedef const unsigned char* Bytes

cdef enum:
    HEADER_BYTES = 61
    FRAMING_BYTES = 12
    ROOM_BYTES_MIN = 4096

cdef int64_t I32_MAX = 2147483647
cdef uint64_t KEY_FACTOR = 0x9E3779B1
cdef uint64_t VALUE_FACTOR = 0x85EBCA77
cdef uint32_t MURMUR_SEED = 0x9747B28C
cdef uint32_t MURMUR_FACTOR = 0x5BD1E995

cdef struct Cell:
    Bytes start
    Py_ssize_t size
    bint null


cdef inline int32_t _i32(Bytes at) noexcept nogil:
    cdef int32_t number
    memcpy(&number, at, 4)
    return number


cdef inline int64_t _i64(Bytes at) noexcept nogil:
    cdef int64_t number
    memcpy(&number, at, 8)
    return number


cdef class _Lent:
    """Bytes borrowed from an object, given back when this goes."""

    cdef Py_buffer view
    cdef bint lent

    def __cinit__(self, source):
        PyObject_GetBuffer(source, &self.view, PyBUF_SIMPLE)
        self.lent = True

    def __dealloc__(self):
        if self.lent:
            PyBuffer_Release(&self.view)

    cdef inline Bytes start(self):
        return <Bytes>self.view.buf

    cdef inline Py_ssize_t size(self):
        return self.view.len


cdef class _Ranges:
    """Where each row begins and ends in something, and which rows are null."""

    cdef _Lent validity_lent
    cdef _Lent offsets_lent
    cdef Bytes validity
    cdef Py_ssize_t validity_bytes
    cdef Bytes offsets
    cdef Py_ssize_t rows
    cdef Py_ssize_t first

    def __cinit__(self, validity, offsets, Py_ssize_t first):
        self.offsets_lent = _Lent(offsets)
        self.offsets = self.offsets_lent.start()
        self.rows = self.offsets_lent.size() // 4 - 1
        self.first = first
        self.validity = NULL
        if validity is not None:
            self.validity_lent = _Lent(validity)
            self.validity = self.validity_lent.start()
            self.validity_bytes = self.validity_lent.size()

    cdef inline int at(
        self, Py_ssize_t row, int32_t* start, int32_t* end, bint* null
    ) except -1:
        row += self.first
        if row < 0 or row >= self.rows:
            raise Malformed(f"row {row} is not in its column")
        null[0] = False
        start[0] = end[0] = 0
        if self.validity != NULL:
            if row >> 3 >= self.validity_bytes:
                raise Malformed(f"row {row} is not in its column")
            if not self.validity[row >> 3] >> (row & 7) & 1:
                null[0] = True
                return 0
        start[0] = _i32(self.offsets + 4 * row)
        end[0] = _i32(self.offsets + 4 * row + 4)
        return 0


cdef class _Cells:
    cdef _Ranges ranges
    cdef _Lent data_lent
    cdef Bytes data
    cdef Py_ssize_t size

    def __cinit__(self, cells):
        self.ranges = _Ranges(cells.validity, cells.offsets, cells.first)
        self.data_lent = _Lent(cells.data)
        self.data = self.data_lent.start()
        self.size = self.data_lent.size()

    cdef inline int at(self, Py_ssize_t row, Cell* cell) except -1:
        cdef int32_t start, end
        self.ranges.at(row, &start, &end, &cell.null)
        if start < 0 or start > end or end > self.size:
            raise Malformed(
                f"bytes {start}..{end} of row {row + self.ranges.first} are not in its column")
        cell.start = self.data + start
        cell.size = end - start
        return 0


cdef inline uint32_t _murmur2(Bytes at, Py_ssize_t size) noexcept nogil:
    cdef uint32_t total = MURMUR_SEED ^ <uint32_t>size
    cdef uint32_t mixed
    while size >= 4:
        mixed = (
            <uint32_t>at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24
        ) * MURMUR_FACTOR
        mixed = (mixed ^ mixed >> 24) * MURMUR_FACTOR
        total = total * MURMUR_FACTOR ^ mixed
        at += 4
        size -= 4
    if size:
        if size == 3:
            total ^= <uint32_t>at[2] << 16
        if size >= 2:
            total ^= <uint32_t>at[1] << 8
        total ^= at[0]
        total *= MURMUR_FACTOR
    total = (total ^ total >> 13) * MURMUR_FACTOR
    return total ^ total >> 15


def place_rows(keys, Py_ssize_t count, int32_t partitions, int32_t keyless):
    """The partition of each row, native i32; rows without a key go to `keyless`."""
    if count < 0 or partitions < 1 or not 0 <= keyless < partitions:
        raise ValueError(f"{count} rows, {partitions} partitions, {keyless} for rows without a key")
    cdef bytearray placed = bytearray(4 * count)
    cdef char* out = PyByteArray_AS_STRING(placed)
    cdef _Cells cells = None if keys is None else _Cells(keys)
    cdef Cell key
    cdef Py_ssize_t row
    cdef int32_t place
    for row in range(count):
        place = keyless
        if cells is not None:
            cells.at(row, &key)
            if not key.null:
                place = <int32_t>((_murmur2(key.start, key.size) & 0x7FFFFFFF)
                                  % <uint32_t>partitions)
        memcpy(out + 4 * row, &place, 4)
    return placed


cdef class _Writer:
    """Appends records to a batch, and batches to each other."""

    cdef bytearray data
    cdef Py_ssize_t used
    cdef list batches
    cdef Py_ssize_t start
    cdef int64_t records
    cdef int64_t base
    cdef int64_t timestamp_max
    cdef int64_t producer_id
    cdef int16_t producer_epoch
    cdef int16_t attributes
    cdef Py_ssize_t bytes_max
    cdef uint64_t digest

    def __cinit__(self, Py_ssize_t bytes_max, producing):
        self.data = bytearray(ROOM_BYTES_MIN)
        self.batches = []
        self.bytes_max = bytes_max
        self.producer_id = producing.producer_id
        self.producer_epoch = producing.producer_epoch
        self.attributes = producing.attributes

    cdef inline unsigned char* room(self, Py_ssize_t size) except NULL:
        if size > len(self.data) - self.used:
            PyByteArray_Resize(self.data, 2 * (self.used + size))
        return <unsigned char*>PyByteArray_AS_STRING(self.data) + self.used

    cdef int begin(self, int64_t timestamp) except -1:
        self.room(HEADER_BYTES)
        self.start = self.used
        self.used += HEADER_BYTES
        self.records = 0
        self.base = self.timestamp_max = timestamp
        return 0

    cdef int64_t end(self, int32_t partition, int64_t sequence) except -1:
        """Close the batch; returns the sequence of the next."""
        cdef unsigned char* head = <unsigned char*>PyByteArray_AS_STRING(self.data) + self.start
        cdef Py_ssize_t size = self.used - self.start
        if size - FRAMING_BYTES > I32_MAX:
            raise Malformed(f"a record of {size} bytes is too large for any batch")
        memset(head, 0, HEADER_BYTES)
        put_u32(head + 8, <uint32_t>(size - FRAMING_BYTES))
        put_u32(head + 12, 0xFFFFFFFF)
        head[16] = 2
        put_i16(head + 21, self.attributes)
        put_u32(head + 23, <uint32_t>(self.records - 1))
        put_i64(head + 27, self.base)
        put_i64(head + 35, self.timestamp_max)
        put_i64(head + 43, self.producer_id)
        put_i16(head + 51, self.producer_epoch)
        put_u32(head + 53, <uint32_t>sequence)
        put_u32(head + 57, <uint32_t>self.records)
        put_u32(head + 17, crc32c_of(head + 21, size - 21, 0))
        self.batches.append((partition, self.start, self.used, self.records))
        sequence += self.records
        return sequence if sequence <= I32_MAX else sequence - I32_MAX - 1


cdef inline Py_ssize_t _cell_bytes(const Cell* cell) noexcept nogil:
    return 1 if cell.null else <Py_ssize_t>varint_bytes(cell.size) + cell.size


cdef inline unsigned char* _put_cell(unsigned char* at, const Cell* cell) noexcept nogil:
    if cell.null:
        return put_varint(at, -1)
    at = put_varint(at, cell.size)
    memcpy(at, cell.start, cell.size)
    return at + cell.size


cdef class _Columns:
    """Everything a row is made of."""

    cdef _Cells keys
    cdef _Cells values
    cdef _Ranges headers
    cdef _Cells names
    cdef _Cells contents
    cdef Cell key
    cdef Cell value
    cdef int32_t headers_start
    cdef int32_t headers_end

    def __cinit__(self, keys, values, headers):
        self.keys = None if keys is None else _Cells(keys)
        self.values = None if values is None else _Cells(values)
        if headers is not None:
            self.headers = _Ranges(headers.validity, headers.offsets, headers.first)
            self.names = _Cells(headers.names)
            self.contents = _Cells(headers.values)

    cdef Py_ssize_t take(self, Py_ssize_t row) except -1:
        """Look at a row; returns the bytes of what does not depend on its place."""
        cdef Cell name, content
        cdef bint null
        cdef Py_ssize_t size
        cdef int32_t entry
        self.key.null = self.value.null = True
        self.key.size = self.value.size = 0
        self.headers_start = self.headers_end = 0
        if self.keys is not None:
            self.keys.at(row, &self.key)
        if self.values is not None:
            self.values.at(row, &self.value)
        size = 1 + _cell_bytes(&self.key) + _cell_bytes(&self.value)
        if self.headers is not None:
            self.headers.at(row, &self.headers_start, &self.headers_end, &null)
            if self.headers_start < 0 or self.headers_start > self.headers_end:
                raise Malformed(
                    f"headers {self.headers_start}..{self.headers_end} of row "
                    f"{row + self.headers.first} are not in their column")
            for entry in range(self.headers_start, self.headers_end):
                self.names.at(entry, &name)
                if name.null:
                    raise Malformed(
                        f"row {row + self.headers.first} has a header without a name")
                self.contents.at(entry, &content)
                size += _cell_bytes(&name) + _cell_bytes(&content)
        return size + varint_bytes(self.headers_end - self.headers_start)

    cdef unsigned char* put(self, unsigned char* at) except NULL:
        """Key, value and headers of the row looked at."""
        cdef Cell name, content
        cdef int32_t entry
        at = _put_cell(at, &self.key)
        at = _put_cell(at, &self.value)
        at = put_varint(at, self.headers_end - self.headers_start)
        for entry in range(self.headers_start, self.headers_end):
            self.names.at(entry, &name)
            self.contents.at(entry, &content)
            at = _put_cell(at, &name)
            at = _put_cell(at, &content)
        return at

    cdef uint64_t digest(self) noexcept:
        cdef uint64_t sizes = 0
        cdef uint32_t crc = 0
        if not self.key.null:
            sizes += <uint64_t>(self.key.size + 1) * KEY_FACTOR
            crc = crc32c_of(self.key.start, self.key.size, 0)
        if not self.value.null:
            sizes += <uint64_t>(self.value.size + 1) * VALUE_FACTOR
            crc = crc32c_of(self.value.start, self.value.size, crc)
        return sizes + crc


cdef int32_t* _by_partition(
    Bytes placed, Py_ssize_t count, Py_ssize_t partitions, Py_ssize_t* ends
) except? NULL:
    """Rows in the order of their partitions; `ends` is where each partition's rows end."""
    cdef Py_ssize_t row, partition, total
    cdef int32_t place
    cdef int32_t* order
    for row in range(count):
        place = _i32(placed + 4 * row)
        if place < 0 or place >= partitions:
            raise Malformed(f"row {row} is for partition {place} of {partitions}")
        ends[place] += 1
    total = 0
    for partition in range(partitions):
        total += ends[partition]
        ends[partition] = total - ends[partition]
    order = <int32_t*>PyMem_Malloc(max(4, 4 * count))
    if order == NULL:
        raise MemoryError()
    for row in range(count):
        place = _i32(placed + 4 * row)
        order[ends[place]] = <int32_t>row
        ends[place] += 1
    return order


cdef int _encode_partition(
    _Writer writer, _Columns columns, Bytes timestamps,
    const int32_t* rows, Py_ssize_t count, int32_t partition, unsigned char* sequence_at
) except -1:
    cdef Py_ssize_t index, fixed, body, size
    cdef int64_t timestamp, delta
    cdef int64_t sequence = _i32(sequence_at)
    cdef int32_t moved
    cdef unsigned char* at
    for index in range(count):
        fixed = columns.take(rows[index])
        timestamp = _i64(timestamps + 8 * <Py_ssize_t>rows[index])
        if index == 0:
            writer.begin(timestamp)
        delta = subtract_i64(timestamp, writer.base)
        body = fixed + varint_bytes(delta) + varint_bytes(writer.records)
        size = varint_bytes(body) + body
        if writer.records and writer.used - writer.start + size > writer.bytes_max:
            sequence = writer.end(partition, sequence)
            writer.begin(timestamp)
            delta = 0
            body = fixed + 2
            size = varint_bytes(body) + body
        at = put_varint(writer.room(size), body)
        at[0] = 0
        at = put_varint(at + 1, delta)
        at = put_varint(at, writer.records)
        columns.put(at)
        writer.used += size
        writer.records += 1
        writer.timestamp_max = max(writer.timestamp_max, timestamp)
        writer.digest += columns.digest()
    if count:
        sequence = writer.end(partition, sequence)
    moved = <int32_t>sequence
    memcpy(sequence_at, &moved, 4)
    return 0


def encode_rows(
    keys, values, headers, timestamps, placed, Py_ssize_t count, bytearray sequences,
    Py_ssize_t bytes_max, producing
):
    """Batches of the rows; a batch of several records stays within `bytes_max`."""
    cdef Py_ssize_t partitions = len(sequences) // 4
    cdef _Lent times = _Lent(timestamps)
    cdef _Lent places = _Lent(placed)
    if count < 0 or times.size() < 8 * count or places.size() < 4 * count:
        raise Malformed(f"columns are shorter than {count} rows")
    cdef _Columns columns = _Columns(keys, values, headers)
    cdef _Writer writer = _Writer(bytes_max, producing)
    cdef Py_ssize_t* ends = <Py_ssize_t*>PyMem_Malloc(max(8, sizeof(Py_ssize_t) * partitions))
    cdef int32_t* order = NULL
    cdef Py_ssize_t partition
    cdef Py_ssize_t start = 0
    if ends == NULL:
        raise MemoryError()
    try:
        memset(ends, 0, sizeof(Py_ssize_t) * partitions)
        order = _by_partition(places.start(), count, partitions, ends)
        for partition in range(partitions):
            _encode_partition(
                writer, columns, times.start(), order + start, ends[partition] - start,
                <int32_t>partition,
                <unsigned char*>PyByteArray_AS_STRING(sequences) + 4 * partition)
            start = ends[partition]
    finally:
        PyMem_Free(order)
        PyMem_Free(ends)
    PyByteArray_Resize(writer.data, writer.used)
    return EncodedRows(writer.data, writer.batches, writer.digest)
