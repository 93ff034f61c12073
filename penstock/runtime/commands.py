"""Carrying out what a placement decides: the same for a job and for a simulated driver.

What they do it with differs, and is given: sockets and Spark's tasks, or the simulator's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.runtime.control import Message
from penstock.runtime.placement import Assign, Command, Finish, GiveUp, Launch, StopSlot


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """What whoever carries out commands can do."""

    launch: Callable[[int, bool], None]
    """Start a slot under this number, in the driver or not."""

    send: Callable[[int, Message], None]
    """Say something over a connection; whoever is gone does not hear it."""

    free_log: Callable[[int, str], None]
    """See to it that a process of a machine, which is taken for lost, keeps nobody off the log."""

    close: Callable[[int], None]
    """Close a connection, whose end is then heard of as if the slot had closed it."""

    cancel_slot: Callable[[int], None]
    """End the task of a slot."""

    finish: Callable[[], None]
    """Close everything and end all tasks."""

    def carry_out(self, command: Command) -> None:
        if isinstance(command, Launch):
            self.launch(command.slot, command.on_driver)
        elif isinstance(command, Assign):
            self.send(command.connection, {"type": "assign", "vertices": command.vertices})
        elif isinstance(command, StopSlot):
            self.send(command.connection, {"type": "stop"})
        elif isinstance(command, GiveUp):
            self.free_log(command.pid, command.machine)
            self.close(command.connection)
            if command.is_stuck:
                self.cancel_slot(command.slot)
        elif isinstance(command, Finish):
            self.finish()
