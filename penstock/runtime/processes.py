"""Which process of this machine something depends on, and whether that process is gone for good.

A process is named by machine, boot, namespace, number and start: numbers are used again, after a
boot from the beginning, and mean nothing in another namespace.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_MACHINE_ID = Path("/etc/machine-id")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NO_MACHINE_IDS = ("", "uninitialized")  # of small containers, and of images never booted
_GONE_STATES = ("Z", "X")  # ended, and only not yet waited for


class _Status(NamedTuple):
    command: str
    state: str
    parent: int
    started: str  # in ticks since the boot


def name_of(number: int) -> str:
    """The name of a process of this machine; empty where it cannot be told."""
    status = _status(number)
    return "" if status is None else "/".join((*_place(), str(number), status.started))


def ancestor(command: str) -> str:
    """The name of the nearest process above this one that runs a command; empty if there is none.

    Spark's Python workers are such descendants of the Java process whose job they work for.
    """
    number = os.getppid()
    while number > 1 and (status := _status(number)) is not None:
        if status.command == command:
            return name_of(number)
        number = status.parent
    return ""


def is_gone(name: str) -> bool:
    """Whether a process is known to have ended; one that cannot be judged from here is not."""
    parts = name.split("/")
    if len(parts) != 5 or not parts[3].isdecimal():
        return False
    machine, boot, namespace = _place()
    if not machine or parts[0] != machine:
        return False
    if parts[1] != boot:
        return True
    if parts[2] != namespace:
        return False
    status = _status(int(parts[3]))
    return status is None or status.state in _GONE_STATES or status.started != parts[4]


def _place() -> tuple[str, str, str]:
    """Machine, boot and namespace; a machine without a number is known until its next boot."""
    boot = _text(_BOOT_ID)
    machine = _text(_MACHINE_ID)
    if machine in _NO_MACHINE_IDS:
        machine = f"{boot}.{socket.gethostname()}" if boot else ""
    namespace = ""
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    return machine, boot, namespace


def _text(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").strip()
    return ""


def _status(number: int) -> _Status | None:
    """What the kernel says about a process; its command may hold spaces and brackets."""
    text = _text(Path(f"/proc/{number}/stat"))
    before, _, after = text.rpartition(")")
    fields = after.split()
    if len(fields) < 20:
        return None
    return _Status(before.partition("(")[2], fields[0], int(fields[1]), fields[19])
