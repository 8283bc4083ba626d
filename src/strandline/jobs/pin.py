"""Pin a table: keep it readable at a seq and after it."""

from __future__ import annotations

from strandline.errors import Invalid, NotRetained
from strandline.model import duration
from strandline.model.text import check_text
from strandline.tables.pins import HeldPin, new_pin
from strandline.tables.store import At, TableStore


def pin_table(table: TableStore, at: At, *, name: str | None, why: str, length: object) -> HeldPin:
    """Keep a table readable at a seq until the pin is released, or has not been renewed for `length`. With the `name`
    of a pin that exists, that pin moves."""
    check_text("why", why)
    length_s = duration.seconds(length, "length")
    if not length_s:
        raise Invalid("length is 0; a pin lasts for a time", table=table.name)
    merge = table.merge(at)
    before = next((pin for pin in table.pins.all() if pin.name == name), None)
    pin = new_pin(
        why,
        name=name,
        length_s=length_s,
        seq=merge.seq,
        log_version=merge.log.head,
        baseline_version=merge.baseline.version,
    )

    def check() -> None:
        """After this, a process that gives the seq up has either done so already or sees the pin."""
        table.baseline.note_pin()
        table.merge(merge.seq)

    table.pins.put(pin)
    try:
        check()
    except NotRetained:
        if before is None:
            table.pins.release(pin.name)
        else:
            table.pins.put(before)
        raise
    return HeldPin(pin, table.pins, check)
