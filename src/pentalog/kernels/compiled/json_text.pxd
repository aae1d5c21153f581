"""Texts of JSON: where they end, what their escapes stand for, and whether they are UTF-8."""

from libc.stdint cimport int32_t

ctypedef const unsigned char* Bytes


cdef inline int _hex(unsigned char one) noexcept:
    if 0x30 <= one <= 0x39:
        return one - 0x30
    one |= 0x20
    return one - 0x57 if 0x61 <= one <= 0x66 else -1


cdef inline int32_t _code(Bytes at, Bytes end) noexcept:
    """The number that `\\uXXXX` at `at` stands for, or -1."""
    cdef int32_t code = 0
    cdef int place, digit
    if end - at < 6 or at[0] != 0x5C or at[1] != 0x75:
        return -1
    for place in range(2, 6):
        digit = _hex(at[place])
        if digit < 0:
            return -1
        code = code << 4 | digit
    return code


cdef inline unsigned char _short_escape(unsigned char one) noexcept:
    """What a letter behind a backslash stands for, or 0."""
    if one == 0x22 or one == 0x5C or one == 0x2F:
        return one
    if one == 0x62:
        return 0x08
    if one == 0x66:
        return 0x0C
    if one == 0x6E:
        return 0x0A
    if one == 0x72:
        return 0x0D
    return 0x09 if one == 0x74 else 0


cdef inline Bytes string_end(Bytes at, Bytes end) noexcept:
    """The closing quote of a text that begins at `at`, or NULL."""
    while at < end and at[0] != 0x22:
        if at[0] != 0x5C:
            at += 1
        elif end - at >= 2 and _short_escape(at[1]):
            at += 2
        elif _code(at, end) >= 0:
            at += 6
        else:
            return NULL
    return at if at < end else NULL


cdef inline int _put_utf8(char* into, int32_t code) noexcept:
    if code < 0x80:
        into[0] = <char>code
        return 1
    if code < 0x800:
        into[0] = <char>(0xC0 | code >> 6)
        into[1] = <char>(0x80 | code & 0x3F)
        return 2
    if code < 0x10000:
        into[0] = <char>(0xE0 | code >> 12)
        into[1] = <char>(0x80 | code >> 6 & 0x3F)
        into[2] = <char>(0x80 | code & 0x3F)
        return 3
    into[0] = <char>(0xF0 | code >> 18)
    into[1] = <char>(0x80 | code >> 12 & 0x3F)
    into[2] = <char>(0x80 | code >> 6 & 0x3F)
    into[3] = <char>(0x80 | code & 0x3F)
    return 4


cdef inline Py_ssize_t put_escaped(char* into, Bytes at, Bytes end) noexcept:
    """A text without its escapes; how long it is, or -1 if half a character is in it."""
    cdef Py_ssize_t used = 0
    cdef int32_t code, low
    while at < end:
        if at[0] != 0x5C:
            into[used] = <char>at[0]
            used += 1
            at += 1
            continue
        if at[1] != 0x75:
            into[used] = <char>_short_escape(at[1])
            used += 1
            at += 2
            continue
        code = _code(at, end)
        at += 6
        if 0xD800 <= code <= 0xDFFF:
            low = _code(at, end)
            if code > 0xDBFF or not 0xDC00 <= low <= 0xDFFF:
                return -1
            at += 6
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        used += _put_utf8(into + used, code)
    return used


cdef inline Bytes name_end(Bytes at, Bytes end) noexcept:
    """The closing quote of a name, in which there are no escapes, or NULL."""
    while at < end and at[0] != 0x22 and at[0] != 0x5C:
        at += 1
    return at if at < end and at[0] == 0x22 else NULL


cdef inline bint is_utf8(Bytes at, Bytes end) noexcept:
    cdef int more
    cdef unsigned char least, most
    while at < end:
        if at[0] < 0x80:
            at += 1
            continue
        least, most = 0x80, 0xBF
        if 0xC2 <= at[0] <= 0xDF:
            more = 1
        elif 0xE0 <= at[0] <= 0xEF:
            more = 2
            if at[0] == 0xE0:
                least = 0xA0
            elif at[0] == 0xED:
                most = 0x9F
        elif 0xF0 <= at[0] <= 0xF4:
            more = 3
            if at[0] == 0xF0:
                least = 0x90
            elif at[0] == 0xF4:
                most = 0x8F
        else:
            return False
        if end - at <= more or at[1] < least or at[1] > most:
            return False
        at += 2
        while more > 1:
            if at[0] & 0xC0 != 0x80:
                return False
            at += 1
            more -= 1
    return True
