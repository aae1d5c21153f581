"""What the size and the parts of a SmartModule say of the time that compiling it takes."""

from __future__ import annotations

import pytest
from tests.hostile import wasm_programs
from tests.hostile.hostile_world import uvarint

from pentalog.broker.module_checks import check_sizes
from pentalog.broker.module_engine import Engine, Limits
from pentalog.model.errors import SmartModuleInvalid

HEAD = b"\0asm\1\0\0\0"
EMPTY_CODE = b"\x0a\1\0"
PADDING_BYTES = 12 << 20


def seconds_for(wasm: bytes) -> int:
    """The CPU time that the process gets which compiles a module."""
    given: list[int] = []

    def build(_: bytes, cpu_s: int) -> bytes:
        given.append(cpu_s)
        raise SmartModuleInvalid("not compiled")

    with pytest.raises(SmartModuleInvalid, match="not compiled"):
        Engine(Limits(1, 1, 1), build).compile(wasm)
    (cpu_s,) = given
    return cpu_s


def test_what_is_no_code_gives_no_time_to_the_compiler() -> None:
    """A program that takes minutes must not get them by a section that nothing reads."""
    bomb = wasm_programs.entangled(1_000, 1_000)
    content = b"\1x" + bytes(PADDING_BYTES)
    padding = b"\0" + uvarint(len(content)) + content
    assert seconds_for(bomb + padding) == seconds_for(bomb)


def test_functions_are_looked_at_once() -> None:
    """A thousand sections of code would have each of them walked in Python."""
    assert check_sizes(HEAD + EMPTY_CODE).code_bytes == 1
    with pytest.raises(SmartModuleInvalid, match="two sections of code"):
        check_sizes(HEAD + EMPTY_CODE * 2)


def test_a_function_ends_within_its_section() -> None:
    beyond = b"\x0a\2\1\7" + bytes(10)
    with pytest.raises(SmartModuleInvalid, match="beyond the section of code"):
        check_sizes(HEAD + beyond)


def test_variables_are_declared_within_their_function() -> None:
    hundred_groups = b"\x0a\4\1\2\x64\0" + b"\0" * 2
    with pytest.raises(SmartModuleInvalid, match="a function ends too early"):
        check_sizes(HEAD + hundred_groups + bytes(200))
