"""The lane of an HTTP sink: one batch, chunk after chunk.

A chunk is sent after the one before it was acknowledged. Acknowledged rows are durable at the receiver, so there is
nothing to finish. The lane stops to have its rule saved

- before the first chunk for a receiver that knows chunks by their keys: a repeated batch must be cut the same way;
- when such a receiver finds a chunk too large: smaller chunks have new keys, and acknowledged rows must not be sent
  again under them;
- when a receiver refuses rows: they are recorded before other rows are sent without them. Otherwise a crash in between
  would leave rows that are neither delivered nor dead letters, or send the others again under another key.

Before refused rows become dead letters, a receiver that keeps positions is asked for them: it may have some of the rows
already, from a request whose answer was lost.

After a crash: the batch is repeated by the saved rule. A receiver that keeps positions skips the rows that it has; any
other receiver gets the same chunks under the same keys."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from strandline.crash import crash_point
from strandline.errors import Conflict, Internal, Invalid, StrandlineError, Unavailable
from strandline.model.change import RefusedRows
from strandline.model.definition import MAX_VNODES
from strandline.sinks.contract import Batch, Producer, Result
from strandline.sinks.forward import encode, protocol
from strandline.sinks.forward.chunks import Chunk, CutRule, Cutter, parse_positions
from strandline.sinks.forward.client import Connection, Reply
from strandline.sinks.forward.endpoint import Endpoint, Secrets

# When this many rows of a chunk were refused, one by one, the chunk is halved; if the next rows are refused too, or the
# chunk is short, it is refused as a whole.
NAMED_ROWS = 16


@dataclass(frozen=True)
class HttpLane:
    """Sends one batch. `secrets` come from the driver: a task may lack the variable or file of a secret."""

    sink: Endpoint
    producer: Producer
    batch: Batch
    secrets: Secrets = field(repr=False, hash=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Result]:
        if self.batch.cuts is None and not self.sink.keeps_positions:
            yield Result(cuts=self.rule.to_dict())
        else:
            yield _Run(self).result(batches)

    @property
    def rule(self) -> CutRule:
        """The saved rule, or one from the sink's settings for a new batch."""
        if self.batch.cuts is not None:
            return CutRule.from_dict(self.batch.cuts)
        return CutRule(self.sink.chunk_rows, self.sink.chunk_bytes)


