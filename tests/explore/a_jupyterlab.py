"""A real JupyterLab on this machine, started for a test, and the notebook opened in a browser."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

TOKEN = "of-a-test"


@contextlib.contextmanager
def jupyter_lab(folder):
    """Serve a folder with JupyterLab on a free port of the loopback; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    homes = {f"JUPYTER_{name}_DIR": str(folder / f".{name}") for name in ("CONFIG", "DATA", "RUNTIME")}
    homes |= {"IPYTHONDIR": str(folder / ".ipython"), "JUPYTERLAB_SETTINGS_DIR": str(folder / ".settings"),
              "JUPYTERLAB_WORKSPACES_DIR": str(folder / ".workspaces")}
    words = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}", "--ServerApp.port_retries=0",
             "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={folder}",
             "--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly", "--allow-root",
             "--LabApp.news_url=None"]
    with open(folder / "lab.log", "w", encoding="utf-8") as said:
        server = subprocess.Popen(words, stdout=said, stderr=said, env=os.environ | homes, cwd=folder)
        try:
            base = f"http://127.0.0.1:{port}"
            _wait_for(f"{base}/api/status?token={TOKEN}", server, folder / "lab.log")
            yield base
        finally:
            server.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(15)
            if server.poll() is None:
                server.kill()
                server.wait()


def _wait_for(url, server, log, seconds=40.0):
    end = time.monotonic() + seconds
    while True:
        assert server.poll() is None and time.monotonic() < end, log.read_text(encoding="utf-8")[-3000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)


def place(folder, root, *names):
    """Copy notebooks to where they may be changed, beside the data that they read."""
    (folder / "notebooks").mkdir(parents=True)
    (folder / "data").symlink_to(root / "data")
    for name in names:
        shutil.copy(root / "notebooks" / name, folder / "notebooks" / name)
    settings = folder / ".settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet), encoding="utf-8")
    return folder


def open_and_run(page, base, name):
    """Open a notebook, run all of it, and wait until the kernel is at rest."""
    page.goto(f"{base}/lab/workspaces/{name.split('_')[0]}/tree/notebooks/{name}?token={TOKEN}")  # opens no other
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=40_000)
    page.wait_for_function("window.jupyterapp && jupyterapp.shell.currentWidget && "
                           "jupyterapp.shell.currentWidget.sessionContext", timeout=20_000)
    page.evaluate("""async () => {
        const context = jupyterapp.shell.currentWidget.sessionContext;
        await context.ready;
        await jupyterapp.commands.execute('notebook:run-all-cells');
    }""")
