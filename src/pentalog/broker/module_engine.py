"""Runs SmartModules: WebAssembly under limits of fuel, memory and time.

How host and module talk, for every function of a module:

1. The host encodes the input and asks the module's `alloc` for room, which it fills.
2. The function is called with (pointer, length, version); the module frees the input itself.
3. The module hands its output to the imported `copy_records(pointer, length)`.
4. The result is a number of records, or a negative code.

| | Input | Output |
|---|---|---|
| transform | base offset i64, records (u32 size), base timestamp i64 | records, a failure? |
| aggregate | the same, accumulator (u32 size) | the same, accumulator |
| init | parameters: a map of texts, option of a look back | on failure: a text |

Everything here is computation on the thread of whoever calls it: `smart_modules.py` sees to it that
this is not the thread that serves clients.
"""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pentalog import kernels
from pentalog.broker.transformation import Failure, Link, Section
from pentalog.model.errors import SmartModuleInvalid

if TYPE_CHECKING:
    import wasmtime

WASM_BYTES_MAX: Final = 32 << 20
CODE_BYTES_MAX: Final = 4 << 20
"""Functions of one module, all together: to compile them takes seconds."""
FUNCTION_SQUARES_MAX: Final = 10**10
"""The compiler may take time by the square of a function's bytes: one of 100 kB, some seconds."""
FUNCTIONS_MAX: Final = 20_000
PARTS_MAX: Final = 1_000
"""Sections, imports and exports, each."""
TABLES_MAX: Final = 4
TABLE_ELEMENTS_MAX: Final = 100_000
OUTPUT_BYTES_MAX: Final = 16 << 20
"""What a module may give back of one batch, and a chain of all it is shown at once."""
TICK_MS: Final = 50
"""How often the clock of the engine is moved while something runs."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_WASM_MAGIC: Final = b"\0asm\1\0\0\0"
"""How a binary module begins; the text form and components are refused."""
_IMPORTS, _EXPORTS, _CODE = 2, 7, 10
_COPIES_MAX: Final = 16
"""How often a module may hand its output over in one call."""
_GROUP_RECORDS: Final = 64
_UNUSED_FEATURES: Final = (
    "wasm_gc",
    "wasm_function_references",
    "wasm_exceptions",
    "wasm_stack_switching",
    "wasm_threads",
    "wasm_memory64",
    "wasm_multi_memory",
    "wasm_custom_page_sizes",
    "wasm_component_model",
    "shared_memory",
)
"""No SmartModule needs these, and some of them take memory that no limit counts."""
_TRANSFORMS: Final = {"filter": 0, "map": 1, "filter_map": 4, "array_map": 2, "aggregate": 3}
"""In the order in which they are looked for, with the numbers their failures carry."""
_AGGREGATE: Final = 3
_HOST_MODULES: Final = ("wasi_snapshot_preview1", "wasi_unstable")
_I32: Final = struct.Struct(">i")
_U32: Final = struct.Struct(">I")
_I64: Final = struct.Struct(">q")
_U64: Final = struct.Struct(">Q")
_U16: Final = struct.Struct(">H")
_MISSING: Final = (
    "SmartModules need the package wasmtime, which is not installed: "
    "pip install 'pentalog[smartmodules]'"
)


class Limits(NamedTuple):
    """What one call of a module may use."""

    fuel: int
    memory_bytes: int
    timeout_ms: int


class Broken(Exception):
    """A call did not come back as it should: the instance cannot be used any more."""


class Engine:
    """Compiles modules and counts their time."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.ticks = 0
        """How often the clock has been moved."""
        self._engine: wasmtime.Engine | None = None

    def tick(self) -> None:
        """Move the clock by `TICK_MS`."""
        self.ticks += 1
        if self._engine is not None:
            self._engine.increment_epoch()

    def compile(self, wasm: bytes) -> Any:
        """A module, checked; raises `SmartModuleInvalid`.

        Always called on the same thread: the first call makes the engine that all share.
        """
        try:
            import wasmtime
        except ImportError as error:
            raise SmartModuleInvalid(_MISSING) from error
        if self._engine is None:
            self._engine = wasmtime.Engine(_configuration())
        binary = _unpacked(wasm)
        _check_sizes(binary)
        try:
            module = wasmtime.Module(self._engine, binary)
        except wasmtime.WasmtimeError as error:
            first = str(error).splitlines()[0]
            raise SmartModuleInvalid(f"not a WebAssembly module: {first}") from error
        _check(module)
        return module

    def start(self, module: Any, link: Link, version: int) -> Instance:
        """A running instance that has been told its parameters."""
        assert self._engine is not None
        return Instance(self._engine, module, link, version, self.limits)


