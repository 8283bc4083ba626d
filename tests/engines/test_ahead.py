"""Pieces of a file are converted ahead, in order, and a reader that stops early holds up nobody."""

import threading
from collections.abc import Iterator

import pytest

from strandline.engines.ahead import convert_ahead


def test_results_keep_their_order() -> None:
    assert list(convert_ahead(lambda n: n * n, range(100))) == [n * n for n in range(100)]


def test_no_more_than_a_few_pieces_are_taken_ahead() -> None:
    taken = []

    def pieces() -> Iterator[int]:
        for n in range(100):
            taken.append(n)
            yield n

    assert next(convert_ahead(abs, pieces())) == 0
    assert taken == [0, 1, 2]


def test_an_error_comes_at_its_piece() -> None:
    found = convert_ahead(lambda n: 1 // n, [1, 0, 1])
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)


def test_closing_does_not_wait_for_a_thread() -> None:
    """A reader may be closed by the garbage collector while another thread starts: to wait there is a deadlock."""
    go, begun = threading.Event(), threading.Event()

    def convert(n: int) -> int:
        if n:
            begun.set()
            go.wait(60)
        return n

    found = convert_ahead(convert, range(10))
    assert next(found) == 0
    assert begun.wait(60)
    closing = threading.Thread(target=found.close)
    closing.start()
    closing.join(30)
    was_waiting = closing.is_alive()
    go.set()
    closing.join(30)
    assert not was_waiting
