"""Serve the lake over HTTP."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from strandline.cli.answer import Answer
from strandline.cli.verb import Call


def serve(
    call: Call,
    host: Annotated[
        str, typer.Option(help="The address to listen on. One that other machines can reach needs a token.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8321,
    body_mib: Annotated[int, typer.Option(min=1, help="The largest body of a request.")] = 64,
    body_rows: Annotated[int, typer.Option(min=1, help="How many rows a body may have.")] = 1_000_000,
    body_columns: Annotated[
        int, typer.Option(min=1, help="How many columns a body may have, with the fields inside of columns.")
    ] = 4096,
    table_columns: Annotated[
        int, typer.Option(min=1, help="Requests may add columns to a table up to this number.")
    ] = 1000,
    queue_mib: Annotated[int, typer.Option(min=1, help="The memory for all running requests.")] = 1024,
    queue_requests: Annotated[int, typer.Option(min=1, help="How many requests may run at once.")] = 1000,
    commit_rows: Annotated[int, typer.Option(min=1, help="How many rows may share a commit.")] = 200_000,
    linger_ms: Annotated[
        float, typer.Option(min=0, help="How long a commit waits for requests that are arriving.")
    ] = 5,
    no_evolve: Annotated[bool, typer.Option("--no-evolve", help="Do not add a sender's new columns.")] = False,
) -> Answer:
    """Serve the lake over HTTP: POST /ingest/TABLE, GET /status, GET /healthz.

    Ctrl-C or SIGTERM stops it. Running requests are committed and answered first."""
    # The server's libraries load late: no other verb needs them.
    from strandline.server import run

    lake = call.lake()
    # A bucket for which no state was ever named has no tokens.
    has_state = lake.storage.is_local or lake.has_state

    def listening(url: str) -> None:
        document = json.dumps({"lake": lake.storage.uri, "url": url})
        sys.stdout.write(f"{document if call.is_json else f'Serving {lake.storage.uri} on {url}'}\n")
        sys.stdout.flush()

    run.serve(
        lake,
        tokens=lake.tokens() if has_state else None,
        host=host,
        port=port,
        on_listening=listening,
        body_bytes=body_mib << 20,
        queue_bytes=queue_mib << 20,
        queue_requests=queue_requests,
        commit_rows=commit_rows,
        linger_ms=linger_ms,
        body_rows=body_rows,
        body_columns=body_columns,
        table_columns=table_columns,
        evolve=not no_evolve,
    )
    # The one line of its output was printed when it began to listen.
    raise typer.Exit
