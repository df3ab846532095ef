"""Tells systemd that the service is ready, reloads or stops (sd_notify), and nobody else."""

import os
import socket
import time
from contextlib import suppress


def notify(state: str) -> None:
    """Send a state, such as READY=1, to the service manager that has started this process.

    See https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name of the kernel, without a file
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), address)


def reloading() -> None:
    """Say that the settings are read again; READY=1 ends it."""
    notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
