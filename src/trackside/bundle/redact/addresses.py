"""IPv4, IPv6 and MAC addresses. The names are of the ranges that are kept for documentation (RFC 5737, 3849, 7042)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable

from trackside.bundle.redact.kind import Patterned, Trace

_RANGES = ("192.0.2", "198.51.100", "203.0.113")
"""The /24 networks for documentation; further ones are of 198.18.0.0/15 and 100.64.0.0/10."""


class IPv4(Patterned):
    """The last octet stays, so that machines of one network stay neighbours."""

    name = "IPv4 addresses"
    pattern = re.compile(
        # What stands before the first digit is looked at after it: a pattern that begins with a digit is found fast.
        r"\d(?<![\d.]\d)(?<![=~<>!]=\d)(?<!\.so\.\d)(?<![vV]\d)(?<!ersion \d)(?<!ersion: \d)(?<!\d-\d)"
        r"(?<!dnn/\d)(?<![Nn][Nn] \d)(?<![Nn]{2}=\d)(?<![Cc][Ll] \d)(?<!uda \d)(?<!UDA \d)"
        r"\d{0,2}\.(?:\d{1,3}\.){2}\d{1,3}(?![\d]|\.\d|-?(?:py|cuda|cp|post|dev|rc|a\d|b\d))",
        re.ASCII,
    )

    _known = re.compile(r"\d(?<![\d.]\d)\d{0,2}\.(?:\d{1,3}\.){2}\d{1,3}(?!\d|\.\d)", re.ASCII)

    def replaced(self, text: str) -> str:
        """What one place shows to be an address is one everywhere."""
        return self._known.sub(self._if_known, text) if self.names else text

    def _if_known(self, match: re.Match[str]) -> str:
        name = self.names.get(match[0])
        if name is not None:
            return name
        return self._named(match) if self.pattern.match(match.string, match.start()) else match[0]

    def key(self, text: str) -> str | None:
        """An address; none where it stands for this machine, for all, or is a mask or a version."""
        try:
            first = ipaddress.IPv4Address(text).packed[0]
        except ValueError:
            return None
        return None if first in (0, 127) or first >= 224 else text

    def settle(self) -> None:
        """Networks are counted in their own order."""
        for network in sorted({key.rpartition(".")[0] for key in self._found}, key=_octets):
            self._network(network)
        for key in sorted(self._found, key=_octets):
            self.names[key] = self.named(key, 0)

    def __init__(self) -> None:
        super().__init__()
        self._networks: dict[str, str] = {}
        self._next = 0

    def named(self, key: str, number: int) -> str:
        """In the range of its network."""
        network, _, host = key.rpartition(".")
        return f"{self._network(network)}.{host}"

    def _network(self, network: str) -> str:
        while network not in self._networks:
            number, self._next = self._next, self._next + 1
            if number < len(_RANGES):
                free = _RANGES[number]
            elif (rest := number - len(_RANGES)) < 512:
                free = f"198.{18 + rest // 256}.{rest % 256}"
            else:
                free = f"100.{64 + (rest - 512) // 256 % 64}.{(rest - 512) % 256}"
            if not any(key.startswith(f"{free}.") for key in self._found):
                self._networks[network] = free
        return self._networks[network]

    def traces(self) -> Iterable[Trace]:
        return (Trace(key, name, r"(?<![\d.])", r"(?!\d|\.\d)") for key, name in self.names.items())


class IPv6(Patterned):
    """Addresses but ``::`` and ``::1``."""

    name = "IPv6 addresses"
    pattern = re.compile(
        r"(?<![\w:.])(?:[0-9a-fA-F]{1,4}:){1,7}(?::?[0-9a-fA-F]{1,4})(?::[0-9a-fA-F]{1,4}){0,6}(?![\w:])", re.ASCII
    )
    sign = (
        rb"(?:[0-9A-Fa-f]{0,4}:){7}|(?:[Ff][Ee][89ABab][0-9A-Fa-f]|[Ff][CDcd][0-9A-Fa-f]{2}|[23][0-9A-Fa-f]{3})"
        rb":[0-9A-Fa-f:]"
    )
    step = 1 << 32

    def key(self, text: str) -> str | None:
        """An address in its short form; none for what is a time, a PCI address or a name in C++."""
        if text.count(":") < 7 and not re.match(r"(?i)(?:fe[89ab][0-9a-f]|f[cd][0-9a-f]{2}|[23][0-9a-f]{3}):", text):
            return None
        try:
            found = ipaddress.IPv6Address(text)
        except ValueError:
            return None
        return None if found.is_loopback or found.is_unspecified else str(found)

    def named(self, key: str, number: int) -> str:
        """Of the range for documentation."""
        return str(ipaddress.IPv6Address((0x20010DB8 << 96) + number))


class Mac(Patterned):
    """Addresses of network cards, by colons or hyphens."""

    name = "MAC addresses"
    pattern = re.compile(r"(?<![0-9A-Fa-f:-])[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}(?![0-9A-Fa-f:-])")
    step = 1 << 16

    def key(self, text: str) -> str | None:
        """By colons; none for one that stands for nobody or for all."""
        key = text.lower().replace("-", ":")
        return None if key in ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff") else key

    def named(self, key: str, number: int) -> str:
        """Of the range for documentation, then of those that are given locally."""
        return f"00:00:5e:00:53:{number:02x}" if number < 256 else f"02:00:{number.to_bytes(4).hex(':')}"

    def traces(self) -> Iterable[Trace]:
        for key, name in self.names.items():
            yield from (Trace(text, name, r"(?<![\w:-])", r"(?![\w:-])") for text in (key, key.replace(":", "-")))


def _octets(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
