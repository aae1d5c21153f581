"""The users, rules and quotas in the data directory of a broker that does not run."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pentalog.broker.operation import Owner, Quota
from pentalog.broker.quotas import LocalQuotas
from pentalog.broker.rules import LocalRules
from pentalog.broker.security import Rule
from pentalog.broker.state import FILE_NAME, State
from pentalog.broker.users import LocalUsers
from pentalog.cli.output import Refused
from pentalog.log.files import Handle, RealFiles
from pentalog.model.errors import BrokerError
from pentalog.model.later import Later

if TYPE_CHECKING:
    from pentalog.cli.online import UserView
    from pentalog.runtime import Timer

T = TypeVar("T")


class _Inline:
    """`Runtime` without a loop: what is put off is done when somebody waits for it."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()

    def soon(self, run: Callable[[], None]) -> None:
        self._soon.append(run)

    def after(self, delay_ms: float, run: Callable[[], None]) -> Timer:
        """Only a failed write is tried again later, and a command does not wait for that."""
        return _Never()

    def offload(
        self,
        lane: str,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], None],
    ) -> None:
        try:
            outcome = work()
        except Exception as error:
            done(None, error)
        else:
            done(outcome, None)

    def wait(self, later: Later[T]) -> T:
        while self._soon and not later.ready:
            self._soon.popleft()()
        return later.value


class _Never:
    def cancel(self) -> None: ...


class Directory:
    """What `online.Online` is for a running broker."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runtime = _Inline()
        self._lock: Handle | None = None
        self._state = State(path / FILE_NAME, self._runtime)
        self._users = LocalUsers(self._state, self._runtime)
        self._rules = LocalRules(self._state, enforced=True)
        self._quotas = LocalQuotas(self._state, self._runtime)

    def __enter__(self) -> Directory:
        files = RealFiles()
        try:
            files.make_directory(self._path)
            self._lock = files.lock(self._path / ".lock")
            self._state.open()
        except BlockingIOError as error:
            raise Refused(
                f"{self._path} is in use by a running broker; ask that one instead: "
                "leave out --data and name it with --server HOST:PORT"
            ) from error
        except OSError as error:
            raise Refused(
                f"cannot use {self._path} as data directory: {error.strerror}; choose another "
                "--data"
            ) from error
        except BrokerError as error:
            raise Refused(str(error)) from error
        self._users.open()
        self._rules.open()
        self._quotas.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._runtime.wait(self._state.close())
        self._lock = None

    def set_password(self, name: str, password: str) -> None:
        self._done(lambda: self._users.set_password(name, password))

    def users(self) -> list[UserView]:
        from pentalog.cli.online import UserView

        keys = self._users.keys()
        return [
            UserView(
                name,
                sorted(mechanism.value for mechanism in self._users.mechanisms(name)),
                [key for key in keys if key.user == name],
            )
            for name in self._users.names()
        ]

    def delete_user(self, name: str) -> None:
        self._done(lambda: self._users.drop(name))

    def add_key(self, name: str, label: str) -> str:
        made: list[str] = []
        self._done(lambda: made.append(self._users.add_key(name, label)))
        return made[0]

    def delete_key(self, name: str, fingerprint: str) -> None:
        self._done(lambda: self._users.drop_key(fingerprint))

    def rules(self) -> Sequence[Rule]:
        return list(self._rules.all())

    def add_rules(self, rules: Sequence[Rule]) -> None:
        self._done(lambda: self._rules.add(rules))

    def remove_rules(self, rules: Sequence[Rule]) -> None:
        self._done(lambda: self._rules.remove(rules))

    def quotas(self) -> Mapping[Owner, Mapping[Quota, float]]:
        return self._quotas.all()

    def change_quotas(self, owner: Owner, changes: Mapping[Quota, float | None]) -> None:
        self._done(lambda: self._quotas.change(owner, changes))

    def _done(self, change: Callable[[], Later[None] | None]) -> None:
        """Make a change and bring it to the disk."""
        try:
            later = change()
            if later is not None:
                self._runtime.wait(later)
            self._runtime.wait(self._state.settle())
        except BrokerError as error:
            raise Refused(str(error)) from error
