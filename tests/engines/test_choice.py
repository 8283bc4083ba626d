import pytest

from strandline.engines.choice import BULK, DELIVERY, ENGINE, DriverLimit, engine_of_call
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


def test_a_call_decides_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = DriverLimit(10, 10, 5)
    assert limit.takes(files=5) and not limit.takes(files=6)
    assert not limit.is_forced
    monkeypatch.setenv(ENGINE, "driver")
    with engine_of_call("spark"):
        assert not limit.takes(rows=1) and limit.is_forced
        with engine_of_call(None):
            assert limit.takes(rows=11)
    assert limit.takes(rows=11)
    with pytest.raises(Invalid, match="engine is 'gpu'"), engine_of_call("gpu"):  # type: ignore[arg-type]
        pass
