"""The process that warm kernels are forked from: it loads what notebooks import, then forks one kernel per request.

Run as a file, with nothing of its own but the standard library, so that a kernel has what a plain one has and no more:
``python fork_server.py CONTROL_FD RUNNER_PID FOLDER MODULE...``. The runner sends one byte and one end of a socket
for each kernel; the kernel reads its request there and answers with its pid, and the server writes its exit code.

Nothing outlives the runner: at the end of the control socket, or when its parent is gone, the server kills its kernels
and removes the folder of their sockets, which is the runner's to remove otherwise; a kernel whose server is gone ends
itself.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import sys
import threading
import time
import types
import warnings

LOOK_S = 2.0
"""How often the server looks whether its runner is still there, should the socket's end not tell [s]."""


def serve(control: socket.socket, runner_pid: int, folder: str, modules: list[str]) -> None:
    """Fork kernels until the runner is gone.

    Parameters
    ----------
    control : socket
        Gives one byte and one file descriptor per kernel; a byte alone ends the server, and so does its end.
    runner_pid : int
        The process that started this one.
    folder : str
        The runner's private folder of connection files and sockets.
    modules : list of str
        To load before the first fork: names, or ``module:name()`` for something that fills its caches when called. One
        that cannot be loaded is left to the notebook, which says so better.
    """
    _load_all(modules)
    gc.collect()
    gc.freeze()  # what is loaded stays: no collection in a kernel walks through it, nor copies its pages
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    life, own_life = os.pipe()  # kernels hold the reading end: it ends when this process does
    kernels: dict[int, socket.socket] = {}
    is_dismissed = False
    try:
        while True:
            ready, _, _ = select.select([control.fileno(), woken], [], [], LOOK_S)
            if os.getppid() != runner_pid:
                return
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
            _reap(kernels)
            if control.fileno() not in ready:
                continue
            byte, ends, _, _ = socket.recv_fds(control, 1, 1)
            if not ends:
                is_dismissed = bool(byte)
                return
            channel = socket.socket(fileno=ends[0])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # on threads: those of libraries that see to a fork themselves
                pid = os.fork()
            if pid == 0:
                for held in (control, *kernels.values()):
                    held.close()
                for end in (woken, wake, own_life):
                    os.close(end)
                _become_kernel(channel, life)
            kernels[pid] = channel
    finally:
        for pid in kernels:
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(OSError):
                    kill(pid, signal.SIGKILL)
        if not is_dismissed:
            shutil.rmtree(folder, ignore_errors=True)


def _load_all(names: list[str]) -> None:
    """Load what can be, as in a kernel: pandas looks, when it is loaded, where it is and how output is encoded."""
    vars(builtins)["get_ipython"] = lambda: types.SimpleNamespace(kernel=None)
    with contextlib.redirect_stdout(open(os.devnull, "w", encoding="UTF-8")):  # as ipykernel's; never closed, if kept
        for name in names:
            with contextlib.suppress(Exception):
                _load(name)
    del vars(builtins)["get_ipython"]


def _load(name: str) -> None:
    found = pkgutil.resolve_name(name.removesuffix("()"))
    if name.endswith("()"):
        found()


def _reap(kernels: dict[int, socket.socket]) -> None:
    """Tell the runner the exit code of every kernel that ended."""
    for pid in list(kernels):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with kernels.pop(pid) as channel, contextlib.suppress(OSError):
                channel.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _become_kernel(channel: socket.socket, life: int) -> None:
    """Be a kernel as if started anew; never return."""
    code = 1
    try:
        os.setsid()  # a group of its own: interrupts reach what its cells start too
        signal.set_wakeup_fd(-1)
        for number, handler in (("SIGCHLD", signal.SIG_DFL), ("SIGTERM", signal.SIG_DFL),
                                ("SIGINT", signal.default_int_handler)):
            signal.signal(getattr(signal, number), handler)
        with channel, channel.makefile("r", encoding="utf-8") as lines:
            request = json.loads(lines.readline())
            os.environ.clear()
            os.environ.update(request["env"])
            time.tzset()
            os.chdir(request["cwd"])
            sys.argv = ["ipykernel_launcher.py", *request["arguments"]]
            channel.sendall(f"{os.getpid()}\n".encode())
        threading.Thread(target=_end_with_server, args=(life,), name="EndWithServer", daemon=True).start()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # Python's own generator is seeded anew by the fork, this one is not
        from ipykernel.kernelapp import IPKernelApp

        app = IPKernelApp.instance()
        app.initialize(request["arguments"])
        if "ipywidgets" in sys.modules:
            sys.modules["ipywidgets"].load_ipython_extension(app.shell)  # as when a cell loads it
        app.start()
        # All that was said has been received. Its sockets end with the process: closed in order, as ipykernel 6 does
        # it at exit, one run in thirty waits for a thread that waits for another one, already stopped.
        atexit.unregister(app.close)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # The interpreter is not taken apart: for all that is loaded that takes longer than most cells.
        atexit._run_exitfuncs()
        os._exit(code)


def _end_with_server(life: int) -> None:
    """Wait for the end of the server, then end."""
    with contextlib.suppress(OSError):
        os.read(life, 1)
    os._exit(1)


if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the folder of this file, which is no place to import from
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the runner, which ends this process
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
