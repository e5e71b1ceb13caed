"""The program on the page about HttpBus runs as it is printed."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from postbus import Bus

PAGE = Path(__file__).parents[2] / "docs" / "http_client.md"


async def test_program_of_the_page_runs(url: str, bus: Bus) -> None:
    """It sends a message, pops it, and publishes the result in the same transaction."""
    program = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    here = program.replace("http://127.0.0.1:8472", url)

    ran = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "error", "-c", here],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert here.count(url) == 1
    assert (await bus.pop("invoices", auto_ack=True)).payloads == [{"order": 1}]
    assert not await bus.pop("orders")
