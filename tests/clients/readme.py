"""Runs what README.md shows, with the real programs, and compares what they print.

A block marked `console` is a session: lines that begin with `$ ` are commands, which go on up to
their last quote; what follows them is what they print; a line `...` stands for any lines. Ids,
times and cursors differ each time: an id of the README stands for the id that was printed in its
place, in output and in commands from there on.

    <!-- stays open -->      before a block: its command goes on while the next blocks run. A block
                             without a command is what the youngest of these prints next; with `^C`
                             as its last line it is stopped then.
    <!-- one command -->     before a block: it has no other; what looks like one is printed.
    <!-- file: PATH -->      before a block: the block is written to this file first.

Commands run in a directory of their own that has the project in it; `cargo run --` is the program
that was built, and the usual address is that of a server that the README itself started.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from server import PATIENCE, PROGRAM, ROOT

USUAL = "127.0.0.1:50051"

# What differs from run to run, and whether it is used again later.
VARIABLE = [
    (r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", True),
    (r"(?<=ticket-)[0-9a-f]{12}", True),
    (r"\beyJ[\w-]+={0,2}", True),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z", False),
    (r"\b1\.\d+e\+09", False),
    (r"\b1\d{15}\b", False),
]
ANY = re.compile("|".join(f"(?P<v{i}>{pattern})" for i, (pattern, _) in enumerate(VARIABLE)))


class Mismatch(Exception):
    """The README shows something else than what happens."""


def plain(line):
    """A line without the spaces that programs put in as they please."""
    return " ".join(line.split())


class Session:
    """What was started, and what stands for what."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.known = {}
        self.variables = []
        self.open = []
        self.port = None
        for name in ("examples", ".tools", "proto", "scripts"):
            (self.directory / name).symlink_to(ROOT / name)
        self.environment = {
            **os.environ,
            "COUNTERSIGN_LOG_FILTER": "warn",
            "PATH": f"{ROOT}/.tools/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / ".tools" / "python"),
        }

    def command(self, text):
        """The command as it is run here."""
        text = text.replace("cargo run -- ", f"{PROGRAM} ")
        if self.port:
            text = re.sub(r"\b(localhost|127\.0\.0\.1):50051\b", rf"127.0.0.1:{self.port}", text)
        for shown, real in self.known.items():
            text = text.replace(shown, real)
        return text

    def output(self, text):
        """What a program printed, as if at the usual address."""
        if self.port:
            text = text.replace(f" --server 127.0.0.1:{self.port}", "")
            text = text.replace(f"127.0.0.1:{self.port}", USUAL)
        return "".join(f"{plain(line)}\n" for line in text.splitlines())

    def pattern(self, lines):
        """An expression for lines of the README, and the names of what it will make known."""
        names, parts = {}, []
        for line in lines:
            if line.strip() == "...":
                parts.append(r"(?:.*\n)*?")
                continue
            line, at = plain(line), 0
            for found in ANY.finditer(line):
                parts.append(re.escape(line[at : found.start()]))
                at, shown = found.end(), found.group()
                kind, again = VARIABLE[int(found.lastgroup[1:])]
                if not again:
                    parts.append(kind)
                elif shown in self.known:
                    parts.append(re.escape(self.known[shown]))
                elif shown in names:
                    parts.append(f"(?P={names[shown]})")
                else:
                    names[shown] = f"n{len(names)}"
                    parts.append(f"(?P<{names[shown]}>{kind})")
            parts.append(re.escape(line[at:]) + r"\n")
        return "".join(parts), names

    def match(self, lines, printed, whole):
        """Compares, and remembers what stands for what. Gives where the match ends, if it does."""
        pattern, names = self.pattern(lines)
        found = (re.fullmatch if whole else re.match)(pattern, printed)
        if not found:
            return None
        new = {shown: found.group(name) for shown, name in names.items()}
        # Two ids of the README are two ids here.
        if set(new.values()) & set(self.known.values()) or len(set(new.values())) < len(new):
            return None
        self.known |= new
        return found.end()

    def run(self, command, lines):
        """Runs a command that ends."""
        script = "\n".join([*self.variables, self.command(command)])
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if re.fullmatch(r"[A-Z]+=\S+", command):
            self.variables.append(self.command(command))
        printed = self.output(done.stdout)
        if self.match(lines, printed, whole=True) is None:
            raise Mismatch(f"$ {command}\nshown:\n{show(lines)}\nprinted:\n{printed}")

    def start(self, command, lines):
        """Runs a command that goes on."""
        if command.startswith("cargo run -- serve"):
            self.serve()
        self.open.append(Stream(command, "\n".join([*self.variables, self.command(command)]), self))
        self.go_on(lines)

    def serve(self):
        """Makes a free port the usual one, with a store of its own."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.environment["COUNTERSIGN_LISTEN"] = f"127.0.0.1:{self.port}"
        self.environment["COUNTERSIGN_SERVER"] = f"127.0.0.1:{self.port}"
        self.environment["COUNTERSIGN_STORE"] = f"sqlite:{self.port}.db"

    def go_on(self, lines):
        """Reads on in the youngest command that goes on."""
        stream = self.open[-1]
        stop = bool(lines) and lines[-1] == "^C"
        stream.expect(lines[:-1] if stop else lines, self)
        if stop:
            self.open.pop().close()

    def close(self):
        while self.open:
            self.open.pop().close()


class Stream:
    """A command that goes on."""

    def __init__(self, command, script, session):
        self.command = command
        self.printed = ""
        self._at = 0
        self._more = threading.Condition()
        self._process = subprocess.Popen(
            ["bash", "-c", f"{script}\n"],
            cwd=session.directory,
            env=session.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            with self._more:
                self.printed += line
                self._more.notify()

    def expect(self, lines, session):
        """Waits until these lines have come."""
        until = time.monotonic() + PATIENCE
        with self._more:
            while True:
                printed = session.output(self.printed)[self._at :]
                end = session.match(lines, printed, whole=False)
                if end is not None:
                    self._at += end
                    return
                left = until - time.monotonic()
                if left < 0 or self._process.poll() is not None and not self._reader.is_alive():
                    shown = show(lines)
                    raise Mismatch(f"$ {self.command}\nshown:\n{shown}\nprinted:\n{printed}")
                self._more.wait(min(left, 1))

    def close(self):
        os.killpg(self._process.pid, signal.SIGINT)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()


def show(lines):
    return "\n".join(lines)


def blocks(text):
    """The fenced blocks: line number, language, directive and lines of each."""
    directive, block = "", None
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.fullmatch(r"```(\w*)", line)
        if block is not None:
            if fence:
                yield block
                directive, block = "", None
            else:
                block[3].append(line)
        elif fence:
            block = (number, fence[1], directive, [])
        elif comment := re.fullmatch(r"<!-- (.*) -->", line):
            directive = comment[1]
        elif line.strip():
            directive = ""


def commands(lines, only):
    """The commands of a block, each with what it prints; what is printed before any has none."""
    found, unfinished = [], False
    for line in lines:
        if unfinished:
            found[-1][0] += f"\n{line}"
            unfinished = found[-1][0].count("'") % 2 == 1
        elif line.startswith("$ ") and not (found and only):
            found.append([line[2:], []])
            unfinished = line.count("'") % 2 == 1
        else:
            if not found:
                found.append([None, []])
            found[-1][1].append(line)
    return found


def main():
    document = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "README.md"
    count = 0
    with tempfile.TemporaryDirectory() as directory:
        session = Session(directory)
        try:
            for number, language, directive, lines in blocks(document.read_text()):
                try:
                    if directive.startswith("file: "):
                        path = session.directory / directive.removeprefix("file: ")
                        path.parent.mkdir(parents=True, exist_ok=True)
                        path.write_text("".join(f"{line}\n" for line in lines))
                    if language != "console":
                        continue
                    for command, shown in commands(lines, directive == "one command"):
                        count += 1
                        if command is None:
                            session.go_on(shown)
                        elif directive == "stays open":
                            session.start(command, shown)
                        else:
                            session.run(command, shown)
                except (Mismatch, subprocess.TimeoutExpired) as wrong:
                    sys.exit(f"{document.name}:{number}: this is not what happens:\n{wrong}")
        finally:
            session.close()
    if not count:
        sys.exit(f"{document.name} shows nothing that could be tried")
    print(f"{document.name}: {count} commands do what is shown")


if __name__ == "__main__":
    main()
