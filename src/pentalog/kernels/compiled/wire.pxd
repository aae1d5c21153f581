"""The C headers beside this file, for the kernels."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t

cdef extern from "crc32c.h" nogil:
    void crc32c_prepare()
    uint32_t crc32c_of(const unsigned char* data, size_t size, uint32_t value)
    uint32_t crc32c_by_tables(const unsigned char* data, size_t size, uint32_t value)

cdef extern from "wire.h" nogil:
    int16_t i16_at(const unsigned char* at)
    uint32_t u32_at(const unsigned char* at)
    int32_t i32_at(const unsigned char* at)
    int64_t i64_at(const unsigned char* at)
    unsigned char* put_i16(unsigned char* at, int16_t number)
    unsigned char* put_u32(unsigned char* at, uint32_t number)
    unsigned char* put_i64(unsigned char* at, int64_t number)
    int64_t add_i64(int64_t left, int64_t right)
    int64_t subtract_i64(int64_t left, int64_t right)
    size_t varint_bytes(int64_t number)
    unsigned char* put_varint(unsigned char* at, int64_t number)
    const unsigned char* take_varint(
        const unsigned char* at, const unsigned char* end, int64_t* number)

cdef extern from "walk.h" nogil:
    struct stepped:
        int64_t timestamp_delta
        int32_t offset_delta
        bint key_null
    struct walked:
        int64_t null_keys
        int64_t delta_min
        int64_t delta_max
    const unsigned char* step_record(
        const unsigned char* at, const unsigned char* end, stepped* record)
    int walk_records(
        const unsigned char* at,
        const unsigned char* end,
        int64_t count,
        int64_t offset_last,
        walked* found)
