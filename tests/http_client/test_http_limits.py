"""A bus over HTTP with a limited token: it works within the limits, and errors say what is missing."""

from __future__ import annotations

import pytest

from http_api.serving import new_token, serving
from postbus import Bus, Start
from postbus.errors import NotAllowed
from postbus.http_client import HttpBus


async def test_consumer_works_with_a_token_for_its_group(bus: Bus) -> None:
    """It pops, extends, acknowledges in a transaction and stops as planned, on two servers; other groups are closed."""
    await bus.admin.create_topic("events", semantics="PUB_SUB")
    await bus.send_many("events", [1, 2, 3])
    token = await new_token(bus, "producer", "consumer", groups=("audit",))
    async with (
        serving(bus, auth=True) as url,
        serving(bus, auth=True) as another,
        HttpBus(url, token=token) as one,
        HttpBus(another, token=token) as other,
    ):
        first = await one.pop("events", group="audit", start=Start.BEGINNING, wait=10, lease="30s")
        await first.extend("60s")
        async with one.transaction() as tx:
            await first.ack(tx)
            await one.publish_many(tx, "events", [4])
        second = await other.pop("events", group="audit", wait=10)
        await second.retry(delay=0)
        with pytest.raises(NotAllowed, match="lacks the group 'billing': its groups are audit"):
            await one.pop("events", group="billing")
        with pytest.raises(NotAllowed, match="lacks the role observer: it has consumer, producer"):
            await other.admin.groups()
    assert (await bus.admin.group("events", "audit")).stopped_at


async def test_observer_without_payloads_reads(bus: Bus) -> None:
    """Withheld fields are null, and marked."""
    await bus.send("jobs", {"secret": 1}, key="k", headers={"h": "x"})
    token = await new_token(bus, "observer", payloads=False)
    async with serving(bus, auth=True) as url, HttpBus(url, token=token) as http:
        [one] = await http.admin.messages("jobs")
    assert (one["withheld"], one["key"], one["headers"], one["state"]) == (True, None, {}, "waiting")
    assert "payload" not in one
