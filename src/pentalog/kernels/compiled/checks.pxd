"""The check of a run of batches, compiled into every kernel that needs it."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t

from pentalog.kernels.compiled.wire cimport (
    add_i64,
    crc32c_of,
    i16_at,
    i32_at,
    i64_at,
    u32_at,
    walk_records,
    walked,
)

cdef enum:
    NO_FLAW = 0
    SHORT = 1
    LENGTH = 2
    MAGIC = 3
    CHECKSUM = 4
    COUNT = 5
    CODEC = 6
    OFFSET = 7
    RECORD = 8

    HEADER_BYTES = 61
    FRAMING_BYTES = 12
    LENGTH_MIN = 49
    LENGTH_MAX = 2147483635
    MAGIC_END = 17
    RECORD_BYTES_MIN = 7
    CODEC_MAX = 4
    I32_MAX = 2147483647
    APPEND_TIME = 0x08
    PRODUCED = -1

cdef struct Run:
    int flaw
    Py_ssize_t position
    int64_t batches
    int64_t offsets
    int64_t records
    int64_t batch_bytes_max
    int64_t timestamp_max
    int attributes_any
    int codecs
    int64_t producer_id
    int producer_epoch
    int64_t sequence_first
    int64_t sequence_last
    bint chained
    bint restamp


cdef inline int64_t sequence_after(int64_t sequence, int64_t count) noexcept nogil:
    cdef int64_t after = sequence + count
    return after if after <= I32_MAX else after - I32_MAX - 1


cdef inline int frame_flaw(const unsigned char* at, Py_ssize_t left) noexcept nogil:
    """The flaw in the framing of a batch, whose whole body must be in `left`."""
    cdef int32_t length
    if left < MAGIC_END:
        return SHORT
    if at[16] != 2:
        return MAGIC
    length = i32_at(at + 8)
    if length < LENGTH_MIN or length > LENGTH_MAX:
        return LENGTH
    return SHORT if length > left - FRAMING_BYTES else NO_FLAW


cdef inline bint sum_is_right(const unsigned char* at, Py_ssize_t size) noexcept nogil:
    return crc32c_of(at + 21, size - 21, 0) == u32_at(at + 17)


cdef inline int append_flaw(
    const unsigned char* at, Py_ssize_t size, int64_t* timestamp
) noexcept nogil:
    """The flaw of a batch as a producer sends it; `timestamp` becomes that of its newest record.

    What is compressed is not opened: its newest timestamp is what the header says.
    """
    cdef int codec, flaw
    cdef int64_t records
    cdef walked found
    if not sum_is_right(at, size):
        return CHECKSUM
    codec = at[22] & 7
    if codec > CODEC_MAX:
        return CODEC
    records = i32_at(at + 57)
    if records <= 0 or records != <int64_t>i32_at(at + 23) + 1:
        return COUNT
    timestamp[0] = i64_at(at + 35)
    if codec:
        return NO_FLAW
    if records > (size - HEADER_BYTES) // RECORD_BYTES_MIN:
        return COUNT
    flaw = walk_records(at + HEADER_BYTES, at + size, records, PRODUCED, &found)
    if flaw == NO_FLAW and not at[22] & APPEND_TIME:
        timestamp[0] = max(<int64_t>-1, add_i64(i64_at(at + 27), found.delta_max))
    return flaw


cdef inline void note(
    Run* run, const unsigned char* at, Py_ssize_t size, int64_t timestamp
) noexcept nogil:
    """Add one sound batch, whose newest record is of `timestamp`, to the facts of its run."""
    cdef int64_t delta = i32_at(at + 23)
    cdef int64_t producer = i64_at(at + 43)
    cdef int64_t sequence = -1
    cdef int64_t last = -1
    cdef int epoch = -1
    if producer < 0:
        producer = -1
    else:
        epoch = i16_at(at + 51)
        sequence = i32_at(at + 53)
        last = sequence_after(sequence, delta)
    if run.batches == 0:
        run.producer_id = producer
        run.producer_epoch = epoch
        run.sequence_first = sequence
    elif producer != run.producer_id or epoch != run.producer_epoch or (
        producer >= 0 and sequence != sequence_after(run.sequence_last, 1)
    ):
        run.chained = False
    run.sequence_last = last
    run.batches += 1
    run.offsets += delta + 1
    run.records += i32_at(at + 57)
    run.batch_bytes_max = max(run.batch_bytes_max, <int64_t>size)
    run.timestamp_max = max(run.timestamp_max, timestamp)
    run.restamp |= timestamp != i64_at(at + 35)
    run.attributes_any |= (at[21] << 8) | at[22]
    run.codecs |= 1 << (at[22] & 7)


cdef inline void check_run(
    const unsigned char* data, Py_ssize_t start, Py_ssize_t end, Run* run
) noexcept nogil:
    """As `check_batches`."""
    cdef Py_ssize_t size
    cdef int64_t timestamp
    run.flaw = SHORT if start == end else NO_FLAW
    run.position = start
    run.batches = run.offsets = run.records = run.batch_bytes_max = 0
    run.attributes_any = run.codecs = 0
    run.timestamp_max = run.producer_id = run.sequence_first = run.sequence_last = -1
    run.producer_epoch = -1
    run.chained = True
    run.restamp = False
    while run.position < end:
        run.flaw = frame_flaw(data + run.position, end - run.position)
        if run.flaw:
            return
        size = <Py_ssize_t>i32_at(data + run.position + 8) + FRAMING_BYTES
        run.flaw = append_flaw(data + run.position, size, &timestamp)
        if run.flaw:
            return
        note(run, data + run.position, size, timestamp)
        run.position += size


cdef inline object facts_of(object make, object kind, const Run* run):
    """`make` is `tuple.__new__`: the class itself would unpack and pack the fields in Python."""
    return make(kind, (
        run.flaw,
        run.position,
        run.batches,
        run.offsets,
        run.records,
        run.batch_bytes_max,
        run.timestamp_max,
        run.attributes_any,
        run.codecs,
        run.producer_id,
        run.producer_epoch,
        run.sequence_first,
        run.sequence_last,
        <bint>run.chained,
        <bint>run.restamp,
    ))
