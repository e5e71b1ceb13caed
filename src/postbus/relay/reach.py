"""The rule for addresses that requests may reach: public ones, and those that the operator names."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from postbus.errors import InvalidOption

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NOT_PUBLIC_4 = [
    ipaddress.IPv4Network(one)
    for one in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
        "224.0.0.0/3",
        "168.63.129.16/32",  # Azure: reachable only from its virtual machines
    )
]  # fmt: skip
_PUBLIC_6 = ipaddress.IPv6Network("2000::/3")  # all others are local or reserved, or contain an IPv4 address
_NOT_PUBLIC_6 = [ipaddress.IPv6Network(one) for one in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")]
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_LOCAL_NAMES = ("localhost", ".localhost")


class OutOfReach(Exception):
    """The rule allows no address of a host."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"no address of {host!r} may be reached: it is not public, and nobody has allowed it (--webhook-allow)"
        )


class Reach:
    """The rule: public addresses, and those that are allowed beside them."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        """`allowed` are addresses, networks such as 10.1.0.0/16, and names of hosts with any address."""
        self._names: set[str] = set()
        self._networks: list[Network] = []
        for one in allowed:
            try:
                self._networks.append(ipaddress.ip_network(one.strip("[]")))
            except ValueError as error:
                name = one.lower().rstrip(".")
                if not _HOST.fullmatch(name) or name.rpartition(".")[2].isdigit():
                    raise InvalidOption(
                        f"{one!r} is no address, no network and no name of a host: {error}",
                        remedy="give one such as 10.1.2.3, 10.1.0.0/16, fd00::/8 or billing.internal",
                    ) from None
                self._names.add(name)

    def allows(self, host: str, address: str) -> bool:
        """Whether a request for a host may go to this address of the host."""
        found = ipaddress.ip_address(address)
        return is_public(found) or self.names(host, address)

    def names(self, host: str, address: str) -> bool:
        """Whether the operator has named the host, or the address."""
        found = ipaddress.ip_address(address)
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return host.lower().rstrip(".") in self._names or any(found in one for one in self._networks)

    def allows_host(self, host: str) -> bool:
        """Whether requests may go to a host, as far as that is known before its name is resolved."""
        name = host.lower().rstrip(".")
        try:
            return self.allows(name, name)
        except ValueError:
            return name in self._names or not name.endswith(_LOCAL_NAMES)


def is_public(address: Address) -> bool:
    """Whether an address is public and belongs to a single host."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in one for one in _NOT_PUBLIC_4)
    return address in _PUBLIC_6 and not any(address in one for one in _NOT_PUBLIC_6)
