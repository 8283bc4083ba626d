"""What every storage promises, on every storage."""

import base64
import json
import pickle
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

import strandline as sl
from strandline.storage.contract import StagedFile
from strandline.storage.open import LocalStorage, S3Storage, open_storage
from support import BIN, BUCKET, ITEMS, SECRET, free_ports, options_for, python, refused, serving


@pytest.fixture(params=["local", "s3"])
def storage(request, tmp_path):
    if request.param == "local":
        return LocalStorage(str(tmp_path / "lake"))
    return S3Storage(BUCKET, uuid.uuid4().hex, options_for(request.getfixturevalue("seaweed")))


def write(storage, path, data):
    with storage.output(path) as stream:
        stream.write(data)


def test_a_new_file_is_created_once(storage):
    assert storage.put_new("a/b/c.json", b"first")
    assert not storage.put_new("a/b/c.json", b"second")
    assert storage.read("a/b/c.json") == b"first"


def test_of_many_creators_one_wins_and_its_bytes_stay(storage):
    for round_ in range(2):
        start = threading.Barrier(8)

        def create(racer, path=f"race/{round_}", start=start):
            start.wait()
            return storage.put_new(path, b"%d" % racer)

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(create, range(8)))
        assert won.count(True) == 1
        assert storage.read(f"race/{round_}") == b"%d" % won.index(True)


def test_the_self_test_passes_and_leaves_nothing(storage):
    storage.check_put_new()
    assert list(storage.list("")) == []


def test_an_output_appears_whole_when_its_block_ends(storage):
    with storage.output("x/y.bin") as stream:
        stream.write(b"abc")
        assert stream.tell() == 3
        assert not storage.exists("x/y.bin")
        stream.write(b"def")
    assert storage.read("x/y.bin") == b"abcdef"


def test_an_output_of_several_megabytes_comes_back_whole(storage):
    data = bytes(range(256)) * 80_000
    with storage.output("big.bin") as stream:
        for at in range(0, len(data), 1_000_000):
            stream.write(data[at : at + 1_000_000])
    assert storage.read("big.bin") == data
    with storage.input("big.bin") as file:
        assert file.size() == len(data)
        file.seek(5_000_001)
        assert file.read(3) == data[5_000_001:5_000_004]
        file.seek(-2, 2)
        assert file.read() == data[-2:]


@pytest.mark.parametrize("size", [10, 12_000_000])
def test_an_output_whose_block_fails_never_appears(storage, size):
    with pytest.raises(ZeroDivisionError), storage.output("x/half.bin") as stream:
        stream.write(b"x" * size)
        raise ZeroDivisionError
    assert not storage.exists("x/half.bin")
    assert list(storage.list("")) == []
    assert list(storage.temporaries("")) == []


def test_an_output_replaces_a_file_of_its_name(storage):
    write(storage, "same", b"one")
    write(storage, "same", b"two")
    assert storage.read("same") == b"two"


def test_a_file_that_is_not_there_is_a_plain_file_not_found(storage):
    for open_it in (storage.read, storage.input):
        with pytest.raises(FileNotFoundError):
            open_it("no/such.file")
    assert not storage.exists("no/such.file")


def test_listing_names_files_below_a_folder_by_their_path_and_size(storage):
    for path in ("a/1", "a/b/2", "ab/3", "c"):
        write(storage, path, path.encode())
    assert {(info.path, info.size) for info in storage.list("a")} == {("a/1", 3), ("a/b/2", 5)}
    assert {info.path for info in storage.list("a/")} == {"a/1", "a/b/2"}
    assert {info.path for info in storage.list("")} == {"a/1", "a/b/2", "ab/3", "c"}
    assert list(storage.list("nothing")) == []


def test_deleting_is_final_and_repeatable(storage):
    write(storage, "a/1", b"x")
    write(storage, "a/2", b"x")
    storage.delete(["a/1", "a/none"])
    storage.delete(["a/1"])
    assert [info.path for info in storage.list("a")] == ["a/2"]


def test_a_storage_travels_to_other_processes(storage):
    write(storage, "x", b"here")
    assert pickle.loads(pickle.dumps(storage)).read("x") == b"here"


def test_secrets_are_not_shown():
    assert SECRET not in repr(S3Storage(BUCKET, "x", options_for("http://127.0.0.1:1")))


# --- in two steps ----------------------------------------------------------------------------------------------

SIZES = [0, 10, 20_000_000]


def stage(storage, path, data=b"staged"):
    with storage.stage(path) as stage:
        stage.stream.write(data)
    return stage.staged


def temporaries(storage, prefix=""):
    return {info.path for info in storage.temporaries(prefix)}


@pytest.mark.parametrize("size", SIZES)
def test_a_staged_file_is_invisible_until_it_is_published(storage, size):
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    with storage.stage("x/y.bin") as stage:
        stage.stream.write(data[:7])
        stage.stream.write(data[7:])
        assert stage.stream.tell() == size
        assert list(storage.list("")) == []
    staged = stage.staged
    assert (staged.path, staged.size) == ("x/y.bin", size)
    assert not storage.exists("x/y.bin")
    assert list(storage.list("")) == []
    storage.publish([staged])
    assert storage.read("x/y.bin") == data
    assert [(info.path, info.size) for info in storage.list("")] == [("x/y.bin", size)]
    assert temporaries(storage) == set()


def test_many_staged_files_are_published_at_once(storage):
    staged = [stage(storage, f"x/{n % 3}/{n}", b"%d" % n) for n in range(20)]
    assert list(storage.list("")) == []
    storage.publish(iter(staged))
    assert {info.path for info in storage.list("")} == {f"x/{n % 3}/{n}" for n in range(20)}
    assert all(storage.read(f"x/{n % 3}/{n}") == b"%d" % n for n in range(20))
    assert temporaries(storage) == set()
    storage.publish([])


