"""WebAssembly programs that hurt whoever runs them without limits."""

from __future__ import annotations

import wasmtime

_FRAME = """
(module
  (import "env" "copy_records" (func $copy (param i32 i32)))
  (memory (export "memory") {pages})
  {declared}
  (func (export "alloc") (param i32) (result i32) (i32.const 65536))
  (func (export "filter") (param $p i32) (param $n i32) (param $version i32) (result i32)
    {filtered})
  (func (export "init") (param $p i32) (param $n i32) (param $version i32) (result i32)
    {started}))
"""
_PASS = "(call $copy (i32.const 0) (i32.const 5)) (i32.const 0)"
"""Gives no record back."""


def text(*, pages: int = 4, declared: str = "", filtered: str = _PASS, started: str = "") -> str:
    """A SmartModule that filters everything out, in WebAssembly's text form."""
    return _FRAME.format(
        pages=pages, declared=declared, filtered=filtered, started=started or "(i32.const 0)"
    )


def program(
    *, pages: int = 4, declared: str = "", filtered: str = _PASS, started: str = ""
) -> bytes:
    made = text(pages=pages, declared=declared, filtered=filtered, started=started)
    return bytes(wasmtime.wat2wasm(made))


def growing_table() -> bytes:
    """Its start makes a table of 20 million elements, 160 MB."""
    declared = "(table $t 1 funcref) (func $f) (elem declare func $f)"
    grow = "(drop (table.grow $t (ref.func $f) (i32.const 20000000)))"
    return program(
        declared=declared, started=f"{grow} (i32.const 0)", filtered="(unreachable) (i32.const 0)"
    )


def endless() -> bytes:
    """Every batch takes all the time and fuel that there is."""
    return program(filtered="(loop $ever (br $ever)) (i32.const 0)")


def copying() -> bytes:
    """Hands 8 MiB back, again and again."""
    copy = "(call $copy (i32.const 0) (i32.const 8388608))"
    return program(pages=160, filtered=f"(loop $ever {copy} (br $ever)) (i32.const 0)")


def telling() -> bytes:
    """Refuses the records of the past that it is shown, with their bytes as the reason."""
    hint = "(i32.sub (local.get $p) (i32.const 2))"
    told = f"""
      (i32.store8 {hint} (i32.const 0))
      (i32.store8 offset=1 {hint} (local.get $n))
      (call $copy {hint} (i32.add (local.get $n) (i32.const 2)))
      (i32.const -1)"""
    given = "(param $p i32) (param $n i32) (param i32) (result i32)"
    return program(declared=f'(func (export "look_back") {given} {told})')


def misshapen() -> bytes:
    """Exports a function where a SmartModule has its memory, and needs no start."""
    alloc = '(func (export "alloc") (param i32) (result i32) (i32.const 0))'
    filtering = '(func (export "filter") (param i32 i32 i32) (result i32) (i32.const 0))'
    return bytes(wasmtime.wat2wasm(f'(module (func (export "memory")) {alloc} {filtering})'))


def aggregate() -> bytes:
    """Keeps what it is started with."""
    return bytes(wasmtime.wat2wasm(text().replace('"filter"', '"aggregate"')))


def multiplying(records: int) -> bytes:
    """Gives so many empty records back, whatever it is shown."""
    count = "".join(f"\\{byte:02x}" for byte in records.to_bytes(4, "big"))
    start, size = 1 << 17, 7 * records
    have, left = "(local.get $n)", f"(i32.sub (i32.const {size}) (local.get $n))"
    step = f"(select {have} {left} (i32.lt_u {have} {left}))"
    return program(
        pages=(start + size >> 16) + 2,
        declared=f'(data (i32.const {start}) "{count}\\0c\\00\\00\\00\\00\\00\\00")',
        filtered=f"""
        (local.set $n (i32.const 7))
        (block $done (loop $more
          (br_if $done (i32.ge_u {have} (i32.const {size})))
          (memory.copy (i32.add (i32.const {start + 4}) {have}) (i32.const {start + 4}) {step})
          (local.set $n (i32.shl {have} (i32.const 1)))
          (br $more)))
        (i32.store8 (i32.const {start + 4 + size}) (i32.const 0))
        (call $copy (i32.const {start}) (i32.const {size + 5}))
        (i32.const {records})""",
    )


def trapping() -> bytes:
    """Fails at whatever more than one record it is shown, and passes each of them alone."""
    many = "(i32.ne (i32.load8_u offset=15 (local.get $p)) (i32.const 1))"
    return program(filtered=f"(if {many} (then (unreachable))) {_PASS}")


def looping(loops: int) -> bytes:
    """One function of so many loops: the compiler takes time by the square of them."""
    step = bytes.fromhex("0340200041016a22000d000b")
    body = b"\1\4\x7f" + step * loops + b"\x20\0\x0b"
    sections = ((1, b"\1\x60\0\1\x7f"), (3, b"\1\0"), (10, b"\1" + _leb(len(body)) + body))
    encoded = b"".join(bytes([kind]) + _leb(len(data)) + data for kind, data in sections)
    return b"\0asm\1\0\0\0" + encoded


def _leb(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def entangled(loops: int, variables: int) -> bytes:
    """A function of nested loops that use the same variables: its bytes say little of its cost."""
    numbers = [_leb(number) for number in range(variables)]
    steps = b"".join(b"\x20" + each + b"\x20\0\x6a\x21" + each for each in numbers)
    body = b"\1" + _leb(variables) + b"\x7f" + b"\x03\x40" * loops + steps
    body += b"\x20\0\x0d\0\x0b" * loops + b"\x0b"
    sections = ((1, b"\1\x60\1\x7f\0"), (3, b"\1\0"), (10, b"\1" + _leb(len(body)) + body))
    encoded = b"".join(bytes([kind]) + _leb(len(data)) + data for kind, data in sections)
    return b"\0asm\1\0\0\0" + encoded


def declaring(functions: int) -> bytes:
    """Functions that do nothing with 50,000 variables each."""
    body = b"\1" + _leb(49_999) + b"\x7f\x0b"
    code = _leb(functions) + (_leb(len(body)) + body) * functions
    sections = ((1, b"\1\x60\0\0"), (3, _leb(functions) + bytes(functions)), (10, code))
    encoded = b"".join(bytes([kind]) + _leb(len(data)) + data for kind, data in sections)
    return b"\0asm\1\0\0\0" + encoded