def _unpacked(wasm: bytes) -> bytes:
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


def _configuration() -> wasmtime.Config:
    import wasmtime

    config = wasmtime.Config()
    config.consume_fuel = True
    config.epoch_interruption = True
    config.parallel_compilation = False
    for feature in _UNUSED_FEATURES:
        if hasattr(wasmtime.Config, feature):
            setattr(config, feature, False)
    return config


def _check_sizes(wasm: bytes) -> None:
    """Refuse what is not a binary module or would take long to compile."""
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
        if kind == _CODE:
            _check_code(wasm, start, position)


def _check_code(wasm: bytes, start: int, end: int) -> None:
    if end - start > CODE_BYTES_MAX:
        raise SmartModuleInvalid(
            f"the module has {end - start} bytes of code; accepted are {CODE_BYTES_MAX}"
        )
    count, position = _number(wasm, start)
    if count > FUNCTIONS_MAX:
        raise SmartModuleInvalid(f"the module has {count} functions; accepted are {FUNCTIONS_MAX}")
    squares = 0
    for _ in range(count):
        size, position = _number(wasm, position)
        position += size
        squares += size * size
        if squares > FUNCTION_SQUARES_MAX:
            raise SmartModuleInvalid(
                f"the functions of the module are too large to be compiled, one has {size} bytes; "
                f"accepted are {FUNCTION_SQUARES_MAX} for the sum of the squares of their sizes: "
                "split them, or build for size"
            )


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


def _check(module: Any) -> None:
    exports = {export.name for export in module.exports}
    missing = {"memory", "alloc"} - exports
    if missing or not exports & _TRANSFORMS.keys():
        wanted = ", ".join(_TRANSFORMS)
        raise SmartModuleInvalid(
            f"the module exports {', '.join(sorted(exports)[:20]) or 'nothing'}; a SmartModule "
            f"exports memory, alloc and one of {wanted}"
        )
    for wish in module.imports:
        if wish.name != "copy_records" and wish.module not in _HOST_MODULES:
            raise SmartModuleInvalid(
                f"the module imports {wish.module}.{wish.name}, which no SmartModule gets; "
                "accepted are copy_records and WASI"
            )


class _Output:
    """The bytes that a module returned through `copy_records`.

    Kept apart from `Instance`: wasmtime holds host functions until their store is freed, so a
    method of the instance would keep the instance and its store alive.
    """

    def __init__(self) -> None:
        self.copied = b""
        self.copies = 0

    def copy(self, caller: Any, pointer: int, size: int) -> None:
        self.copies += 1
        if self.copies > _COPIES_MAX:
            raise Broken(f"output handed back more than {_COPIES_MAX} times in one call")
        pointer &= 0xFFFFFFFF
        memory = caller["memory"]
        if not 0 <= size <= OUTPUT_BYTES_MAX or pointer + size > memory.data_len(caller):
            raise Broken(f"{size} bytes handed back; accepted are up to {OUTPUT_BYTES_MAX}")
        self.copied = bytes(memory.read(caller, pointer, pointer + size))


