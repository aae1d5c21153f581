"""The `pentalog` command."""

from __future__ import annotations

import os
import sys

from pentalog.cli import broker


def main() -> None:
    if sys.argv[1:2] == ["start"]:
        # A broker should be up before the command line's library is even loaded.  Whatever is
        # unusual, a wrong flag or a call for help, is left to that library.
        given = broker.parse(sys.argv[2:])
        if given is not None:
            sys.exit(_start(given))
    from pentalog.cli.verbs import app

    app(prog_name="pentalog")


def _start(given: dict[str, str | list[str]]) -> int:
    # The library that describes Kafka's messages loads this one where it is installed, to help
    # its users' tests; a broker has no use for it and would take twice as long to start.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    config_file = given.pop("config", os.environ.get("PENTALOG_CONFIG"))
    log_level = given.pop("log_level", os.environ.get("PENTALOG_LOG_LEVEL", "info"))
    as_json = bool(given.pop("as_json", ""))
    config = str(config_file) if config_file else None
    return broker.run(config, given, str(log_level), as_json=as_json)


if __name__ == "__main__":
    main()
