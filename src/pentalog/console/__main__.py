"""`python -m pentalog.console`: the console as a process; `pentalog start` runs one of its own."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import Final

_NICENESS: Final = 10
_ADDRESS: Final = "127.0.0.1:9645"


def main() -> int:
    # The library that describes Kafka's messages loads this one where it is installed, to help
    # its users' tests; a console has no use for it.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    given = _arguments()
    os.umask(0o077)
    logging.basicConfig(
        stream=sys.stderr,
        level=given.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("httpx").setLevel("WARNING")
    # Doors come first: what a console computes must never take time from them.
    os.nice(_NICENESS)
    from pentalog.console.place import Place
    from pentalog.console.serving import ListenRefused, serve

    place = Place(
        servers=given.servers,
        data=given.data,
        http=given.http,
        http_key=os.environ.pop("PENTALOG_CONSOLE_KEY", ""),
        pipelines=tuple(given.pipelines or ()),
        login=given.login,
        tls=given.tls,
        http_tls=given.http_tls,
        tls_authorities=given.tls_authorities,
        tls_certificate=given.tls_certificate,
        session_idle_s=given.session_idle_s,
        session_max_s=given.session_max_s,
        names=tuple(given.name or ()),
    )
    try:
        keys = (given.certificate, given.key) if given.certificate else None
        serve(
            place, given.listen, keys, with_parent=given.with_parent, open_to_all=given.allow_open
        )
    except ListenRefused as error:
        print(f"pentalog console: {error}", file=sys.stderr)
        return 2
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pentalog.console", description="A web console for a pentalog broker."
    )
    parser.add_argument("--listen", default=_ADDRESS, metavar="HOST:PORT", help="where to serve it")
    parser.add_argument(
        "--servers", default="127.0.0.1:9092", metavar="HOST:PORT", help="the broker's Kafka door"
    )
    parser.add_argument("--data", type=Path, help="its data directory, if it is on this machine")
    parser.add_argument("--http", default="", metavar="HOST:PORT", help="its http listener")
    parser.add_argument(
        "--pipelines", action="append", type=Path, metavar="FILE", help="pipelines to show"
    )
    parser.add_argument("--login", action="store_true", help="the Kafka door demands SASL")
    parser.add_argument("--tls", action="store_true", help="the Kafka door speaks TLS")
    parser.add_argument("--http-tls", action="store_true", help="its http listener does so too")
    parser.add_argument("--tls-authorities", metavar="FILE", help="certificates to trust")
    parser.add_argument(
        "--tls-certificate", metavar="FILE", help="the broker's own, to trust it and no other"
    )
    parser.add_argument("--certificate", metavar="FILE", help="serve by HTTPS, with this one")
    parser.add_argument("--key", metavar="FILE", help="its key, unless it is in the same file")
    parser.add_argument(
        "--name", action="append", metavar="HOST", help="a name that browsers may call it by"
    )
    parser.add_argument(
        "--allow-open", action="store_true", help="serve other machines without a login"
    )
    parser.add_argument(
        "--session-idle-s", type=float, default=1_800.0, metavar="S", help="log idle users out"
    )
    parser.add_argument(
        "--session-max-s", type=float, default=43_200.0, metavar="S", help="log users out"
    )
    parser.add_argument(
        "--with-parent", action="store_true", help="end when standard input is closed"
    )
    parser.add_argument(
        "--log-level", default="info", choices=("debug", "info", "warning", "error")
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
