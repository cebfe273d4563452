"""Redacts IPv4, IPv6 and MAC addresses, with pseudonyms from the documentation ranges (RFC 5737, 3849, 7042)."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterable, Iterator

from trackside.bundle.redact.kind import LeakPattern, NumberedKind, PatternKind

_RANGES = ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15")
"""Ranges for documentation, then for benchmarks."""
_LAST_RANGE = "100.64.0.0/10"


class IPv4(PatternKind):
    """IPv4 addresses. The last octet is kept, so that machines of one network stay recognizable as such."""

    plural = "IPv4 addresses"
    pattern = re.compile(
        # Look behind only after the first digit: a search for a pattern that begins with a digit is fast.
        r"\d(?<![\d.]\d)(?<![=~<>!]=\d)(?<!\.so\.\d)(?<![vV]\d)(?<!ersion \d)(?<!ersion: \d)(?<!\d-\d)"
        r"(?<!dnn/\d)(?<![Nn][Nn] \d)(?<![Nn]{2}=\d)(?<![Cc][Ll] \d)(?<!uda \d)(?<!UDA \d)"
        r"\d{0,2}\.(?:\d{1,3}\.){2}\d{1,3}(?![\d]|\.\d|-?(?:py|cuda|cp|post|dev|rc|a\d|b\d))",
        re.ASCII,
    )

    _any_address = re.compile(r"\d(?<![\d.]\d)\d{0,2}\.(?:\d{1,3}\.){2}\d{1,3}(?!\d|\.\d)", re.ASCII)
    """Like ``pattern``, but without its context: text that was recognized once is replaced everywhere."""

    def redact(self, text: str) -> str:
        """Replace addresses; text recognized as an address once is replaced everywhere."""
        return self._any_address.sub(self._replace_known, text) if self.pseudonyms else text

    def _replace_known(self, match: re.Match[str]) -> str:
        pseudonym = self.pseudonyms.get(match[0])
        if pseudonym is not None:
            return pseudonym
        return self._replacement(match) if self.pattern.match(match.string, match.start()) else match[0]

    def key(self, text: str) -> str | None:
        """The address; None for loopback, unspecified and multicast addresses and masks."""
        try:
            first = ipaddress.IPv4Address(text).packed[0]
        except ValueError:
            return None
        return None if first in (0, 127) or first >= 224 else text

    def assign_pseudonyms(self) -> None:
        """Assign pseudonyms to addresses in numeric order."""
        for key in sorted(self._originals, key=ipaddress.IPv4Address):
            self.pseudonyms[key] = self._free_pseudonym(key, 0)

    def __init__(self) -> None:
        super().__init__()
        self._pseudonym_networks: dict[str, str] = {}
        """First three octets of an original network -> those of its pseudonym."""
        self._free_networks = _reserved_networks()

    def _free_pseudonym(self, key: str, number: int) -> str:
        """The pseudonym of an address, in the pseudonym network of its network; its number does not matter."""
        network, _, host = key.rpartition(".")
        return f"{self._pseudonym_network(network)}.{host}"

    def _pseudonym_network(self, network: str) -> str:
        while network not in self._pseudonym_networks:
            free = next(self._free_networks)
            if not any(key.startswith(f"{free}.") for key in self._originals):
                self._pseudonym_networks[network] = free
        return self._pseudonym_networks[network]

    def leak_patterns(self) -> Iterable[LeakPattern]:
        return (
            LeakPattern(key, pseudonym, r"(?<![\d.])", r"(?!\d|\.\d)") for key, pseudonym in self.pseudonyms.items()
        )


class IPv6(NumberedKind):
    """IPv6 addresses except ``::`` and ``::1``."""

    plural = "IPv6 addresses"
    pattern = re.compile(
        r"(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){1,7}(?::?[0-9a-fA-F]{1,4})(?::[0-9a-fA-F]{1,4}){0,6}(?![\w:])", re.ASCII
    )
    line_pattern = (
        rb"(?:[0-9A-Fa-f]{0,4}:){7}|(?:[Ff][Ee][89ABab][0-9A-Fa-f]|[Ff][CDcd][0-9A-Fa-f]{2}|[23][0-9A-Fa-f]{3})"
        rb":[0-9A-Fa-f:]"
    )
    step = 1 << 32

    def key(self, text: str) -> str | None:
        """The address in its short form; None for times, PCI addresses and C++ names."""
        if text.count(":") < 7 and not re.match(r"(?i)(?:fe[89ab][0-9a-f]|f[cd][0-9a-f]{2}|[23][0-9a-f]{3}):", text):
            return None
        try:
            address = ipaddress.IPv6Address(text)
        except ValueError:
            return None
        return None if address.is_loopback or address.is_unspecified else str(address)

    def pseudonym(self, number: int) -> str:
        """The n-th address of the documentation range."""
        return str(ipaddress.IPv6Address((0x20010DB8 << 96) + number))


class Mac(NumberedKind):
    """MAC addresses, with colons or hyphens."""

    plural = "MAC addresses"
    pattern = re.compile(r"(?<![0-9A-Fa-f:-])[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}(?![0-9A-Fa-f:-])")
    step = 1 << 16

    def key(self, text: str) -> str | None:
        """The address with colons; None for the null and broadcast addresses."""
        key = text.lower().replace("-", ":")
        return None if key in ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff") else key

    def pseudonym(self, number: int) -> str:
        """The n-th address of the documentation range, then locally administered addresses."""
        return f"00:00:5e:00:53:{number:02x}" if number < 256 else f"02:00:{number.to_bytes(4).hex(':')}"

    def leak_patterns(self) -> Iterable[LeakPattern]:
        for key, pseudonym in self.pseudonyms.items():
            yield from (
                LeakPattern(text, pseudonym, r"(?<![\w:-])", r"(?![\w:-])") for text in (key, key.replace(":", "-"))
            )


def _reserved_networks() -> Iterator[str]:
    """The first three octets of each network for pseudonyms."""
    for address_range in itertools.chain(_RANGES, itertools.repeat(_LAST_RANGE)):
        for network in ipaddress.IPv4Network(address_range).subnets(new_prefix=24):
            yield str(network.network_address).removesuffix(".0")
