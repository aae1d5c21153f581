/* A walk over the records of a batch that reads nothing outside it.

Kafka's numbers of 32 bits end within five bytes; a reader in Java refuses longer ones, so this
does as well.  Almost all are one byte long: that case comes first. */

#ifndef PENTALOG_WALK_H
#define PENTALOG_WALK_H

#include <stdbool.h>
#include <stdint.h>

#include "wire.h"

enum { WALK_SOUND = 0, WALK_COUNT = 5, WALK_RECORD = 8 };

struct stepped {
    int64_t timestamp_delta;
    int32_t offset_delta;
    bool key_null;
};

struct walked {
    int64_t null_keys;
    int64_t delta_min;
    int64_t delta_max;
};

/* Returns where the number ends, NULL if it does not end before `end` or has more than 32 bits. */
static inline const unsigned char *take_i32(
    const unsigned char *at, const unsigned char *end, int32_t *number) {
    if (at >= end) return NULL;
    uint32_t value = *at++;
    if (value >= 0x80) {
        value &= 0x7f;
        for (int shift = 7;; shift += 7) {
            if (at >= end || shift > 28) return NULL;
            uint32_t byte = *at++;
            if (shift == 28 && byte > 0x0f) return NULL;
            value |= (byte & 0x7f) << shift;
            if (byte < 0x80) break;
        }
    }
    *number = (int32_t)((value >> 1) ^ (0 - (value & 1)));
    return at;
}

static inline const unsigned char *take_i64(
    const unsigned char *at, const unsigned char *end, int64_t *number) {
    if (at < end && *at < 0x80) {
        *number = (int64_t)(*at >> 1) ^ -(int64_t)(*at & 1);
        return at + 1;
    }
    return take_varint(at, end, number);
}

/* Steps over a field with a length; a negative one means null. */
static inline const unsigned char *skip_field(
    const unsigned char *at, const unsigned char *end, int32_t *size) {
    at = take_i32(at, end, size);
    if (at == NULL || *size <= 0) return at;
    return *size <= end - at ? at + *size : NULL;
}

static inline const unsigned char *skip_headers(
    const unsigned char *at, const unsigned char *end) {
    int32_t count, size;
    at = take_i32(at, end, &count);
    if (at == NULL || count < 0 || count > end - at) return NULL;
    for (; count > 0; count--) {
        at = skip_field(at, end, &size);
        if (at == NULL || size < 0) return NULL;
        at = skip_field(at, end, &size);
        if (at == NULL) return NULL;
    }
    return at;
}

/* Returns where the record ends, NULL if it cannot be read. */
static inline const unsigned char *step_record(
    const unsigned char *at, const unsigned char *end, struct stepped *record) {
    int32_t length, key, value;
    at = take_i32(at, end, &length);
    if (at == NULL || length < 1 || length > end - at) return NULL;
    const unsigned char *stop = at + length;
    at = take_i64(at + 1, stop, &record->timestamp_delta);
    if (at == NULL) return NULL;
    at = take_i32(at, stop, &record->offset_delta);
    if (at == NULL) return NULL;
    at = skip_field(at, stop, &key);
    if (at == NULL) return NULL;
    record->key_null = key < 0;
    at = skip_field(at, stop, &value);
    if (at == NULL || at == stop) return NULL;
    /* Most records have no headers: their count is the last byte, and 0. */
    at = *at == 0 ? at + 1 : skip_headers(at, stop);
    return at == stop ? at : NULL;
}

/* Room for every number before the key of a record that `glance` can read. */
enum { GLANCE_BYTES = 32 };

/* Takes a number of at most three bytes, not checked against an end; false if it is longer. */
static inline bool take_short(const unsigned char **at, uint32_t *raw) {
    const unsigned char *from = *at;
    uint32_t value = from[0];
    if (value < 0x80) {
        *at = from + 1;
    } else if (from[1] < 0x80) {
        value = (value & 0x7f) | (uint32_t)from[1] << 7;
        *at = from + 2;
    } else if (from[2] < 0x80) {
        value = (value & 0x7f) | (uint32_t)(from[1] & 0x7f) << 7 | (uint32_t)from[2] << 14;
        *at = from + 3;
    } else {
        return false;
    }
    *raw = value;
    return true;
}

/* The same as `step_record` for a record of short numbers without headers, which most are, and
with `GLANCE_BYTES` before `end`.  NULL says nothing: `step_record` decides. */
static inline const unsigned char *glance(
    const unsigned char *at, const unsigned char *end, struct stepped *record) {
    uint32_t length, delta, offset, key, value;
    if (!take_short(&at, &length) || length & 1 || (length >>= 1) > (uint64_t)(end - at))
        return NULL;
    const unsigned char *stop = at + length;
    at++;
    if (!take_short(&at, &delta) || !take_short(&at, &offset) || !take_short(&at, &key))
        return NULL;
    record->timestamp_delta = (int64_t)(delta >> 1) ^ -(int64_t)(delta & 1);
    record->offset_delta = (int32_t)(offset >> 1) ^ -(int32_t)(offset & 1);
    record->key_null = key & 1;
    key = key & 1 ? 0 : key >> 1;
    /* Behind the key: the length of the value, three bytes at most, and the number of headers. */
    if (stop - at < (int64_t)key + 4) return NULL;
    at += key;
    if (!take_short(&at, &value)) return NULL;
    value = value & 1 ? 0 : value >> 1;
    return stop - at == (int64_t)value + 1 && stop[-1] == 0 ? stop : NULL;
}

/* Offset deltas must count from 0 if `offset_last` is negative, as a producer sends them; else
they must grow and stay up to it, as a compaction leaves them. */
static inline int walk_records(
    const unsigned char *at, const unsigned char *end, int64_t count, int64_t offset_last,
    struct walked *walked) {
    int64_t null_keys = 0, delta_min = INT64_MAX, delta_max = INT64_MIN, before = -1;
    struct stepped record;
    for (int64_t index = 0; index < count; index++) {
        const unsigned char *behind = NULL;
        if (end - at >= GLANCE_BYTES) behind = glance(at, end, &record);
        if (behind == NULL) behind = step_record(at, end, &record);
        if (behind == NULL) return WALK_RECORD;
        at = behind;
        if (offset_last < 0 ? record.offset_delta != index
                            : record.offset_delta <= before || record.offset_delta > offset_last)
            return WALK_RECORD;
        before = record.offset_delta;
        null_keys += record.key_null;
        if (record.timestamp_delta < delta_min) delta_min = record.timestamp_delta;
        if (record.timestamp_delta > delta_max) delta_max = record.timestamp_delta;
    }
    walked->null_keys = null_keys;
    walked->delta_min = count > 0 ? delta_min : 0;
    walked->delta_max = count > 0 ? delta_max : 0;
    return at == end ? WALK_SOUND : WALK_COUNT;
}

#endif
