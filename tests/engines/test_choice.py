import pytest

from strandline.engines.choice import BULK, DELIVERY, DriverLimit


@pytest.mark.parametrize("limit", [BULK, DELIVERY])
def test_the_driver_takes_a_limit_and_nothing_past_it(limit: DriverLimit) -> None:
    assert limit.holds(rows=limit.rows, raw_bytes=limit.raw_bytes)
    assert not limit.holds(rows=limit.rows + 1)
    assert not limit.holds(raw_bytes=limit.raw_bytes + 1)
