"""The last part of the story: the topic becomes a table, is proved, and asked a question.

Runs a pipeline over what the five doors wrote with `pentalog table run`, has `pentalog verify`
prove that no offset is missing or doubled, and asks `pentalog sql`.  Needs Java and
`pentalog[spark]`; what is not installed is said and left out.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from demo_doors import WentWrong, say

COMMAND_TIMEOUT_S = 300
PIPELINE = """
[pipeline.sales]
from = "{server}"
topics = ["sales"]
into = "{lake}"
decode = {{ format = "json", schema = "id BIGINT, amount DOUBLE, through STRING" }}
"""
QUESTION = "select through, count(*) as orders, sum(amount) as amount from table.sales group by 1"


def pentalog(*arguments: str) -> str:
    """Run a command as a user types it; what it printed."""
    say(f"   $ pentalog {' '.join(arguments)}")
    done = subprocess.run(
        [Path(sys.executable).with_name("pentalog"), *arguments],
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
        env=os.environ,
    )
    if done.returncode != 0:
        raise WentWrong(f"it ended with code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def indented(text: str) -> str:
    return "\n".join(f"     {line}" for line in text.splitlines())


def tell(folder: Path, server: str, count: int) -> None:
    say("\n5. The topic becomes a table")
    if importlib.util.find_spec("pyspark") is None or shutil.which("java") is None:
        say("   left out: it needs Java 17 and `pip install pentalog[spark]`")
        return
    file = folder / "pipeline.toml"
    file.write_text(PIPELINE.format(server=server, lake=folder / "lake"))
    started = time.monotonic()
    pentalog("table", "run", str(file), "--once")
    say(f"   the table is there after {time.monotonic() - started:.1f} s")
    report = json.loads(pentalog("verify", str(file), "--json"))
    (account,) = report["partitions"]
    if account["records"] != count or account["dead_letters"] != 1:
        raise WentWrong(f"the account is {account}")
    say(
        f"   {account['records']:,} records in the log = {account['silver']:,} rows + "
        f"{account['dead_letters']} dead letter; no offset is missing or doubled"
    )
    say(indented(pentalog("sql", "--config", str(file), QUESTION)))
