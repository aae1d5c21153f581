"""How a fault is planted: the broker is patched for a while."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import ExitStack
from types import FunctionType
from typing import Any, NamedTuple
from unittest import mock


class Planted(NamedTuple):
    name: str
    text: str
    plant: Callable[[ExitStack], None]


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def fault(
    planted: list[Planted], text: str
) -> Callable[[Callable[[ExitStack], None]], Callable[[ExitStack], None]]:
    """Add a fault to a list; its function makes the broker wrong until the stack is closed."""

    def add(plant: Callable[[ExitStack], None]) -> Callable[[ExitStack], None]:
        planted.append(Planted(plant.__name__, text, plant))
        return plant

    return add


def patch(stack: ExitStack, owner: Any, name: str, new: Any) -> None:
    """Replace something; a function that cannot be called as the old one was does not fit."""
    old = getattr(owner, name)
    if isinstance(old, FunctionType):
        parameters = inspect.signature(old).parameters.values()
        inspect.signature(new).bind(
            *(entry.name for entry in parameters if entry.kind in _POSITIONAL),
            **{entry.name: None for entry in parameters if entry.kind is entry.KEYWORD_ONLY},
        )
    stack.enter_context(mock.patch.object(owner, name, new))
