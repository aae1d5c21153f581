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
