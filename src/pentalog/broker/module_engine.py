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

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pentalog import kernels
from pentalog.broker.module_checks import TRANSFORMS, check_shapes, check_sizes, unpacked
from pentalog.broker.transformation import Failure, Link, Section
from pentalog.model.errors import SmartModuleInvalid

if TYPE_CHECKING:
    import wasmtime

COMPILE_S: Final = 4
COMPILE_S_PER_MIB: Final = 10
"""CPU time that a module may take to be compiled, the second by MiB of its code.

About three times of what one takes.  What else is in a module, even 30 MB, takes no time.
"""
TABLES_MAX: Final = 4
TABLE_ELEMENTS_MAX: Final = 100_000
OUTPUT_BYTES_MAX: Final = 16 << 20
"""What a module may give back of one batch, and a chain of all it is shown at once."""
TICK_MS: Final = 50
"""How often the clock of the engine is moved while something runs."""

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
_AGGREGATE: Final = 3
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


Build = Callable[[bytes, int], bytes]
"""Compiles a module elsewhere within so many seconds of CPU, and returns what `deserialize` takes.

Raises `SmartModuleInvalid`.
"""


class Engine:
    """Compiles modules and counts their time."""

    def __init__(self, limits: Limits, build: Build | None = None) -> None:
        """Without `build`, modules are compiled here, and nothing ends one that takes long."""
        self.limits = limits
        self._build = build
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
            self._engine = wasmtime.Engine(configuration())
        binary = unpacked(wasm)
        sizes = check_sizes(binary)
        try:
            if self._build is None or sizes.small:
                module = wasmtime.Module(self._engine, binary)
            else:
                cpu_s = COMPILE_S + COMPILE_S_PER_MIB * (sizes.code_bytes >> 20)
                module = wasmtime.Module.deserialize(self._engine, self._build(binary, cpu_s))
        except wasmtime.WasmtimeError as error:
            raise SmartModuleInvalid(_no_module(error)) from error
        check_shapes(module)
        return module

    def start(self, module: Any, link: Link, version: int) -> Instance:
        """A running instance that has been told its parameters."""
        assert self._engine is not None
        return Instance(self._engine, module, link, version, self.limits)


def serialized(binary: bytes) -> bytes:
    """Compile a module for the engine of another process; raises `SmartModuleInvalid`."""
    import wasmtime

    try:
        return bytes(wasmtime.Module(wasmtime.Engine(configuration()), binary).serialize())
    except wasmtime.WasmtimeError as error:
        raise SmartModuleInvalid(_no_module(error)) from error


def _no_module(error: Exception) -> str:
    return f"not a WebAssembly module: {str(error).splitlines()[0]}"


def configuration() -> wasmtime.Config:
    """Return how all engines are set: what one has compiled, another can run."""
    import wasmtime

    config = wasmtime.Config()
    config.consume_fuel = True
    config.epoch_interruption = True
    config.parallel_compilation = False
    for feature in _UNUSED_FEATURES:
        if hasattr(wasmtime.Config, feature):
            setattr(config, feature, False)
    return config


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
        copies = {wish.module for wish in module.imports if wish.name == "copy_records"}
        for namespace in sorted(copies):
            linker.define_func(namespace, "copy_records", two, output.copy, access_caller=True)
        # Nothing of the world outside is there; whoever asks gets zeros.
        linker.define_unknown_imports_as_default_values(store, module)
        try:
            exports = linker.instantiate(store, module).exports(store)
        except self._errors as error:
            raise SmartModuleInvalid(f"the module does not start: {_line(error)}") from error
        self._memory: Any = exports["memory"]
        self._alloc: Any = exports["alloc"]
        name = next(name for name in TRANSFORMS if name in exports)
        self.kind = TRANSFORMS[name]
        self._transform: Any = exports[name]
        self._look_back: Any = exports.get("look_back")
        self._start(exports.get("init"))

    @property
    def memory_bytes(self) -> int:
        """Its memory and what it has handed back to be kept; not what it was given."""
        kept = b"" if self._accumulator is self._link.accumulator else self._accumulator
        return int(self._memory.data_len(self._store)) + len(kept)

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
        # Not kept: it may be much, and the next call may come late.
        out, self._output.copied = self._output.copied, b""
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
        out, self._output.copied = self._output.copied, b""
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


def singles(section: Section) -> Iterator[Single]:
    """Each record alone, to find the one that breaks a module.

    In turn, not all at once: there may be millions.  Its offset is the one it says itself: others
    may have been filtered out before it.
    """
    data = bytes(section.records)
    start = 4
    for _ in range(_I32.unpack_from(data)[0]):
        end = kernels.fluvio_end(data, start, len(data), 1)
        if end < 0:
            break
        position, key, value = _parts(data, start)
        alone = section._replace(records=_I32.pack(1) + data[start:end])
        yield Single(alone, section.base_offset + position, key, value)
        start = end


def groups(section: Section) -> Iterator[Section]:
    """A few records at a time."""
    data = bytes(section.records)
    start = 4
    count = int(_I32.unpack_from(data)[0])
    for first in range(0, count, _GROUP_RECORDS):
        size = min(_GROUP_RECORDS, count - first)
        end = kernels.fluvio_end(data, start, len(data), size)
        if end < 0:
            break
        yield section._replace(records=_I32.pack(size) + data[start:end])
        start = end


def _parts(data: bytes, position: int) -> tuple[int, bytes | None, bytes]:
    """(offset delta, key, value) of the record at a position."""
    position = _behind_number(data, _behind_number(data, position) + 1)
    behind = _behind_number(data, position)
    delta = 0
    for byte in reversed(data[position:behind]):
        delta = delta << 7 | byte & 0x7F
    delta = (delta >> 1) ^ -(delta & 1)
    key = None
    position = behind + 1
    if data[behind]:
        key, position = _chunk(data, position)
    return delta, key, _chunk(data, position)[0]


def _behind_number(data: bytes, position: int) -> int:
    while data[position] >= 0x80:
        position += 1
    return position + 1
