"""The two prints of a link's own state, `nvidia-smi -q` and `lspci -vv`: read line by line, what each device said."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_SMI_GPU = re.compile(r"GPU (?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_SMI_TOP = re.compile(r"=+\s*NVSMI LOG\s*=+|(?:Timestamp|Driver Version|CUDA Version|Attached GPUs)\s+:")
_LSPCI_DEVICE = re.compile(r"(?P<address>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) (?P<kind>[^:]+):")
_SECONDARY = re.compile(r"secondary=([0-9a-f]{2})")
_LINK = re.compile(r"Speed (?P<speed>[0-9.]+|unknown) ?(?:GT/s)?[^,]*, Width x(?P<width>[0-9]+)")

GEN_OF_SPEED = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
"""GT/s per lane as lspci prints it -> PCIe generation (PCI-SIG base specifications 1.0 to 6.0)."""

ACCELERATORS = ("3D controller", "VGA compatible controller", "Display controller", "Processing accelerators")
"""PCI classes of accelerators; an on-board display chip is one of them too, and shows no link or a full one."""

_GENERATION = ("PCI", "GPU Link Info", "PCIe Generation")
_WIDTH = ("PCI", "GPU Link Info", "Link Width")

# Old driver names beside the new ones; the first that is printed counts.
_PATHS = {
    "name": (("Product Name",),),
    "gen": ((*_GENERATION, "Current"), (*_GENERATION, "Device Current")),
    "gen_max": ((*_GENERATION, "Max"),),
    "gen_device_max": ((*_GENERATION, "Device Max"),),
    "gen_host_max": ((*_GENERATION, "Host Max"),),
    "width": ((*_WIDTH, "Current"),),
    "width_max": ((*_WIDTH, "Max"),),
    "tx": (("PCI", "Tx Throughput"),),
    "rx": (("PCI", "Rx Throughput"),),
    "state": (("Performance State",),),
    "busy": (("Utilization", "GPU"), ("Utilization", "Gpu")),
    "power": tuple((section, key) for section in ("GPU Power Readings", "Power Readings")
                   for key in ("Average Power Draw", "Power Draw", "Instantaneous Power Draw")),
    "power_limit": tuple((section, key) for section in ("GPU Power Readings", "Power Readings")
                         for key in ("Current Power Limit", "Enforced Power Limit", "Power Limit")),
    "power_limit_default": tuple((section, "Default Power Limit")
                                 for section in ("GPU Power Readings", "Power Readings")),
}
_NAME_OF_PATH = {path: name for name, paths in _PATHS.items() for path in paths}
_REASONS = ("Clocks Event Reasons", "Clocks Throttle Reasons")
_LINK_NAMES = ("gen", "gen_max", "gen_device_max", "gen_host_max", "width", "width_max")
_MISSING = ("n/a", "[n/a]", "unknown error", "not supported", "requested functionality has been deprecated", "")


@dataclass
class Print:
    """What one print said of one device.

    Attributes
    ----------
    tool : str
        "nvidia-smi -q" or "lspci -vv".
    device : str
        Bus address as printed.
    line_no : int
        Line of the device's first link value, else of the device.
    is_bridge : bool
        A port on the way to a device, not a device.
    values : dict
        Name -> text, unit included: gen, gen_max, gen_device_max, gen_host_max, width, width_max, tx, rx, state, busy,
        power, power_limit, power_limit_default, name; "secondary" for the bus behind a bridge.
    reasons : dict
        Clocks event reason -> is it active; only nvidia-smi.
    stamp : str
        Time of the print where it holds one.
    """

    tool: str
    device: str
    line_no: int
    is_bridge: bool = False
    values: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, bool] = field(default_factory=dict)
    stamp: str = ""

    @property
    def has_link(self) -> bool:
        """A generation or a width was printed."""
        return any(name in self.values for name in ("gen", "width"))

    def keep(self, name: str, value: str, line_no: int) -> None:
        """Keep a value unless the print says that there is none."""
        if value.strip().lower() in _MISSING:
            return
        if name in _LINK_NAMES and not any(known in self.values for known in _LINK_NAMES):
            self.line_no = line_no
        self.values[name] = value.strip()


class SmiReader:
    """Follows one `nvidia-smi -q` print; the same key names repeat, so values are known by their whole path."""

    def __init__(self) -> None:
        self.prints: list[Print] = []
        self._current: Print | None = None
        self._path: list[tuple[int, str]] = []
        self._stamp = ""

    def read(self, line_no: int, line: str) -> str | None:
        """Return the class of a line, "malformed: ..." included, or None where it is not of this print."""
        line = line.expandtabs(4)
        found = _SMI_GPU.match(line)
        if found:
            self._current = Print("nvidia-smi -q", found["address"], line_no, stamp=self._stamp)
            self.prints.append(self._current)
            self._path = []
            return "header"
        if _SMI_TOP.match(line):
            self._current = None
            if line.startswith("Timestamp"):
                self._stamp = line.partition(":")[2].strip()
            return "header"
        if self._current is None or not line.startswith("    "):
            if line.strip():
                self._current = None
            return None
        return self._inside(line_no, line, self._current)

    def _inside(self, line_no: int, line: str, device: Print) -> str:
        indent = len(line) - len(line.lstrip())
        key, colon, value = line.strip().partition(" :")
        key = key.strip()
        self._path = [*(step for step in self._path if step[0] < indent), (indent, key)]
        if not colon:
            return "header"
        path = tuple(name for _, name in self._path)
        if path[0] in _REASONS:
            if value.strip() in ("Active", "Not Active"):
                device.reasons[key] = value.strip() == "Active"
                return "row"
            return "other"
        name = _NAME_OF_PATH.get(path)
        if name is None:
            return "other"
        if name in _LINK_NAMES and value.strip().lower() not in _MISSING and not re.fullmatch(
                r"[0-9]+x?", value.strip()):
            return f"malformed: expected a PCIe generation or a number of lanes, found {value.strip()!r}"
        if name not in device.values:
            device.keep(name, value, line_no)
        return "row"


class LspciReader:
    """Follows one `lspci -vv` print: devices at the first column, their capabilities indented below."""

    def __init__(self) -> None:
        self.prints: list[Print] = []
        self.is_denied = False
        self._current: Print | None = None

    def read(self, line_no: int, line: str) -> str | None:
        """Return the class of a line, "malformed: ..." included, or None where it is not of this print."""
        found = _LSPCI_DEVICE.match(line)
        if found:
            kind = found["kind"].split(" [")[0].strip()
            is_bridge = kind == "PCI bridge"
            self._current = Print("lspci -vv", found["address"], line_no, is_bridge)
            if is_bridge or kind in ACCELERATORS:
                self.prints.append(self._current)
                return "header"
            return "other"
        if self._current is None or not line.startswith((" ", "\t")):
            if line.strip():
                self._current = None
            return None
        return self._inside(line_no, line.strip(), self._current)

    def _inside(self, line_no: int, line: str, device: Print) -> str:
        if "<access denied>" in line:
            self.is_denied = True
        secondary = _SECONDARY.search(line) if line.startswith("Bus:") else None
        if secondary:
            device.keep("secondary", secondary[1], line_no)
            return "row"
        what = line.partition(":")[0]
        if what not in ("LnkCap", "LnkSta"):
            return "other"
        found = _LINK.search(line)
        speed = found["speed"] if found else ""
        if not found or speed != "unknown" and speed not in GEN_OF_SPEED:
            return f"malformed: expected 'Speed 16GT/s, Width x16', found {line[:60]!r}"
        suffix = "_max" if what == "LnkCap" else ""
        device.keep(f"width{suffix}", found["width"], line_no)
        if speed in GEN_OF_SPEED:
            device.keep(f"gen{suffix}", str(GEN_OF_SPEED[speed]), line_no)
        return "row"

    def with_ports(self) -> list[Print]:
        """Return the accelerators with a link, each followed by the ports on its way to the host, nearest first."""
        found: list[Print] = []
        behind = {self._bus(port.device, port.values["secondary"]): port
                  for port in self.prints if port.is_bridge and "secondary" in port.values}
        for device in self.prints:
            if device.is_bridge or not device.has_link:
                continue
            found.append(device)
            port = behind.get(self._bus(device.device))
            if port is not None and "gen_max" in port.values:
                device.values.setdefault("gen_host_max", port.values["gen_max"])
            if port is not None and "width_max" in port.values:
                device.values.setdefault("width_host_max", port.values["width_max"])
            while port is not None and port not in found:
                if port.has_link:
                    found.append(port)
                port = behind.get(self._bus(port.device))
        return found

    @staticmethod
    def _bus(address: str, secondary: str = "") -> str:
        """Domain and bus of an address, or of the bus behind a bridge at that address."""
        *domain, bus, _ = address.split(":")
        return f"{domain[0] if domain else '0000'}:{secondary or bus}"
