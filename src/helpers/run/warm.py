"""Kernels forked from a process that has loaded what notebooks import: the runner's side.

`WarmEngine` is papermill's own engine with another manager of kernels. One server (`fork_server`) serves all runs of a
process; it is started at the first, and ends with the process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner
from nbclient.exceptions import DeadKernelError

from helpers.run.sockets import LocalKernelManager, private_folder

PROVISIONER = "rooflog-warm"

PRELOADED = (
    "ipykernel.kernelapp", "ipykernel.zmqshell", "ipykernel.ipkernel", "ipykernel.debugger", "ipywidgets",
    "IPython.display", "nbformat", "plotly.graph_objects:Figure()",
    "plotly.graph_objects:Scatter()", "plotly.graph_objects:Bar()", "pandas.io.formats.html", "pyarrow.pandas_compat",
    "helpers.analysis", "helpers.deployment", "helpers.explore", "helpers.plots", "helpers.plots.speculation",
    "helpers.readings", "helpers.readings.speculation", "helpers.scorecard", "helpers.segment",
)
"""What notebooks import and a kernel beneath them; plotly and nbformat load half of themselves at first use.

Nothing here reads a log or starts a thread of Python's; polars starts its threads at the first query. What chooses how
to show itself by where it is loaded stays out, as ``plotly.io.renderers`` does: it would choose for a terminal.
"""

QUIET_DEBUGGER = {"PYDEVD_DISABLE_FILE_VALIDATION": "1"}
"""Else the debugger beneath ipykernel prints, when it is loaded, that it cannot stop in modules of Python's own."""

START_S = 120.0
"""Time for the server to load everything and answer the first request [s]; 2 s where nothing else runs."""

VOLATILE = ("PYTEST_CURRENT_TEST",)
"""Variables that change all the time and that no library reads when it is loaded."""


def is_available() -> bool:
    """Tell whether kernels can be forked here: not on Windows, nor on macOS, whose own libraries forbid it."""
    return hasattr(os, "fork") and hasattr(socket, "send_fds") and sys.platform != "darwin"


class ForkedKernel:
    """A kernel process that is the server's child, with what jupyter_client uses of a Popen.

    Attributes
    ----------
    pid : int
    returncode : int or None
        None while it runs; as Popen's otherwise, and -9 if the server went with it.
    """

    stdin = stdout = stderr = None

    def __init__(self, channel: socket.socket, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._channel = channel
        channel.setblocking(False)

    def poll(self) -> int | None:
        """Return the exit code, None while the kernel runs."""
        if self.returncode is None:
            with contextlib.suppress(BlockingIOError):
                said = self._channel.recv(64)
                self.returncode = int(said) if said else -signal.SIGKILL
                self._channel.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; TimeoutExpired after `timeout` seconds."""
        if self.returncode is None:
            self._channel.settimeout(timeout)
            try:
                self.poll()
            except TimeoutError:
                raise subprocess.TimeoutExpired("kernel", timeout or 0.0) from None
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the kernel is gone: its pid may be another's by now."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)


class Server:
    """The process that kernels are forked from."""

    def __init__(self) -> None:
        self.environment = _environment()
        self.owner_pid = os.getpid()
        self.control, theirs = socket.socketpair()
        command = [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(theirs.fileno()),
                   str(os.getpid()), str(private_folder()), *PRELOADED]
        with theirs:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
                env={**os.environ, **QUIET_DEBUGGER},
            )

    def is_fit(self) -> bool:
        """Tell whether a kernel of it would be as one started by this process now."""
        return (self.owner_pid == os.getpid() and self.process.poll() is None
                and self.environment == _environment())

    def fork(self, arguments: list[str], env: dict[str, str], cwd: str) -> ForkedKernel:
        """Start a kernel.

        Raises
        ------
        OSError
            The server is gone, or says nothing for too long.
        """
        channel, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self.control, [b"k"], [theirs.fileno()])
            channel.settimeout(START_S)
            channel.sendall(json.dumps({"arguments": arguments, "env": env, "cwd": cwd}).encode() + b"\n")
            said = channel.recv(64)
            if not said.endswith(b"\n"):
                raise ConnectionError("the kernel ended before it began")
            return ForkedKernel(channel, int(said))
        except BaseException:
            channel.close()
            raise

    def close(self) -> None:
        """End it and all its kernels; in a fork of its owner, only forget it."""
        if self.owner_pid != os.getpid():
            self.control.close()
            self.process.returncode = 0  # not this process's child: nothing to wait for
            return
        with self.control, contextlib.suppress(OSError):
            self.control.send(b"q")
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in VOLATILE}


_servers: list[Server] = []
_one_at_a_time = threading.RLock()  # a cluster's workers may run in threads


def start_server() -> Server:
    """Return this process's server, a new one where there is none that fits."""
    with _one_at_a_time:
        if _servers and not _servers[0].is_fit():
            stop_server()
        if not _servers:
            _servers.append(Server())
        return _servers[0]


@atexit.register
def stop_server() -> None:
    """End this process's server, if there is one, and with it all warm kernels."""
    while _servers:
        _servers.pop().close()


class WarmProvisioner(LocalProvisioner):
    """Starts kernels by asking the server; all else is as with kernels started by jupyter_client."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Fork a kernel; a server that was killed since the last one is replaced once.

        Raises
        ------
        DeadKernelError
            No kernel could be had.
        """
        env, cwd = dict(kwargs.get("env") or os.environ), str(kwargs.get("cwd") or Path.cwd())
        try:
            try:
                kernel = start_server().fork(cmd, env, cwd)
            except OSError:
                stop_server()
                kernel = start_server().fork(cmd, env, cwd)
        except OSError as error:
            stop_server()
            raise DeadKernelError(f"no warm kernel starts ({error})") from error
        self.process = kernel  # type: ignore[assignment]
        self.pid = self.pgid = kernel.pid  # it leads a group of its own
        self.cwd = cwd
        return self.connection_info


class WarmKernelManager(LocalKernelManager):
    """Manages a forked kernel."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """Name the provisioner; the arguments are those of ipykernel."""
        factory = KernelProvisionerFactory.instance(parent=self.parent)
        if PROVISIONER not in factory.provisioners:
            from importlib.metadata import EntryPoint

            factory.provisioners[PROVISIONER] = EntryPoint(
                PROVISIONER, f"{__name__}:{WarmProvisioner.__name__}", factory.GROUP_NAME
            )
        return KernelSpec(argv=["-f", "{connection_file}"], language="python", display_name="warm",
                          metadata={"kernel_provisioner": {"provisioner_name": PROVISIONER}})
