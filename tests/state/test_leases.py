"""Leases: one holder at a time by the database's clock, and fences that only rise."""

import math
import os
import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strandline as sl
from strandline.state.database import Database, now_s
from strandline.state.leases import Lease, Leases, check_fence, is_dead, this_worker
from support import answer_of, refused, start_python


@pytest.fixture
def state(state_url):
    with Database(state_url, timeout_s=20) as opened:
        yield opened


@pytest.fixture
def leases(state):
    return Leases(state)


def is_current(state, lease):
    """Whether a change under this lease's fence is let through."""
    try:
        with state.transaction() as connection:
            check_fence(connection, lease.name, lease.fence)
        return True
    except sl.Conflict:
        return False


def test_a_lease_keeps_others_out_and_says_who_since_when_and_until_when(state, leases):
    lease = leases.acquire("a", "ann", 60)
    with state.reading() as connection:
        now = now_s(connection)
    assert (lease.name, lease.owner, lease.fence) == ("a", "ann", 1)
    assert now + 50 < lease.expires_s <= now + 60
    with refused(sl.Conflict, lease="a", owner="ann", expires_s=lease.expires_s) as caught:
        leases.acquire("a", "ben", 60)
    assert now - 10 < caught.value.fields["since_s"] <= now
    assert "ann" in str(caught.value) and str(caught.value).count("UTC") == 2
    assert leases.acquire("b", "ben", 60).fence == 1, "another name is another lease"
    assert leases.find("a") == lease
    assert leases.find("c") is None


def test_an_expired_lease_is_taken_over_with_a_higher_fence_and_the_old_owner_is_out(state, leases):
    old = leases.acquire("a", "ann", 0.05)
    time.sleep(0.1)
    assert leases.find("a") is None
    assert is_current(state, old), "expired, but nobody else works there"
    new = leases.acquire("a", "ben", 60)
    assert new.fence > old.fence
    assert not is_current(state, old)
    assert is_current(state, new)
    with refused(sl.Conflict, lease="a", fence=old.fence, found=new.fence, owner="ben") as caught:
        leases.renew(old, 60)
    assert "taken over" in str(caught.value)
    leases.release(old)
    assert leases.find("a") == new, "a late release takes nothing from the new owner"


def test_an_expired_lease_that_nobody_took_is_renewed_with_its_fence(leases):
    lease = leases.acquire("a", "ann", 0.05)
    time.sleep(0.1)
    renewed = leases.renew(lease, 60)
    assert renewed.fence == lease.fence and renewed.expires_s > lease.expires_s + 50
    with refused(sl.Conflict):
        leases.acquire("a", "ben", 60)


def test_a_fence_never_falls_also_after_a_release(state, leases):
    fences = []
    for number in range(4):
        lease = leases.acquire("a", f"owner-{number}", 60)
        fences.append(lease.fence)
        leases.release(lease)
        leases.release(lease)
        assert not is_current(state, lease), "what was given back allows nothing"
        with refused(sl.Conflict):
            leases.renew(lease, 60)
    assert fences == [1, 2, 3, 4]
    with Database(state._url) as other:
        assert Leases(other).acquire("a", "x", 60).fence == 5


def test_a_lease_does_not_change_hands_in_the_middle_of_a_change(state, leases):
    old = leases.acquire("a", "ann", 0.05)
    time.sleep(0.1)
    with ThreadPoolExecutor(1) as pool:
        with state.transaction() as connection:
            check_fence(connection, "a", old.fence)
            taking = pool.submit(leases.acquire, "a", "ben", 60)
            time.sleep(0.1)
            assert not taking.done()
            before_s = now_s(connection)
        assert taking.result().expires_s >= before_s + 60, "by the clock after it waited"


def test_an_owner_that_asks_again_gets_a_new_fence_and_the_old_one_ends(state, leases):
    first = leases.acquire("a", "ann", 60)
    second = leases.acquire("a", "ann", 60)
    assert second.fence == first.fence + 1
    assert not is_current(state, first) and is_current(state, second)


