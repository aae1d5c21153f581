/* CRC-32C (Castagnoli): three streams of the CPU's own instruction at a time where there is one,
   tables otherwise.

   One crc instruction takes three cycles but a new one can start every cycle, so three parts of
   the data are summed at once.  The sum of a whole is then put together from those of its parts:
   moving a sum over n following bytes is linear, so it is a sum of table entries per byte of it.

   `crc32c_prepare` must have run once, under the interpreter lock, before anything else here. */

#ifndef PENTALOG_CRC32C_H
#define PENTALOG_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <nmmintrin.h>
#define CRC32C_HARDWARE __attribute__((target("sse4.2")))
#define CRC32C_WORD(sum, word) ((uint32_t)_mm_crc32_u64((sum), (word)))
#define CRC32C_BYTE(sum, byte) _mm_crc32_u8((sum), (byte))
#define CRC32C_PRESENT() __builtin_cpu_supports("sse4.2")
#elif defined(__ARM_FEATURE_CRC32) && defined(__aarch64__)
#include <arm_acle.h>
#define CRC32C_HARDWARE
#define CRC32C_WORD(sum, word) __crc32cd((sum), (word))
#define CRC32C_BYTE(sum, byte) __crc32cb((sum), (byte))
#define CRC32C_PRESENT() 1
#endif

#define CRC32C_POLYNOMIAL 0x82f63b78u
#define CRC32C_LONG 4096
#define CRC32C_SHORT 256

static uint32_t crc32c_table[8][256];
static uint32_t crc32c_over_long[4][256];
static uint32_t crc32c_over_short[4][256];
static int crc32c_present;
static int crc32c_prepared;

/* What becomes of each value of each byte of a sum after `size` zeros. */
static inline void crc32c_prepare_over(uint32_t over[4][256], size_t size) {
    for (int place = 0; place < 4; place++) {
        for (int bit = 0; bit < 8; bit++) {
            uint32_t sum = (uint32_t)1 << (8 * place + bit);
            for (size_t index = 0; index < size; index++)
                sum = crc32c_table[0][sum & 0xff] ^ (sum >> 8);
            over[place][1 << bit] = sum;
        }
        over[place][0] = 0;
        for (int value = 1; value < 256; value++)
            over[place][value] = over[place][value & (value - 1)] ^ over[place][value & -value];
    }
}

static inline void crc32c_prepare(void) {
    if (crc32c_prepared) return;
    for (int value = 0; value < 256; value++) {
        uint32_t sum = (uint32_t)value;
        for (int bit = 0; bit < 8; bit++) sum = (sum >> 1) ^ (sum & 1 ? CRC32C_POLYNOMIAL : 0);
        crc32c_table[0][value] = sum;
    }
    for (int slice = 1; slice < 8; slice++)
        for (int value = 0; value < 256; value++) {
            uint32_t sum = crc32c_table[slice - 1][value];
            crc32c_table[slice][value] = crc32c_table[0][sum & 0xff] ^ (sum >> 8);
        }
    crc32c_prepare_over(crc32c_over_long, CRC32C_LONG);
    crc32c_prepare_over(crc32c_over_short, CRC32C_SHORT);
#ifdef CRC32C_HARDWARE
    crc32c_present = CRC32C_PRESENT() != 0;
#endif
    crc32c_prepared = 1;
}

static inline uint32_t crc32c_by_tables(const unsigned char *data, size_t size, uint32_t value) {
    uint32_t sum = ~value;
    while (size >= 8) {
        uint32_t low = sum ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 |
                              (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        sum = crc32c_table[7][low & 0xff] ^ crc32c_table[6][low >> 8 & 0xff] ^
              crc32c_table[5][low >> 16 & 0xff] ^ crc32c_table[4][low >> 24] ^
              crc32c_table[3][data[4]] ^ crc32c_table[2][data[5]] ^
              crc32c_table[1][data[6]] ^ crc32c_table[0][data[7]];
        data += 8;
        size -= 8;
    }
    while (size--) sum = crc32c_table[0][(sum ^ *data++) & 0xff] ^ (sum >> 8);
    return ~sum;
}

#ifdef CRC32C_HARDWARE
static inline uint64_t crc32c_word_at(const unsigned char *data) {
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

static inline uint32_t crc32c_over(uint32_t over[4][256], uint32_t sum) {
    return over[0][sum & 0xff] ^ over[1][sum >> 8 & 0xff] ^ over[2][sum >> 16 & 0xff] ^
           over[3][sum >> 24];
}

/* Sums three neighbouring parts of `part` bytes each, as often as they are there. */
CRC32C_HARDWARE static inline uint32_t crc32c_in_threes(
    const unsigned char **data, size_t *size, size_t part, uint32_t over[4][256], uint32_t sum) {
    const unsigned char *at = *data;
    size_t left = *size;
    while (left >= 3 * part) {
        uint32_t second = 0, third = 0;
        for (size_t index = 0; index < part; index += 8) {
            sum = CRC32C_WORD(sum, crc32c_word_at(at + index));
            second = CRC32C_WORD(second, crc32c_word_at(at + part + index));
            third = CRC32C_WORD(third, crc32c_word_at(at + 2 * part + index));
        }
        sum = crc32c_over(over, sum) ^ second;
        sum = crc32c_over(over, sum) ^ third;
        at += 3 * part;
        left -= 3 * part;
    }
    *data = at;
    *size = left;
    return sum;
}

CRC32C_HARDWARE static uint32_t crc32c_by_hardware(
    const unsigned char *data, size_t size, uint32_t value) {
    uint32_t sum = ~value;
    sum = crc32c_in_threes(&data, &size, CRC32C_LONG, crc32c_over_long, sum);
    sum = crc32c_in_threes(&data, &size, CRC32C_SHORT, crc32c_over_short, sum);
    for (; size >= 8; data += 8, size -= 8) sum = CRC32C_WORD(sum, crc32c_word_at(data));
    for (; size; data++, size--) sum = CRC32C_BYTE(sum, *data);
    return ~sum;
}
#endif

static inline uint32_t crc32c_of(const unsigned char *data, size_t size, uint32_t value) {
#ifdef CRC32C_HARDWARE
    if (crc32c_present) return crc32c_by_hardware(data, size, value);
#endif
    return crc32c_by_tables(data, size, value);
}

#endif
