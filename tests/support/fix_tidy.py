"""After each test no task of ours goes on running."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest


@pytest.fixture(autouse=True)
async def _tidy() -> AsyncIterator[None]:
    yield
    tasks = [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("postbus")]
    assert not tasks, f"tasks remain: {tasks}"
    threads = [one.name for one in threading.enumerate() if one.name == "postbus-notifier"]
    assert not threads, f"threads remain: {threads}"