def test_a_fence_that_was_never_granted_is_refused(state, leases):
    lease = leases.acquire("a", "ann", 60)
    assert not is_current(state, Lease("a", "ann", lease.fence + 1, lease.expires_s))
    assert not is_current(state, Lease("nobody", "ann", 0, 0.0))
    assert not is_current(state, Lease("nobody", "ann", 1, 0.0))


@pytest.mark.parametrize("length_s", [0, -1, float("nan"), float("inf"), True, "60", None])
def test_a_length_that_is_none_is_refused(leases, length_s):
    with refused(sl.Invalid):
        leases.acquire("a", "ann", length_s)


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", None, 7])
def test_a_name_or_owner_that_no_database_keeps_is_refused(leases, name):
    with refused(sl.Invalid):
        leases.acquire(name, "ann", 60)
    with refused(sl.Invalid):
        leases.acquire("a", name, 60)


@pytest.mark.parametrize("skew_s", [-1e6, 1e6])
def test_the_clock_of_a_client_does_not_matter(leases, monkeypatch, skew_s):
    lease = leases.acquire("a", "ann", 60)
    true_s = time.time
    monkeypatch.setattr(time, "time", lambda: true_s() + skew_s)
    with refused(sl.Conflict, owner="ann"):
        leases.acquire("a", "ben", 60)
    assert abs(leases.renew(lease, 60).expires_s - lease.expires_s) < 30
    short = leases.acquire("b", "ann", 0.05)
    monkeypatch.undo()
    time.sleep(0.1)
    assert leases.acquire("b", "ben", 60).fence == short.fence + 1


def test_of_racing_threads_one_wins(leases):
    def attempt(number):
        try:
            return leases.acquire("a", f"owner-{number}", 60)
        except sl.Conflict:
            return None

    with ThreadPoolExecutor(8) as pool:
        won = [lease for lease in pool.map(attempt, range(16)) if lease]
    assert [lease.fence for lease in won] == [1]
    assert leases.find("a") == won[0]


ACQUIRE = """
import time
from strandline.errors import Conflict
from strandline.state.leases import Leases
from strandline.state.database import Database
def work(number, url, rounds):
    won = []
    with Database(url) as state:
        leases = Leases(state)
        for turn in range(int(rounds)):
            try:
                won.append((turn, leases.acquire(f"turn-{turn}", f"owner-{number}", 60).fence))
            except Conflict:
                pass
    return won
"""


def test_of_racing_processes_one_wins_every_time(state_url, in_processes):
    won = [win for _, wins in in_processes(ACQUIRE, 3, state_url, "20") for win in wins]
    assert sorted(won) == [[turn, 1] for turn in range(20)]


TAKE_TURNS = """
import time
from strandline.errors import Conflict
from strandline.state.leases import Leases
from strandline.state.database import Database
def work(number, url, path):
    fences = []
    with Database(url) as state:
        leases = Leases(state)
        while len(fences) < 8:
            try:
                lease = leases.acquire("a", f"owner-{number}", 60)
            except Conflict:
                time.sleep(0.002)
                continue
            with open(path) as file:  # nothing else protects this counter
                count = int(file.read())
            time.sleep(0.001)
            with open(path, "w") as file:
                file.write(str(count + 1))
            fences.append(lease.fence)
            leases.release(lease)
    return fences
"""


