"""What a SmartModule must be like before it is compiled, and what it must import and export."""

from __future__ import annotations

import gzip
import io
from typing import Any, Final, NamedTuple

from pentalog.model.errors import SmartModuleInvalid

WASM_BYTES_MAX: Final = 32 << 20
CODE_BYTES_MAX: Final = 4 << 20
"""Functions of one module, all together: to compile them takes seconds."""
FUNCTION_SQUARES_MAX: Final = 10**10
"""The compiler may take time by the square of a function's bytes: one of 100 kB, some seconds."""
FUNCTIONS_MAX: Final = 20_000
HERE_BYTES_MAX: Final = 2 << 10
HERE_TYPES_BYTES_MAX: Final = 256
HERE_LOCALS_MAX: Final = 1_000
"""A module that is compiled in the broker's process: however it is made, in a fraction of a second.

Of larger ones that cannot be told: the compiler may take minutes and gigabytes for 16 kB.
"""
LOCALS_MAX: Final = 1_000_000
"""Of all functions of a module: a few bytes declare 50,000."""
PARTS_MAX: Final = 1_000
"""Sections, imports and exports, each."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_WASM_MAGIC: Final = b"\0asm\1\0\0\0"
"""How a binary module begins; the text form and components are refused."""
_TYPES, _IMPORTS, _EXPORTS, _CODE = 1, 2, 7, 10
TRANSFORMS: Final = {"filter": 0, "map": 1, "filter_map": 4, "array_map": 2, "aggregate": 3}
"""In the order in which they are looked for, with the numbers their failures carry."""
_FUNCTION: Final = "a function"
_CALL_SHAPE: Final = f"{_FUNCTION} of i32 i32 i32 to i32"
_COPY_SHAPE: Final = f"{_FUNCTION} of i32 i32 to nothing"
_SHAPES: Final = {
    "memory": "memory",
    "alloc": f"{_FUNCTION} of i32 to i32",
    **dict.fromkeys((*TRANSFORMS, "init", "look_back"), _CALL_SHAPE),
}
"""What the exports of a module are that the broker uses."""
_HOST_MODULES: Final = ("wasi_snapshot_preview1", "wasi_unstable")


def unpacked(wasm: bytes) -> bytes:
    """Uploads come as they are or compressed."""
    if wasm[:2] == _GZIP_MAGIC:
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(wasm)) as packed:
                wasm = packed.read(WASM_BYTES_MAX + 1)
        except (OSError, EOFError) as error:
            raise SmartModuleInvalid(f"the module cannot be decompressed: {error}") from error
    if len(wasm) > WASM_BYTES_MAX:
        raise SmartModuleInvalid(f"the module has more than {WASM_BYTES_MAX} bytes")
    return wasm


class Sizes(NamedTuple):
    """What tells how long a module may take to be compiled."""

    code_bytes: int
    small: bool
    """However it is made, it cannot take long."""


def check_sizes(wasm: bytes) -> Sizes:
    """Refuse what is not a binary module or would take long to compile."""
    types_bytes = variables = code_bytes = 0
    has_code = False
    if wasm[: len(_WASM_MAGIC)] != _WASM_MAGIC:
        raise SmartModuleInvalid(
            f"not a WebAssembly module: it begins with {wasm[:8]!r}; accepted are binary modules, "
            "not their text form"
        )
    position, sections = len(_WASM_MAGIC), 0
    while position < len(wasm):
        sections += 1
        kind = wasm[position]
        size, start = _number(wasm, position + 1)
        position = start + size
        if sections > PARTS_MAX:
            raise SmartModuleInvalid(f"the module has more than {PARTS_MAX} sections")
        if kind in (_IMPORTS, _EXPORTS) and _number(wasm, start)[0] > PARTS_MAX:
            raise SmartModuleInvalid(f"the module has more than {PARTS_MAX} imports or exports")
        if kind == _TYPES:
            types_bytes += size
        if kind == _CODE:
            if has_code:
                raise SmartModuleInvalid("not a WebAssembly module: it has two sections of code")
            has_code, code_bytes = True, size
            variables = _check_code(wasm, start, position)
    small = len(wasm) <= HERE_BYTES_MAX and types_bytes <= HERE_TYPES_BYTES_MAX
    return Sizes(code_bytes, small and variables <= HERE_LOCALS_MAX)


def _check_code(wasm: bytes, start: int, end: int) -> int:
    """Refuse functions that would take long to compile; returns how many variables they have."""
    if end - start > CODE_BYTES_MAX:
        raise SmartModuleInvalid(
            f"the module has {end - start} bytes of code; accepted are {CODE_BYTES_MAX}"
        )
    count, position = _number(wasm, start)
    if count > FUNCTIONS_MAX:
        raise SmartModuleInvalid(f"the module has {count} functions; accepted are {FUNCTIONS_MAX}")
    squares = 0
    variables = 0
    for _ in range(count):
        size, position = _number(wasm, position)
        squares += size * size
        if squares > FUNCTION_SQUARES_MAX:
            raise SmartModuleInvalid(
                f"the functions of the module are too large to be compiled, one has {size} bytes; "
                f"accepted are {FUNCTION_SQUARES_MAX} for the sum of the squares of their sizes: "
                "split them, or build for size"
            )
        if position + size > end:
            raise SmartModuleInvalid(
                "not a WebAssembly module: a function goes beyond the section of code"
            )
        variables += _locals(wasm, position, position + size)
        if variables > LOCALS_MAX:
            raise SmartModuleInvalid(
                f"the functions of the module have more than {LOCALS_MAX} local variables"
            )
        position += size
    return variables


def _locals(wasm: bytes, position: int, end: int) -> int:
    """Return how many local variables the function between two positions declares."""
    groups, position = _number(wasm, position)
    found = 0
    for _ in range(min(groups, PARTS_MAX)):
        if position >= end:
            raise SmartModuleInvalid("not a WebAssembly module: a function ends too early")
        count, position = _number(wasm, position)
        found += count
        position += 1  # their type; what is longer is no type that modules may use
    return found if groups <= PARTS_MAX else LOCALS_MAX + 1


def _number(wasm: bytes, position: int) -> tuple[int, int]:
    """(the u32 at this position, the position after it)."""
    value = shift = 0
    while True:
        if position >= len(wasm) or shift > 28:
            raise SmartModuleInvalid("not a WebAssembly module: it ends too early")
        byte = wasm[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def check_shapes(module: Any) -> None:
    exports = {export.name for export in module.exports}
    missing = {"memory", "alloc"} - exports
    if missing or not exports & TRANSFORMS.keys():
        wanted = ", ".join(TRANSFORMS)
        raise SmartModuleInvalid(
            f"the module exports {', '.join(sorted(exports)[:20]) or 'nothing'}; a SmartModule "
            f"exports memory, alloc and one of {wanted}"
        )
    for export in module.exports:
        wanted = _shape(export.type)
        if export.name in _SHAPES and _SHAPES[export.name] != wanted:
            raise SmartModuleInvalid(
                f"the module exports {export.name} as {wanted}; a SmartModule exports "
                f"{_SHAPES[export.name]}"
            )
    for wish in module.imports:
        shape = _shape(wish.type)
        if wish.name == "copy_records" and shape != _COPY_SHAPE:
            raise SmartModuleInvalid(
                f"the module imports copy_records as {shape}; what it gets is {_COPY_SHAPE}"
            )
        is_known = wish.name == "copy_records" or wish.module in _HOST_MODULES
        if not is_known or not shape.startswith(_FUNCTION):
            raise SmartModuleInvalid(
                f"the module imports {wish.module}.{wish.name}, {shape}, which no SmartModule "
                "gets; accepted are copy_records and the functions of WASI"
            )


def _shape(kind: Any) -> str:
    """What an import or export is, as a text to compare and to tell."""
    import wasmtime

    if isinstance(kind, wasmtime.FuncType):
        given, returned = (" ".join(map(str, each)) for each in (kind.params, kind.results))
        return f"{_FUNCTION} of {given or 'nothing'} to {returned or 'nothing'}"
    return type(kind).__name__.removesuffix("Type").lower()
