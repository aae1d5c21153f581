/* Big-endian numbers and zigzag varints at any alignment; varints are read only inside bounds. */

#ifndef PENTALOG_WIRE_H
#define PENTALOG_WIRE_H

#include <stddef.h>
#include <stdint.h>

static inline int16_t i16_at(const unsigned char *at) {
    return (int16_t)((uint16_t)at[0] << 8 | at[1]);
}

static inline uint32_t u32_at(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline int32_t i32_at(const unsigned char *at) { return (int32_t)u32_at(at); }

static inline int64_t i64_at(const unsigned char *at) {
    return (int64_t)((uint64_t)u32_at(at) << 32 | u32_at(at + 4));
}

static inline unsigned char *put_i16(unsigned char *at, int16_t number) {
    at[0] = (unsigned char)((uint16_t)number >> 8);
    at[1] = (unsigned char)number;
    return at + 2;
}

static inline unsigned char *put_u32(unsigned char *at, uint32_t number) {
    at[0] = (unsigned char)(number >> 24);
    at[1] = (unsigned char)(number >> 16);
    at[2] = (unsigned char)(number >> 8);
    at[3] = (unsigned char)number;
    return at + 4;
}

static inline unsigned char *put_i64(unsigned char *at, int64_t number) {
    put_u32(at, (uint32_t)((uint64_t)number >> 32));
    return put_u32(at + 4, (uint32_t)(uint64_t)number);
}

/* Wraps around, so that hostile deltas give a number and no undefined behaviour. */
static inline int64_t add_i64(int64_t left, int64_t right) {
    return (int64_t)((uint64_t)left + (uint64_t)right);
}

static inline int64_t subtract_i64(int64_t left, int64_t right) {
    return (int64_t)((uint64_t)left - (uint64_t)right);
}

static inline uint64_t zigzag(int64_t number) {
    return ((uint64_t)number << 1) ^ (uint64_t)(number >> 63);
}

static inline size_t varint_bytes(int64_t number) {
    uint64_t rest = zigzag(number);
    size_t size = 1;
    while (rest > 0x7f) {
        rest >>= 7;
        size++;
    }
    return size;
}

static inline unsigned char *put_varint(unsigned char *at, int64_t number) {
    uint64_t rest = zigzag(number);
    while (rest > 0x7f) {
        *at++ = (unsigned char)(rest & 0x7f) | 0x80;
        rest >>= 7;
    }
    *at++ = (unsigned char)rest;
    return at;
}

/* Returns where the number ends, NULL if it does not end before `end`. */
static inline const unsigned char *take_varint(
    const unsigned char *at, const unsigned char *end, int64_t *number) {
    uint64_t value = 0;
    int shift = 0;
    for (;;) {
        if (at >= end || shift > 63) return NULL;
        unsigned char byte = *at++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) break;
        shift += 7;
    }
    *number = (int64_t)((value >> 1) ^ (0 - (value & 1)));
    return at;
}

#endif
