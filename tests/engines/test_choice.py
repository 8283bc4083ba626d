import pytest

from strandline.engines.choice import BULK, DELIVERY, ENGINE, DriverLimit
from strandline.errors import Invalid


@pytest.mark.parametrize("limit", [BULK, DELIVERY])
def test_the_driver_takes_a_limit_and_nothing_past_it(limit: DriverLimit) -> None:
    assert limit.holds(rows=limit.rows, raw_bytes=limit.raw_bytes)
    assert not limit.holds(rows=limit.rows + 1)
    assert not limit.holds(raw_bytes=limit.raw_bytes + 1)


def test_the_environment_decides_for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = DriverLimit(10, 10)
    assert limit.takes(rows=10) and not limit.takes(rows=11)
    monkeypatch.setenv(ENGINE, "driver")
    assert limit.takes(rows=11)
    monkeypatch.setenv(ENGINE, "spark")
    assert not limit.takes(rows=1)
    monkeypatch.setenv(ENGINE, "gpu")
    with pytest.raises(Invalid, match="auto, driver or spark"):
        limit.takes(rows=1)