class Instance:
    """One module with its state."""

    def __init__(
        self, engine: wasmtime.Engine, module: Any, link: Link, version: int, limits: Limits
    ) -> None:
        import wasmtime

        self._errors = (wasmtime.Trap, wasmtime.WasmtimeError, IndexError)
        self._limits = limits
        self._version = version
        self._link = link
        self._accumulator = link.accumulator
        self._output = output = _Output()
        self._store = store = wasmtime.Store(engine)
        store.set_limits(
            memory_size=limits.memory_bytes,
            table_elements=TABLE_ELEMENTS_MAX,
            instances=1,
            tables=TABLES_MAX,
            memories=1,
        )
        self._refuel()
        linker = wasmtime.Linker(engine)
        two = wasmtime.FuncType([wasmtime.ValType.i32(), wasmtime.ValType.i32()], [])
        for wish in module.imports:
            if wish.name == "copy_records":
                linker.define_func(wish.module, wish.name, two, output.copy, access_caller=True)
        # Nothing of the world outside is there; whoever asks gets zeros.
        linker.define_unknown_imports_as_default_values(store, module)
        try:
            exports = linker.instantiate(store, module).exports(store)
        except self._errors as error:
            raise SmartModuleInvalid(f"the module does not start: {_line(error)}") from error
        self._memory: Any = exports["memory"]
        self._alloc: Any = exports["alloc"]
        name = next(name for name in _TRANSFORMS if name in exports)
        self.kind = _TRANSFORMS[name]
        self._transform: Any = exports[name]
        self._look_back: Any = exports.get("look_back")
        self._start(exports.get("init"))

    @property
    def memory_bytes(self) -> int:
        return int(self._memory.data_len(self._store))

    @property
    def looks_back(self) -> bool:
        return self._look_back is not None and (
            self._link.lookback_records > 0 or self._link.lookback_ms is not None
        )

    def transform(self, section: Section) -> tuple[bytes, Failure | None]:
        """(records behind their number, what it failed at); raises `Broken`."""
        given = _I64.pack(section.base_offset) + _sized(section.records)
        given += _I64.pack(section.base_timestamp)
        if self.kind == _AGGREGATE:
            given += _sized(self._accumulator)
        count = self._call(self._transform, given)
        if count < 0:
            raise Broken(f"the module answers with code {count}")
        out = self._output.copied
        if len(out) < 5 or _U32.unpack_from(out)[0] > len(out):
            raise Broken("the module hands back no records")
        end = kernels.fluvio_end(out, 4, len(out), _U32.unpack_from(out)[0])
        if end < 0 or end >= len(out):
            raise Broken("the module hands back records that cannot be read")
        try:
            failure, position = _failure(out, end)
            if self.kind == _AGGREGATE:
                size = _U32.unpack_from(out, position)[0]
                self._accumulator = out[position + 4 : position + 4 + size]
        except (struct.error, IndexError, ValueError) as error:
            raise Broken("the module hands back a failure that cannot be read") from error
        return out[:end], failure

    def look_back(self, section: Section) -> None:
        """Show it records of the past; raises `SmartModuleInvalid` if it does not like them."""
        given = _I64.pack(section.base_offset) + _sized(section.records)
        given += _I64.pack(section.base_timestamp)
        try:
            code = self._call(self._look_back, given)
        except Broken as error:
            raise SmartModuleInvalid(f"the module fails at looking back: {error}") from error
        if code < 0:
            raise SmartModuleInvalid(f"the module fails at looking back: {self._hint(code)}")

    def _start(self, init: Any) -> None:
        if init is None:
            return
        given = _U16.pack(len(self._link.parameters))
        for name in sorted(self._link.parameters):
            given += _text(name) + _text(self._link.parameters[name])
        given += _lookback(self._link)
        try:
            code = self._call(init, given)
        except Broken as error:
            raise SmartModuleInvalid(f"the module does not start: {error}") from error
        if code < 0:
            raise SmartModuleInvalid(self._hint(code))

    def _hint(self, code: int) -> str:
        """What the module says of its failure, or the code if it says nothing."""
        out = self._output.copied
        if len(out) >= 2:
            size = _U16.unpack_from(out)[0]
            if 0 < size <= len(out) - 2:
                return out[2 : 2 + size].decode("utf-8", "replace")
        return f"code {code}"

    def _call(self, function: Callable[..., Any], given: bytes) -> int:
        self._refuel()
        self._output.copied = b""
        self._output.copies = 0
        try:
            pointer = self._alloc(self._store, len(given))
            self._memory.write(self._store, given, pointer & 0xFFFFFFFF)
            return int(function(self._store, pointer, len(given), self._version))
        except self._errors as error:
            raise Broken(_line(error)) from error
        except (TypeError, ValueError) as error:
            raise Broken(f"its functions are not those of a SmartModule: {error}") from error

    def _refuel(self) -> None:
        self._store.set_fuel(self._limits.fuel)
        self._store.set_epoch_deadline(max(1, self._limits.timeout_ms // TICK_MS) + 1)


def _line(error: BaseException) -> str:
    """What a trap says, without the addresses of the module."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    trapped = [line for line in lines if "wasm trap" in line or "fuel" in line]
    return (trapped or lines or [type(error).__name__])[0][:300]


def _sized(data: bytes | bytearray | memoryview) -> bytes:
    return _U32.pack(len(data)) + bytes(data)


def _text(text: str) -> bytes:
    data = text.encode()[:32_767]
    return _U16.pack(len(data)) + data


def _lookback(link: Link) -> bytes:
    if not link.lookback_records and link.lookback_ms is None:
        return b"\0"
    given = b"\1" + _U64.pack(link.lookback_records)
    if link.lookback_ms is None:
        return given + b"\0"
    seconds, rest_ms = divmod(link.lookback_ms, 1000)
    return given + b"\1" + _U64.pack(seconds) + _U32.pack(rest_ms * 1_000_000)


def _failure(out: bytes, position: int) -> tuple[Failure | None, int]:
    if out[position] == 0:
        return None, position + 1
    size = _U16.unpack_from(out, position + 1)[0]
    hint = out[position + 3 : position + 3 + size].decode("utf-8", "replace")
    position += 3 + size
    offset = _I64.unpack_from(out, position)[0]
    kind = out[position + 8]
    tag = out[position + 9]
    position += 10
    key = None
    if tag:
        key, position = _chunk(out, position)
    value, position = _chunk(out, position)
    return Failure(offset, hint, kind, key, value), position


def _chunk(out: bytes, position: int) -> tuple[bytes, int]:
    size = shift = 0
    while True:
        byte = out[position]
        position += 1
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80 or shift > 63:
            break
    size >>= 1
    if size > len(out) - position:
        raise ValueError("it ends too early")
    return out[position : position + size], position + size


class Single(NamedTuple):
    """One record of a section, as a section of its own."""

    section: Section
    offset: int
    key: bytes | None
    value: bytes


def singles(section: Section, first: int = 0) -> Iterator[Single]:
    """Each record alone, to find the one that breaks a module; `first` is the number of the first.

    In turn, not all at once: there may be millions.
    """
    data = bytes(section.records)
    start = 4
    for index in range(_I32.unpack_from(data)[0]):
        end = kernels.fluvio_end(data, start, len(data), 1)
        if end < 0:
            break
        key, value = _parts(data, start)
        alone = section._replace(records=_I32.pack(1) + data[start:end])
        yield Single(alone, section.base_offset + first + index, key, value)
        start = end


def groups(section: Section) -> Iterator[tuple[int, Section]]:
    """A few records at a time, each with the number of its first record."""
    data = bytes(section.records)
    start = 4
    count = int(_I32.unpack_from(data)[0])
    for first in range(0, count, _GROUP_RECORDS):
        size = min(_GROUP_RECORDS, count - first)
        end = kernels.fluvio_end(data, start, len(data), size)
        if end < 0:
            break
        yield first, section._replace(records=_I32.pack(size) + data[start:end])
        start = end


def _parts(data: bytes, position: int) -> tuple[bytes | None, bytes]:
    position = _behind_number(data, position) + 1
    position = _behind_number(data, _behind_number(data, position))
    key = None
    position += 1
    if data[position - 1]:
        key, position = _chunk(data, position)
    return key, _chunk(data, position)[0]


def _behind_number(data: bytes, position: int) -> int:
    while data[position] >= 0x80:
        position += 1
    return position + 1
