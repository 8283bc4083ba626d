"""Runs the code blocks of a documentation page, in order, in a folder of their own.

- ```python blocks of a page share their variables. A ```text block after one is what it prints.
- ```console blocks are typed into one shell. A line that starts with `$ ` is a command and must end with 0; the lines
  below it are what it prints. Without such lines its output is not compared.
- ```sql blocks begin with a comment that names the engine: `-- DuckDB`, `-- Spark SQL` or `-- Strandline`.
- ```json, ```ini, ```toml blocks must parse. ```mermaid and ```dockerfile blocks are only looked at by people.
- An HTML comment `<!-- test python … -->` (or console) is a block that readers do not see: rows, servers, keys.
- `<!-- test exit 1 -->` before a console block is the exit code of its last command.

In expected output `…` stands for anything. `strandline serve` and `strandline run` go on in the background until the
page ends; `8321` becomes a free port, and `s3://bucket` a prefix of the test's S3 server."""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

import strandline as sl

_BLOCK = re.compile(
    r"^```(?P<language>[a-z]+)\n(?P<text>.*?)^```$|^<!-- test (?P<hidden>[a-z]+) ?(?P<hidden_text>.*?)-->$", re.S | re.M
)
_SERVICE = re.compile(r"strandline( --\S+ \S+)* (serve|run)\b")
_LOOKED_AT = {"mermaid", "dockerfile", "text"}


@dataclass(frozen=True)
class Block:
    """A code block of a page, and the line where it begins."""

    language: str
    text: str
    line: int


def find_blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            found["language"] or found["hidden"],
            found["text"] if found["language"] else found["hidden_text"],
            text.count("\n", 0, found.start()) + 1,
        )
        for found in _BLOCK.finditer(text)
    ]


def expect(printed: str, expected: str, where: str) -> None:
    """Compare output with what the page says; `…` stands for anything, and the width of a line's end does not count."""
    lines = [re.escape(line.rstrip()).replace("…", ".*?") for line in expected.strip("\n").split("\n")]
    told = "\n".join(line.rstrip() for line in printed.strip("\n").split("\n"))
    assert re.fullmatch("\n".join(lines), told, re.S), f"{where} prints\n{told}\nthe page says\n{expected}"


@dataclass
class PageRun:
    """One run of a page's blocks. `substitute` turns a text of the page into the same text for this machine."""

    page: Path
    folder: Path
    environment: dict[str, str]
    substitute: Callable[[str], str] = lambda text: text
    find_spark: Callable[[], Any] = lambda: None
    names: dict[str, Any] = field(default_factory=dict)
    printed: str = ""
    exit_code: int = 0

    def run(self) -> None:
        self.names["spark"] = self.find_spark()
        with contextlib.chdir(self.folder), _set_environment(self.environment), self._open_shell() as shell:
            for block in find_blocks(self.page):
                where = f"{self.page.name}:{block.line}"
                text = self.substitute(block.text)
                match block.language:
                    case "python":
                        self._run_python(text, where)
                    case "console":
                        self._run_console(shell, text, where)
                    case "sql":
                        self._run_sql(text, where)
                    case "exit":
                        self.exit_code = int(text)
                    case "json":
                        json.loads(text)
                    case "toml":
                        tomllib.loads(text)
                    case "ini":
                        configparser.ConfigParser(strict=False).read_string(text)
                    case other:
                        assert other in _LOOKED_AT, f"{where}: no rule for a block of {other}"
                if block.language == "text":
                    expect(self.printed, text, where)
                    self.printed = ""

    def _run_python(self, text: str, where: str) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(text, where, "exec"), self.names)
        self.printed = out.getvalue()

    def _run_sql(self, text: str, where: str) -> None:
        engine = text.split("\n", 1)[0].removeprefix("--").split(";")[0].strip()
        match engine:
            case "DuckDB":
                duckdb.sql(text).show() if text.lstrip("-").count(";") <= 1 else duckdb.execute(text)
            case "Spark SQL":
                self.find_spark().sql(text).collect()
            case "Strandline":
                self.printed = f"{sl.Lake('./lake').sql(text).to_pylist()}\n"
            case other:
                raise AssertionError(
                    f"{where}: no engine {other!r}; begin with -- DuckDB, -- Spark SQL or -- Strandline"
                )

    def _run_console(self, shell: Shell, text: str, where: str) -> None:
        parts = re.split(r"^\$ ", text, flags=re.M)
        assert not parts[0].strip(), f"{where}: a console block begins with a command"
        for number, part in enumerate(parts[1:]):
            command, expected = _split_command(part)
            printed, code = shell.type(command)
            is_last = number == len(parts) - 2
            wanted = self.exit_code if is_last else 0
            assert code == wanted, f"{where}: {command}\nends with {code}, not {wanted}:\n{printed}"
            if expected.strip():
                expect(printed, expected, f"{where}: {command}")
        self.exit_code = 0

    @contextlib.contextmanager
    def _open_shell(self) -> Iterator[Shell]:
        shell = Shell(self.folder, {**os.environ, **self.environment})
        try:
            yield shell
        finally:
            shell.close()


class Shell:
    """A person's terminal: one bash, which keeps its folder and variables between commands."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._services: list[subprocess.Popen[bytes]] = []
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def type(self, command: str) -> tuple[str, int]:
        """Run a command; what it printed, and its exit code."""
        if _SERVICE.match(command):
            return self._start_service(command), 0
        assert self._bash.stdin and self._bash.stdout
        self._bash.stdin.write(f"{{ {command}\n}} < /dev/null\necho --end-$?-\n")
        self._bash.stdin.flush()
        printed = ""
        for line in self._bash.stdout:
            end = re.search(r"--end-(\d+)-$", line.rstrip("\n"))
            if end:
                return printed + line[: end.start()], int(end[1])
            printed += line
        raise AssertionError(f"the shell ended at: {command}\n{printed}")

    def _start_service(self, command: str) -> str:
        """Start a server or a loop; what it printed until it was ready."""
        log = self._folder / f"service-{len(self._services)}.log"
        with log.open("wb") as out:
            service = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self._folder,
                env=self._environment,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self._services.append(service)
        for _ in range(600):
            printed = log.read_text()
            if "\n" in printed:
                return printed
            assert service.poll() is None, f"{command} ended: {printed}"
            time.sleep(0.1)
        raise AssertionError(f"{command} printed nothing for a minute")

    def close(self) -> None:
        for service in self._services:
            service.send_signal(signal.SIGTERM)
        for service in self._services:
            try:
                service.wait(10)
            except subprocess.TimeoutExpired:  # it finishes a tick to a destination that does not answer
                service.kill()
                service.wait(10)
        assert self._bash.stdin
        self._bash.stdin.close()
        self._bash.wait(60)


def _split_command(part: str) -> tuple[str, str]:
    """A command, with the lines that a backslash or a here-document adds to it, and its expected output."""
    lines = part.split("\n")
    count = 1
    while lines[count - 1].endswith("\\"):
        count += 1
    if end := re.search(r"<<\s*'?(\w+)'?", lines[0]):
        count = lines.index(end[1]) + 1
    return "\n".join(lines[:count]), "\n".join(lines[count:])


@contextlib.contextmanager
def _set_environment(environment: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
