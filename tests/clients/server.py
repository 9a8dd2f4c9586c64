"""A server of its own for each test: the real program on a free port of this machine."""

import os
import subprocess
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "debug" / "countersign"

# The longest wait for anything, in seconds: far more than it takes.
PATIENCE = 60


class Server:
    """The program, serving from an SQLite file in a directory that goes away with it."""

    def __init__(self, *flags):
        self._directory = tempfile.TemporaryDirectory()
        self._flags = flags
        self.address = "127.0.0.1:0"
        self.start()

    def start(self):
        """Starts the program, at the address it had before."""
        store = f"sqlite:{self._directory.name}/countersign.db"
        command = [PROGRAM, "serve", "--listen", self.address, "--store", store, *self._flags]
        self._log = open(f"{self._directory.name}/log", "ab")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log)
        watchdog = threading.Timer(PATIENCE, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline().decode()
        watchdog.cancel()
        if not line.startswith("countersign listening on "):
            self.process.kill()
            self.process.wait()
            log = Path(self._directory.name, "log").read_text()
            raise RuntimeError(f"the server did not start: {line}\n{log}")
        self.address = line.split()[-1]

    def kill(self):
        """Kills the program as kill -9 does."""
        self.process.kill()
        self._ended()

    def restart(self):
        """Kills the program and starts it again."""
        self.kill()
        self.start()

    def close(self):
        """Stops the program as SIGTERM does, and removes its file. Gives the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
            self._ended()
        self._directory.cleanup()
        return self.process.returncode

    def _ended(self):
        self.process.wait(PATIENCE)
        self.process.stdout.close()
        self._log.close()
