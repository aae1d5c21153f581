"""Small SmartModules in WebAssembly's text form, which follow the ABI of the real ones.

Every module keeps to the same rules, so that tests can provoke what they need by a record's value:
one that begins with `!` makes it trap, with `~` loop for ever, with `?` report a failure.  The
letter it looks for is `a`, or the first one of the first parameter; a parameter `!` fails `init`.
"""

from __future__ import annotations

from functools import cache

import wasmtime

INPUT = 1 << 16
OUTPUT = 1 << 22
PAGES = 160

BODIES = {
    # What to do with the value at $at of $size bytes: how often is the record given back?
    "filter": "(i32.eq (local.get $first) (global.get $wanted))",
    "map": "(call $upper (local.get $at) (local.get $size)) (i32.const 1)",
    "filter_map": """
        (if (result i32) (i32.eq (local.get $first) (global.get $wanted))
          (then (call $upper (local.get $at) (local.get $size)) (i32.const 1))
          (else (i32.const 0)))""",
    "array_map": "(i32.const 2)",
    "aggregate": """
        (global.set $sum (i32.add (global.get $sum)
          (i32.sub (local.get $first) (i32.const 48))))
        (i32.store8 (local.get $at) (i32.add (global.get $sum) (i32.const 48)))
        (i32.const 1)""",
}
KINDS = {"filter": 0, "map": 1, "array_map": 2, "aggregate": 3, "filter_map": 4}

