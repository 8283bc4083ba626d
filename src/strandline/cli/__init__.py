"""The command line: one verb a file. Each verb makes an `Answer`, which is shown or, with `--json`, printed as one
JSON document. A verb's file is loaded when the verb is called, or when help lists all of them.

This module loads almost nothing: before `main` runs, Ctrl-C would print a stack trace."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.cli.interrupts import end_on_interrupt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from strandline.cli.parser import app

__all__ = ["app", "main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and end: 0 well, 1 an error, 2 a usage error. Given `arguments`, the process goes on."""
    if arguments is None:
        end_on_interrupt()
    # Not before Ctrl-C is heard.
    from strandline.cli.parser import run_words

    run_words(arguments)


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(f"module 'strandline.cli' has no attribute {name!r}")
    from strandline.cli import parser

    return parser.app