def test_what_a_lease_protects_is_done_by_one_process_at_a_time(state_url, in_processes, tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    fences = [each for _, each in in_processes(TAKE_TURNS, 3, state_url, str(counter))]
    assert counter.read_text() == "24"
    assert sorted(fence for each in fences for fence in each) == list(range(1, 25))
    assert all(each == sorted(each) for each in fences)


ACTIONS = st.tuples(st.sampled_from(["acquire", "renew", "release", "expire"]), st.sampled_from(["ann", "ben", "cid"]))


def test_leases_do_what_a_plain_model_does(state, leases):
    names = iter(range(10_000))

    @settings(max_examples=25)
    @given(st.lists(ACTIONS, max_size=12))
    def run(actions):
        name = f"model-{next(names)}"
        holder, fence, lives = None, 0, False
        mine = {}
        for action, owner in actions:
            if action == "expire":
                if holder and lives:
                    leases.renew(mine[holder], 1e-6)
                    time.sleep(0.003)  # SQLite's clock has a millisecond
                    lives = False
                continue
            if action == "acquire":
                if holder not in (None, owner) and lives:
                    with refused(sl.Conflict, owner=holder):
                        leases.acquire(name, owner, 60)
                else:
                    fence += 1
                    mine[owner] = leases.acquire(name, owner, 60)
                    assert mine[owner].fence == fence
                    holder, lives = owner, True
            elif owner in mine and action == "renew":
                if holder == owner and mine[owner].fence == fence:
                    mine[owner] = leases.renew(mine[owner], 60)
                    lives = True
                else:
                    with refused(sl.Conflict):
                        leases.renew(mine[owner], 60)
            elif owner in mine and action == "release":
                leases.release(mine[owner])
                if holder == owner and mine[owner].fence == fence:
                    holder, lives = None, False
            found = leases.find(name)
            assert (found and found.owner) == (holder if lives else None)
            for each, lease in mine.items():
                assert is_current(state, lease) == (holder == each and lease.fence == fence)

    run()


# --- held ------------------------------------------------------------------------------------------------------


def test_a_held_lease_is_renewed_for_as_long_as_the_block_lasts_and_then_released(leases):
    with leases.hold("a", "ann", 1.2) as held:
        first = held.lease
        until_s = first.expires_s
        for _ in range(2):
            deadline_s = time.monotonic() + 10
            while held.lease.expires_s == until_s and time.monotonic() < deadline_s:
                held.check()
                with refused(sl.Conflict, owner="ann"):
                    leases.acquire("a", "ben", 60)
                time.sleep(0.02)
            assert held.lease.expires_s > until_s
            until_s = held.lease.expires_s
        assert held.fence == first.fence
    assert leases.acquire("a", "ben", 60).fence == first.fence + 1


def test_a_held_lease_is_released_when_the_block_fails(leases):
    with pytest.raises(ZeroDivisionError), leases.hold("a", "ann", 60):
        _ = 1 // 0
    assert leases.find("a") is None


def test_a_held_lease_that_another_holds_is_a_conflict(leases):
    leases.acquire("a", "ann", 60)
    with refused(sl.Conflict, owner="ann"), leases.hold("a", "ben", 60):
        raise AssertionError("the block must not run")


def test_a_held_lease_that_cannot_be_renewed_in_time_says_so_and_stays_lost(leases, monkeypatch):
    def down(*_):
        raise sl.Unavailable("the server is away")

    with leases.hold("a", "ann", 0.6) as held:
        first = held.lease
        while held.lease == first:
            held.check()
            time.sleep(0.01)
        with monkeypatch.context() as patch:
            patch.setattr(leases, "renew", down)
            time.sleep(0.7)
            for _ in range(2):
                with refused(sl.Unavailable, lease="a", owner="ann", fence=1):
                    held.check()
        time.sleep(0.1)
        with refused(sl.Unavailable):
            held.check()
    assert leases.find("a") is None


def test_a_held_lease_that_was_taken_over_says_so_before_its_time_is_over(leases):
    with leases.hold("a", "ann", 60) as held:
        held._length_s = 0.1  # renewed soon, though it has long to live
        taken = leases.acquire("a", "ann", 600)
        held.renew_until(lambda wait_s: math.isinf(wait_s) or time.sleep(wait_s))
        with refused(sl.Conflict, lease="a", fence=1, found=taken.fence):
            held.check()
    assert leases.find("a") == taken


def test_a_short_outage_is_ridden_out(leases, monkeypatch):
    calls = []
    renew = leases.renew

    def flaky(*arguments):
        calls.append(arguments)
        if len(calls) in (1, 2):
            raise sl.Unavailable("the server is away")
        return renew(*arguments)

    monkeypatch.setattr(leases, "renew", flaky)
    with leases.hold("a", "ann", 1.2) as held:
        until_s = held.lease.expires_s
        while held.lease.expires_s == until_s:
            held.check()
            time.sleep(0.02)
    assert len(calls) == 3


def test_a_release_that_fails_does_not_hide_what_the_block_did(leases, monkeypatch, caplog):
    def down(*_):
        raise sl.Unavailable("the server is away")

    monkeypatch.setattr(leases, "release", down)
    with leases.hold("a", "ann", 60):
        pass
    assert "could not be released" in caplog.text


STALLED = """
import json, os, sys, time
from strandline.errors import Conflict, StrandlineError
from strandline.state.leases import Leases, check_fence
from strandline.state.database import Database
state = Database(sys.argv[1])
with Leases(state).hold("a", "stalled", 0.5) as held:
    print("held", flush=True)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    answers = []
    try:
        held.check()
    except StrandlineError as error:
        answers.append(error.kind)
    try:
        with state.transaction() as connection:
            check_fence(connection, "a", held.fence)
    except Conflict as error:
        answers.append(error.fields["owner"])
print(json.dumps(answers))
"""


def test_a_process_that_was_stopped_and_taken_over_wakes_up_powerless(leases, state_url, tmp_path):
    process = start_python(STALLED, state_url, str(tmp_path / "go"))
    assert process.stdout.readline() == "held\n"
    process.send_signal(signal.SIGSTOP)
    try:
        deadline_s = time.monotonic() + 20
        while leases.find("a") is not None and time.monotonic() < deadline_s:
            time.sleep(0.02)
        taken = leases.acquire("a", "taker", 60)
    finally:
        (tmp_path / "go").touch()
        process.send_signal(signal.SIGCONT)
    assert answer_of(process)[-1] == "taker"
    assert leases.find("a") == taken, "nor does its release end the new lease"


# --- owners that are gone --------------------------------------------------------------------------------------

HOLD = """
import sys, time
from strandline.state.leases import Leases, this_worker
from strandline.state.database import Database
lease = Leases(Database(sys.argv[1])).acquire("a", this_worker(), 600)
print(lease.owner, flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(state_url):
    """A process that holds the lease "a" for long, and its name as an owner."""
    process = start_python(HOLD, state_url)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("is_waited_for", [True, False])
def test_a_lease_of_a_killed_process_of_this_machine_is_taken_over_at_once(state, leases, holder, is_waited_for):
    process, owner = holder
    with refused(sl.Conflict, owner=owner) as caught:
        leases.acquire("a", this_worker(), 60, title="sink 'central'")
    place = re.escape(f"{socket.gethostname()}:{process.pid}")
    assert re.match(
        rf"sink 'central' is worked on by {place} since .* UTC, at least until .* UTC$", caught.value.message
    )
    old = leases.find("a")
    assert (old.owner, old.fence) == (owner, 1)
    process.send_signal(signal.SIGKILL)
    if is_waited_for:
        process.wait()
    else:
        deadline_s = time.monotonic() + 20
        while not is_dead(owner) and time.monotonic() < deadline_s:
            time.sleep(0.005)
        assert os.path.exists(f"/proc/{process.pid}"), "it has ended, but its number is not free yet"
    assert leases.find("a") is None
    new = leases.acquire("a", this_worker(), 60)
    assert new.fence == 2
    assert not is_current(state, old) and is_current(state, new)


def test_a_lease_of_a_stopped_process_is_not_taken(leases, holder):
    process, owner = holder
    process.send_signal(signal.SIGSTOP)
    with refused(sl.Conflict, owner=owner):
        leases.acquire("a", this_worker(), 60)


def test_workers_of_one_process_are_told_apart(leases):
    first, second = this_worker(), this_worker()
    assert first != second
    leases.acquire("a", first, 60)
    with refused(sl.Conflict, owner=first):
        leases.acquire("a", second, 60)


def test_an_owner_is_dead_when_its_process_is_gone(holder):
    process, owner = holder
    assert not is_dead(owner) and not is_dead(this_worker()) and not is_dead("someone")
    process.kill()
    process.wait()
    assert is_dead(owner)