TEMPLATE = """
(module
  (import "env" "copy_records" (func $copy (param i32 i32)))
  (memory (export "memory") {pages})
  (global $next (mut i32) (i32.const 0))
  (global $wanted (mut i32) (i32.const 97))
  (global $sum (mut i32) (i32.const 0))
  (global $out (mut i32) (i32.const 0))
  (data (i32.const 16) "\\00\\04nope")

  (func (export "alloc") (param i32) (result i32) (i32.const {input}))
  (func (export "dealloc") (param i32 i32))

  (func $be32 (param $at i32) (result i32)
    (i32.or (i32.or
      (i32.shl (i32.load8_u (local.get $at)) (i32.const 24))
      (i32.shl (i32.load8_u offset=1 (local.get $at)) (i32.const 16)))
      (i32.or
      (i32.shl (i32.load8_u offset=2 (local.get $at)) (i32.const 8))
      (i32.load8_u offset=3 (local.get $at)))))

  (func $put32 (param $at i32) (param $n i32)
    (i32.store8 (local.get $at) (i32.shr_u (local.get $n) (i32.const 24)))
    (i32.store8 offset=1 (local.get $at) (i32.shr_u (local.get $n) (i32.const 16)))
    (i32.store8 offset=2 (local.get $at) (i32.shr_u (local.get $n) (i32.const 8)))
    (i32.store8 offset=3 (local.get $at) (local.get $n)))

  (func $varint (param $at i32) (result i32)
    (local $value i32) (local $shift i32) (local $byte i32)
    (loop $more
      (local.set $byte (i32.load8_u (local.get $at)))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (local.set $value (i32.or (local.get $value)
        (i32.shl (i32.and (local.get $byte) (i32.const 127)) (local.get $shift))))
      (local.set $shift (i32.add (local.get $shift) (i32.const 7)))
      (br_if $more (i32.ge_u (local.get $byte) (i32.const 128))))
    (global.set $next (local.get $at))
    (i32.shr_u (local.get $value) (i32.const 1)))

  (func $upper (param $at i32) (param $size i32)
    (local $end i32) (local $byte i32)
    (local.set $end (i32.add (local.get $at) (local.get $size)))
    (block $done (loop $more
      (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
      (local.set $byte (i32.load8_u (local.get $at)))
      (if (i32.and (i32.ge_u (local.get $byte) (i32.const 97))
                   (i32.le_u (local.get $byte) (i32.const 122)))
        (then (i32.store8 (local.get $at) (i32.sub (local.get $byte) (i32.const 32)))))
      (local.set $at (i32.add (local.get $at) (i32.const 1)))
      (br $more))))

  (func $record (param $at i32) (param $size i32) (result i32)
    (local $first i32)
    (if (local.get $size) (then (local.set $first (i32.load8_u (local.get $at)))))
    (if (i32.eq (local.get $first) (i32.const 33)) (then (unreachable)))
    (if (i32.eq (local.get $first) (i32.const 126)) (then (loop $ever (br $ever))))
    {body})

  (func $failed (param $p i32) (param $index i32) (param $at i32) (param $size i32)
    (local $out i32)
    (local.set $out (global.get $out))
    (i32.store8 (local.get $out) (i32.const 1))
    (memory.copy (i32.add (local.get $out) (i32.const 1)) (i32.const 16) (i32.const 6))
    (memory.copy (i32.add (local.get $out) (i32.const 7)) (local.get $p) (i32.const 4))
    (call $put32 (i32.add (local.get $out) (i32.const 11))
      (i32.add (call $be32 (i32.add (local.get $p) (i32.const 4))) (local.get $index)))
    (i32.store8 offset=15 (local.get $out) (i32.const {kind}))
    (i32.store8 offset=16 (local.get $out) (i32.const 0))
    (i32.store8 offset=17 (local.get $out) (i32.shl (local.get $size) (i32.const 1)))
    (memory.copy (i32.add (local.get $out) (i32.const 18)) (local.get $at) (local.get $size))
    (global.set $out (i32.add (local.get $out) (i32.add (i32.const 18) (local.get $size)))))

  (func (export "{name}") (param $p i32) (param $n i32) (param $version i32) (result i32)
    (local $at i32) (local $end i32) (local $count i32) (local $index i32) (local $start i32)
    (local $kept i32) (local $copies i32) (local $size i32) (local $failure i32)
    (local.set $at (i32.add (local.get $p) (i32.const 12)))
    {before}
    (local.set $count (call $be32 (local.get $at)))
    (local.set $at (i32.add (local.get $at) (i32.const 4)))
    (global.set $out (i32.const {output_records}))
    (block $done (loop $more
      (br_if $done (i32.ge_s (local.get $index) (local.get $count)))
      (local.set $start (local.get $at))
      (local.set $end (call $varint (local.get $at)))
      (local.set $end (i32.add (global.get $next) (local.get $end)))
      (drop (call $varint (i32.add (global.get $next) (i32.const 1))))
      (drop (call $varint (global.get $next)))
      (local.set $at (i32.add (global.get $next) (i32.const 1)))
      (if (i32.load8_u (global.get $next)) (then
        (local.set $size (call $varint (local.get $at)))
        (local.set $at (i32.add (global.get $next) (local.get $size)))))
      (local.set $size (call $varint (local.get $at)))
      (local.set $at (global.get $next))
      (if (i32.and (i32.gt_u (local.get $size) (i32.const 0))
                   (i32.eq (i32.load8_u (local.get $at)) (i32.const 63)))
        (then (local.set $failure (i32.const 1)) (br $done)))
      (local.set $copies (call $record (local.get $at) (local.get $size)))
      (local.set $kept (i32.add (local.get $kept) (local.get $copies)))
      (block $copied (loop $again
        (br_if $copied (i32.eqz (local.get $copies)))
        (memory.copy (global.get $out) (local.get $start)
          (i32.sub (local.get $end) (local.get $start)))
        (global.set $out (i32.add (global.get $out)
          (i32.sub (local.get $end) (local.get $start))))
        (local.set $copies (i32.sub (local.get $copies) (i32.const 1)))
        (br $again)))
      (local.set $at (local.get $end))
      (local.set $index (i32.add (local.get $index) (i32.const 1)))
      (br $more)))
    (call $put32 (i32.const {output}) (local.get $kept))
    (if (local.get $failure)
      (then (call $failed (local.get $p) (local.get $index) (local.get $at) (local.get $size)))
      (else
        (i32.store8 (global.get $out) (i32.const 0))
        (global.set $out (i32.add (global.get $out) (i32.const 1)))))
    {after}
    (call $copy (i32.const {output}) (i32.sub (global.get $out) (i32.const {output})))
    (local.get $kept))

  (func (export "look_back") (param $p i32) (param $n i32) (param $version i32) (result i32)
    ;; The letter it looks for becomes that of the last record it is shown.
    (global.set $wanted (i32.load8_u
      (i32.sub (i32.add (local.get $p) (local.get $n)) (i32.const 10))))
    (i32.const 0))

  (func (export "init") (param $p i32) (param $n i32) (param $version i32) (result i32)
    (local $at i32)
    (if (i32.eqz (i32.load8_u offset=1 (local.get $p))) (then (return (i32.const 0))))
    (local.set $at (i32.add (i32.add (local.get $p) (i32.const 6))
      (i32.load8_u offset=3 (local.get $p))))
    (if (i32.eq (i32.load8_u (local.get $at)) (i32.const 33)) (then
      (call $copy (i32.const 16) (i32.const 6))
      (return (i32.const -2))))
    (global.set $wanted (i32.load8_u (local.get $at)))
    (i32.const 0)))
"""

BEFORE_AGGREGATE = """
    (global.set $sum (i32.const 0))
    (if (call $be32 (i32.sub (i32.add (local.get $p) (local.get $n)) (i32.const 5)))
      (then (global.set $sum (i32.load8_u
        (i32.sub (i32.add (local.get $p) (local.get $n)) (i32.const 1))))))"""
AFTER_AGGREGATE = """
    (call $put32 (global.get $out) (i32.const 1))
    (i32.store8 offset=4 (global.get $out) (global.get $sum))
    (global.set $out (i32.add (global.get $out) (i32.const 5)))"""


@cache
def module(name: str) -> bytes:
    """The wasm of one of the kinds of SmartModule."""
    aggregates = name == "aggregate"
    text = TEMPLATE.format(
        name=name,
        kind=KINDS[name],
        body=BODIES[name],
        input=INPUT,
        output=OUTPUT,
        output_records=OUTPUT + 4,
        pages=PAGES,
        before=BEFORE_AGGREGATE if aggregates else "",
        after=AFTER_AGGREGATE if aggregates else "",
    )
    return bytes(wasmtime.wat2wasm(text))
