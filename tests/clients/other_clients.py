"""The clients in Go, TypeScript and Java against the real server: each asks, approves and follows.

Run by scripts/test after scripts/stubs, which makes their stubs and compiles them.
"""

import shutil
import subprocess
import unittest

from server import PATIENCE, ROOT, Server

STUBS = ROOT / "target" / "stubs"
TOOLS = ROOT / ".tools"
PAID = "You got it! I have reimbursed you $200 for conference travel.\n"


class OtherClients(unittest.TestCase):
    def assert_pays(self, *command):
        """The client checks what comes, and prints the last thing that is said."""
        server = Server()
        self.addCleanup(server.close)
        done = subprocess.run(
            [*command, server.address], capture_output=True, text=True, timeout=PATIENCE
        )
        self.assertEqual((done.returncode, done.stdout), (0, PAID), done.stderr)

    def test_go(self):
        self.assert_pays(STUBS / "go" / "client")

    def test_typescript(self):
        node = shutil.which("node", path=TOOLS / "bin") or "node"
        self.assert_pays(node, STUBS / "typescript" / "js" / "client.js")

    def test_java(self):
        classes = f"{STUBS / 'java' / 'classes'}:{TOOLS / 'java'}/*"
        self.assert_pays("java", "-cp", classes, "Client")


if __name__ == "__main__":
    unittest.main()
