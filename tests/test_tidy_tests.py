"""Tests, tested: nothing in them may depend on luck or on the speed of the machine.

The rules of `test_tidy.py` are about the source; these are about processes, ports and waiting.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from test_tidy import EVERYWHERE, complaints, modules

SPAWNING_CALLS = {
    "subprocess.run", "subprocess.Popen", "subprocess.call", "subprocess.check_call",
    "subprocess.check_output", "asyncio.create_subprocess_exec",
    "asyncio.create_subprocess_shell",
}  # fmt: skip
SLEEPING_CALLS = {"time.sleep", "asyncio.sleep"}
LISTENING_CALLS = ("socket.socket(", "socket.create_server(")


def calls(tree: ast.AST, names: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            called = node.func
            if isinstance(called.value, ast.Name) and f"{called.value.id}.{called.attr}" in names:
                yield node


def spawns_without_environment(text: str) -> Iterator[str]:
    """Processes that read the environment while another thread may be changing it.

    With `env` Python reads it before the process is started; without, the child does so itself, in
    memory it shares with this process, and starting it may fail with EFAULT.
    """
    if "subprocess" not in text:
        return
    for call in calls(ast.parse(text), SPAWNING_CALLS):
        if not any(keyword.arg in ("env", None) for keyword in call.keywords):
            yield f"line {call.lineno}: {ast.unparse(call.func)} without env="


def fixed_sleeps(text: str) -> Iterator[str]:
    """Sleeps of a fixed time outside of a loop: what follows depends on the machine's speed.

    A loop checks whether the time has come; a random time decides nothing.
    """
    if ".sleep(" not in text:
        return
    tree = ast.parse(text)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For | ast.While)]
    polling = {id(inner) for loop in loops for inner in ast.walk(loop)}
    for call in calls(tree, SLEEPING_CALLS):
        names = [one.id for one in ast.walk(call.args[0]) if isinstance(one, ast.Name)]
        is_fixed = all(name.isupper() for name in names)
        if id(call) not in polling and is_fixed and ast.unparse(call.args[0]) != "0":
            yield f"line {call.lineno}: {ast.unparse(call)}; wait for the event itself"


def ports_chosen_beforehand(text: str) -> Iterator[str]:
    """Ports that outlive the socket they belong to: any other process may get them meanwhile."""
    if "getsockname" not in text:
        return
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for block in ast.walk(function):
            if isinstance(block, ast.With):
                yield from _ports_of_closed_sockets(function, block)
        body = ast.unparse(function)
        listens = any(call in body for call in LISTENING_CALLS)
        if listens and all(word in body for word in (".getsockname()", ".close()", "return ")):
            yield f"line {function.lineno}: {function.name} closes a socket and keeps its port"


def _ports_of_closed_sockets(function: ast.AST, block: ast.With) -> Iterator[str]:
    opened = [
        one.optional_vars.id
        for one in block.items
        if isinstance(one.optional_vars, ast.Name)
        and ast.unparse(one.context_expr).startswith(LISTENING_CALLS)
    ]
    for inner in (node for part in block.body for node in ast.walk(part)):
        if not isinstance(inner, ast.Assign | ast.Return) or inner.value is None:
            continue
        if not any(f"{name}.getsockname()" in ast.unparse(inner.value) for name in opened):
            continue
        kept = inner.targets if isinstance(inner, ast.Assign) else []
        names = {one.id for one in kept if isinstance(one, ast.Name)}
        used_later = any(
            isinstance(one, ast.Name) and one.id in names and one.lineno > (block.end_lineno or 0)
            for one in ast.walk(function)
        )
        if isinstance(inner, ast.Return) or len(names) < len(kept) or used_later:
            yield f"line {inner.lineno}: a port is used after its socket was closed"


def test_every_process_gets_its_environment_explicitly() -> None:
    assert complaints(spawns_without_environment, modules(*EVERYWHERE)) == []


def test_tests_wait_for_events() -> None:
    # It pauses between two blocks of its load, and lets the load continue for a while.
    assert complaints(fixed_sleeps, modules("tests"), ("tests/crash/test_blipmq_kill.py",)) == []


def test_ports_are_not_chosen_beforehand() -> None:
    folders = (folder for folder in EVERYWHERE if folder != "src")
    assert complaints(ports_chosen_beforehand, modules(*folders)) == []


# Every rule can fail

CHOSEN = "with socket.create_server(('127.0.0.1', 0)) as s:\n"
BAD = [
    (spawns_without_environment, "subprocess.Popen(['x'], stdin=pipe)\n"),
    (fixed_sleeps, "def f():\n    time.sleep(0.1)\n    assert done\n"),
    (fixed_sleeps, "async def f():\n    await asyncio.sleep(2 * LEASE_S)\n"),
    (ports_chosen_beforehand, f"def f():\n    {CHOSEN}        return s.getsockname()[1]\n"),
    (ports_chosen_beforehand, f"def f(self):\n    {CHOSEN}        self.p = s.getsockname()[1]\n"),
    (
        ports_chosen_beforehand,
        f"def f():\n    {CHOSEN}        p = s.getsockname()[1]\n    g(p)\n",
    ),
    (
        ports_chosen_beforehand,
        "def f():\n    s = socket.create_server(('', 0))\n    p = s.getsockname()[1]\n"
        "    s.close()\n    return p\n",
    ),
]
GOOD = [
    (spawns_without_environment, "subprocess.Popen(['x'], env=os.environ)\n"),
    (fixed_sleeps, "while not done():\n    time.sleep(0.1)\n"),
    (fixed_sleeps, "time.sleep(dice.uniform(0, 1))\n"),
    (fixed_sleeps, "async def f():\n    await asyncio.sleep(0)\n"),
    (
        ports_chosen_beforehand,
        f"def f():\n    {CHOSEN}        p = s.getsockname()[1]\n        g(p)\n",
    ),
    (ports_chosen_beforehand, f"def f():\n    {CHOSEN}        yield s.getsockname()[1]\n"),
]


@pytest.mark.parametrize(("rule", "text"), BAD)
def test_rules_complain(rule: Callable[[str], Iterator[str]], text: str) -> None:
    assert list(rule(text))


@pytest.mark.parametrize(("rule", "text"), GOOD)
def test_rules_leave_good_code_alone(rule: Callable[[str], Iterator[str]], text: str) -> None:
    assert list(rule(text)) == []