def test_a_staged_file_that_is_given_up_leaves_nothing(storage):
    kept, given_up = stage(storage, "x/kept"), stage(storage, "x/gone")
    for _ in range(2):
        storage.delete([given_up.temporary])
    with refused(sl.Conflict, path="x/gone"):
        storage.publish([given_up])
    storage.publish([kept])
    assert [info.path for info in storage.list("")] == ["x/kept"]
    assert temporaries(storage) == set()


PUBLISH = """
import base64, pickle, sys
storage, staged = pickle.loads(base64.b64decode(sys.argv[1]))
storage.publish(staged)
"""


def test_staged_files_travel_and_are_published_by_another_process(storage):
    staged = [stage(storage, "x/1", b"one"), stage(storage, "x/2", b"2" * 9_000_000)]
    assert [StagedFile.from_dict(json.loads(json.dumps(each.to_dict()))) for each in staged] == staged
    done = python(PUBLISH, base64.b64encode(pickle.dumps((storage, staged))).decode())
    assert done.returncode == 0, done.stderr
    assert storage.read("x/1") == b"one"
    assert storage.read("x/2") == b"2" * 9_000_000


def test_to_publish_twice_is_no_error(storage):
    staged = stage(storage, "x/y", b"once")
    for _ in range(3):
        storage.publish([staged])
    assert storage.read("x/y") == b"once"
    assert temporaries(storage) == set()


def test_a_file_that_is_not_ours_is_not_taken_for_published(storage):
    staged = stage(storage, "x/y", b"ours, given up")
    storage.delete([staged.temporary])
    write(storage, "x/y", b"theirs")
    with refused(sl.Conflict, path="x/y"):
        storage.publish([staged])
    assert storage.read("x/y") == b"theirs"


def test_publishing_replaces_a_file_of_its_name(storage):
    write(storage, "same", b"one")
    staged = stage(storage, "same", b"two")
    assert storage.read("same") == b"one"
    storage.publish([staged])
    assert storage.read("same") == b"two"


@pytest.mark.parametrize("size", SIZES)
def test_a_stage_whose_block_fails_leaves_nothing(storage, size):
    with pytest.raises(ZeroDivisionError), storage.stage("x/half.bin") as stage:
        stage.stream.write(b"x" * size)
        raise ZeroDivisionError
    assert not hasattr(stage, "staged")
    assert list(storage.list("")) == []
    assert temporaries(storage) == set()


def test_an_error_of_the_block_itself_stays_what_it_is(storage):
    for write_to in (storage.output, storage.stage):
        with pytest.raises(FileNotFoundError, match="something else"), write_to("x/y"):
            raise FileNotFoundError("something else")


def test_unfinished_files_are_listed_below_a_folder_only(storage):
    before_s = storage.now_s()
    staged = {path: stage(storage, path, path.encode()) for path in ("a/1", "a/b/2", "ab/3", "c")}
    assert temporaries(storage) == {each.temporary for each in staged.values()}
    for prefix in ("a", "a/"):
        assert temporaries(storage, prefix) == {staged["a/1"].temporary, staged["a/b/2"].temporary}
    assert temporaries(storage, "nothing") == set()
    for info in storage.temporaries(""):
        path = next(path for path, each in staged.items() if each.temporary == info.path)
        assert info.size == len(path)
        assert before_s - 2 <= info.modified_s <= storage.now_s() + 2
    storage.delete(each.temporary for each in staged.values())
    assert temporaries(storage) == set()


@pytest.mark.parametrize("name", ["a b", "p=1/x", "ü", "a+b", "a%20b", "x~y", "it's"])
def test_a_name_is_the_same_file_however_it_is_written(storage, name):
    for data in (b"output", b"staged"):
        if data == b"staged":
            storage.publish([stage(storage, name, data)])
        else:
            write(storage, name, data)
        assert storage.read(name) == data
        assert [info.path for info in storage.list("")] == [name]


@pytest.mark.parametrize("address", ["gs://bucket/x", "s3:///x", "s3://", "http://host/x"])
def test_an_address_that_is_no_storage_is_refused(address):
    with refused(sl.Invalid):
        open_storage(address)


def test_storage_options_go_with_s3_only(tmp_path):
    with refused(sl.Invalid):
        sl.Lake(tmp_path, storage_options={"endpoint": "http://localhost"})


def test_a_store_that_does_not_answer_is_unavailable():
    (port,) = free_ports(1)
    options = {**options_for(f"http://127.0.0.1:{port}"), "retry_config": {"max_retries": 0}}
    with refused(sl.Unavailable):
        S3Storage(BUCKET, "x", options).read("y")


def test_a_store_that_lets_two_creators_win_is_refused(tmp_path):
    (port,) = free_ports(1)
    endpoint = f"http://127.0.0.1:{port}"
    (tmp_path / "data" / BUCKET).mkdir(parents=True)
    command = [str(BIN / "rclone"), "serve", "s3", "--auth-key", "key,secret-key", "--addr", f"127.0.0.1:{port}"]
    with serving([*command, str(tmp_path / "data")], endpoint, tmp_path / "rclone.log"):
        with refused(sl.Invalid) as caught:
            sl.Lake(f"s3://{BUCKET}/lake", storage_options=options_for(endpoint)).create_table("items", ITEMS)
        assert caught.value.fields["winners"] > 1
        assert [path for path in (tmp_path / "data").rglob("*") if path.is_file()] == []