class _Run:
    """One run of a lane: to the batch's end, to the first error, or to a rule that must be saved."""

    def __init__(self, lane: HttpLane) -> None:
        self._sink = lane.sink
        self._producer = lane.producer
        self._connection = Connection(lane.sink, lane.secrets)
        self._cutter = Cutter(lane.batch, lane.rule)
        self._rows = 0
        self._dead: list[RefusedRows] = []

    def result(self, batches: Iterable[pa.RecordBatch]) -> Result:
        rule: CutRule | None = None
        error: StrandlineError | None = None
        try:
            rule = self._deliver(batches)
        except StrandlineError as failure:
            error = failure
        except OSError as failure:
            error = Unavailable(f"a lane could not read its rows: {failure}")
        except Exception as failure:
            error = Internal(f"a lane failed: {type(failure).__name__}: {failure}")
        finally:
            self._connection.close()
        return Result(
            rows=self._rows,
            # Only the last run of a lane counts them; it sees the whole batch.
            withheld=self._cutter.withheld if rule is None and error is None else 0,
            bytes=self._connection.bytes,
            requests=self._connection.requests,
            retries=self._connection.retries,
            dead=tuple(self._dead),
            cuts=None if rule is None else rule.to_dict(),
            error=error,
        )

    def _deliver(self, batches: Iterable[pa.RecordBatch]) -> CutRule | None:
        """Send the rows of the batch; returns a rule that must be saved before the rest."""
        for chunk in self._cutter.chunks(batches):
            if self._sink.keeps_positions:
                rule = self._send_by_position(chunk)
            else:
                rule = self._send_by_key(chunk) if chunk.rows.num_rows else None
            del chunk  # it may be a part of a large record batch
            if rule is not None:
                return rule
        return None

    def _send_by_position(self, chunk: Chunk) -> CutRule | None:
        """Send a chunk to a receiver that keeps positions; a chunk without rows moves positions too. `waiting` is its
        rest, in order: each part waits for the acknowledgement of the one before."""
        waiting = chunk.split_vnodes()
        while waiting:
            chunk = waiting.pop(0)
            if not chunk.ranges:
                continue  # a part of a history without rows moves no position
            answer = self._post_chunk(chunk)
            if answer.is_ack:
                self._count_acknowledged(chunk)
                continue
            smaller = self._cut_refused(chunk, answer)
            if len(smaller) == 1:
                return self._record_refusal(chunk, answer)
            waiting[:0] = [part for each in smaller for part in each.split_vnodes()]
        return None

    def _cut_refused(self, chunk: Chunk, answer: Reply) -> list[Chunk]:
        """The smaller chunks to send instead of a refused one; only the chunk itself when the refusal is final.
        Positions are of rows, not chunks, so it may be cut anywhere."""
        rows = chunk.rows.num_rows
        if answer.status == protocol.TOO_LARGE and rows > 1:
            self._cutter.shrink(bytes=chunk.bytes // 2)
            return chunk.halves()
        if not rows:
            raise self._connection.unexpected_answer(answer)
        if _should_halve(chunk, answer):
            self._cutter.shrink(rows=rows // 2)
            return chunk.halves()
        # A row that the receiver has must not become a dead letter.
        return chunk.split_held(held_positions(self._connection, self._sink, self._producer))

    def _send_by_key(self, chunk: Chunk) -> CutRule | None:
        """Send a chunk to a receiver that knows chunks by their keys. Refused rows are sent again only as a saved rule
        says, even if the receiver would take them now."""
        answer = self._post_chunk(chunk)
        if answer.is_ack:
            self._count_acknowledged(chunk)
            return None
        if answer.status == protocol.TOO_LARGE and chunk.rows.num_rows > 1:
            self._cutter.shrink(bytes=chunk.bytes // 2)
            return replace(self._cutter.rule, done=chunk.start)
        if _should_halve(chunk, answer):
            return self._cutter.rule.halve(chunk)
        return self._record_refusal(chunk, answer)

    def _record_refusal(self, chunk: Chunk, answer: Reply) -> CutRule:
        """Note the refused row, or the whole chunk, as dead; returns the rule without it, to be saved before the rest
        is sent."""
        row = _refused_row(chunk, answer) if len(chunk.missing) < NAMED_ROWS else None
        self._dead.append(_refused_rows(chunk, row, answer))
        return self._cutter.rule.skip_refused(chunk, row)

    def _post_chunk(self, chunk: Chunk) -> Reply:
        data, headers = encode.encode(chunk.rows, self._sink.body_format)
        headers = {**headers, protocol.KEY_HEADER: chunk.key(self._producer.generation)}
        if self._sink.keeps_positions:
            facts = {**describe_producer(self._producer), "is_first": chunk.is_first, "ranges": chunk.ranges}
            headers[protocol.CHUNK_HEADER] = json.dumps(facts)
        answer = self._connection.post(data, headers)
        if answer.status == protocol.CONFLICT:
            raise self._gap_conflict(chunk, answer)
        if answer.status == protocol.GONE:
            raise (
                outlived_conflict(self._producer, self._sink, answer)
                if self._sink.keeps_positions
                else self._connection.unexpected_answer(answer)
            )
        return answer

    def _count_acknowledged(self, chunk: Chunk) -> None:
        crash_point("sink.chunk_acked")
        self._rows += chunk.rows.num_rows

    def _gap_conflict(self, chunk: Chunk, answer: Reply) -> Conflict:
        consumer, url = self._producer.consumer, self._sink.url
        if not self._sink.keeps_positions:
            return Conflict(
                f"{url} answered 409 to {chunk.rows.num_rows} rows of sink {consumer!r}: {answer.message}",
                hint="Nothing is lost: the next tick sends them again under the same key.",
                consumer=consumer,
                url=url,
                status=protocol.CONFLICT,
            )
        held = parse_positions(answer.error.get("positions"), max(chunk.of.vnodes) + 1) or {}
        gaps = [
            (vnode, begin, held.get(vnode))
            for first, last, *begin, _, _ in chunk.ranges
            for vnode in range(first, last + 1)
            if vnode not in held or held[vnode] < tuple(begin)
        ]
        vnode, expected, found = gaps[0] if gaps else (chunk.start[0], list(chunk.start[1:]), held.get(chunk.start[0]))
        has = "knows nothing of it" if found is None else f"is at seq {found[0]}, index {found[1]}"
        return Conflict(
            f"sink {consumer!r} goes on at seq {expected[0]}, index {expected[1]} of vnode {vnode}, but {url} {has}: it"
            " was recreated, restored from a copy, or changed by someone else",
            hint=f"Nothing of the chunk was applied. To send the table again: strandline mark reset {consumer}",
            consumer=consumer,
            url=url,
            status=protocol.CONFLICT,
            vnode=vnode,
            expected=list(expected),
            found=None if found is None else list(found),
        )


def describe_producer(producer: Producer) -> dict[str, Any]:
    """The sender, as the headers name it."""
    source = {
        "lake": producer.lake_id,
        "consumer": producer.consumer,
        "table": producer.table,
        "table_generation": producer.table_generation,
    }
    return {"version": protocol.VERSION, "sink": producer.sink, "life": producer.life, "source": source}


def held_positions(line: Connection, sink: Endpoint, producer: Producer) -> dict[int, tuple[int, int]]:
    """The position of each vnode at a receiver that keeps them: it has everything before, and nothing after. Asked
    before a batch, and again when rows are refused."""
    answer = line.ask_positions({"sink": producer.sink, "life": str(producer.life)})
    if answer.status == protocol.GONE:
        raise outlived_conflict(producer, sink, answer)
    found = answer.document
    held = parse_positions(found.get("positions"), MAX_VNODES) if answer.is_ack and isinstance(found, dict) else None
    if held is not None:
        return held
    if answer.is_ack or answer.status in (protocol.NOT_FOUND, 405):
        raise _wrong_receiver(producer, sink, answer)
    raise line.unexpected_answer(answer)


def _wrong_receiver(producer: Producer, sink: Endpoint, answer: Reply) -> Invalid:
    _, slash, table = sink.url.rpartition("/ingest/")
    make = "The sink's mark did not move. "
    if slash:
        make += (
            f"The table has to exist there: strandline table create {table} --schema … --key …, or strandline ingest"
            f" {table} FILES --key …, there."
        )
    else:
        make += f"The address of a Strandline receiver ends with its table: --to {sink.url.rstrip('/')}/ingest/TABLE."
    other = (
        " For an endpoint that honours Idempotency-Key: strandline sink add … --receiver any, or"
        " HttpSink(url, receiver='any')."
    )
    is_a_receiver = answer.error.get("kind") == "NotFound" and "table" in answer.error
    return Invalid(
        f"{sink.url} answered {answer.status} to the question for its positions: it is no Strandline receiver, or has"
        f" no such table ({answer.message[:80]})",
        hint=make if is_a_receiver else make + other,
        consumer=producer.consumer,
        url=sink.url,
        status=answer.status,
    )


def outlived_conflict(producer: Producer, sink: Endpoint, answer: Reply) -> Conflict:
    """The error when a newer life of the sink has sent rows there: those of this life are older."""
    newest = answer.error.get("life")
    newer = f"begun {_format_life(newest)}, " if type(newest) is int else ""
    return Conflict(
        f"{sink.url} takes no more of this generation of sink {producer.consumer!r}, begun"
        f" {_format_life(producer.life)}: a newer generation, {newer}has sent rows there. This lake or its state was"
        " restored from a copy, or another copy of the lake sends there",
        hint=f"To send the table again, as the newest generation: strandline mark reset {producer.consumer}",
        consumer=producer.consumer,
        url=sink.url,
        status=protocol.GONE,
        life=producer.life,
        found=newest,
    )


def _format_life(life: int) -> str:
    """When a life began, for people; the bare number when it is not a valid time."""
    try:
        return dt.datetime.fromtimestamp(life / 1000, dt.UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(life)


def _refused_row(chunk: Chunk, answer: Reply) -> int | None:
    """The number of the one refused row; None when all are refused."""
    row = answer.row
    is_usable = row is not None and 0 <= row < chunk.rows.num_rows
    return row if is_usable and answer.status != protocol.TOO_LARGE else None


def _should_halve(chunk: Chunk, answer: Reply) -> bool:
    """Whether to halve a chunk: many of its rows were refused already, and as many good rows lie before the next."""
    row = _refused_row(chunk, answer)
    is_long = chunk.rows.num_rows > 2 * NAMED_ROWS
    return len(chunk.missing) >= NAMED_ROWS and is_long and row is not None and row >= NAMED_ROWS


def _refused_rows(chunk: Chunk, row: int | None, answer: Reply) -> RefusedRows:
    identities = chunk.identities(row)
    return RefusedRows(
        chunk.at(row or 0), identities.num_rows, encode.arrow_stream(identities), answer.message, answer.status
    )
