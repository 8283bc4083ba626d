"""What a file system says becomes one kind of error, with the path, and says whether anything has happened."""

import errno
import os

import pytest

import strandline as sl
from strandline.storage import os_errors
from support import refused

REFUSALS = ["EACCES", "EPERM", "ENOSPC", "EDQUOT", "EROFS", "EFBIG", "ENAMETOOLONG", "ENOTDIR", "EISDIR"]


def failing(name):
    return OSError(getattr(errno, name), os.strerror(getattr(errno, name)))


@pytest.mark.parametrize("name", REFUSALS)
def test_an_error_that_is_sure_to_have_had_no_effect_is_a_refusal(name):
    with refused(sl.Unavailable, path="/a", refusal=name) as caught, os_errors.translate_errors("/a"):
        raise failing(name)
    assert os_errors.is_refusal(caught.value)
    assert os_errors.is_forbidden(caught.value) == (name in ("EACCES", "EPERM", "EROFS"))


def test_an_error_that_tells_nothing_of_its_effect_is_no_refusal():
    with refused(sl.Unavailable, path="/a") as caught, os_errors.translate_errors("/a"):
        raise failing("EIO")
    assert not os_errors.is_refusal(caught.value)
    assert not os_errors.is_refusal(failing("EACCES"))


def test_the_caller_may_know_better_whether_it_had_an_effect():
    assert os_errors.is_refusal(os_errors.unavailable(failing("EIO"), "/a", is_refusal=True))
    assert not os_errors.is_refusal(os_errors.unavailable(failing("ENOSPC"), "/a", is_refusal=False))


@pytest.mark.parametrize(
    "error", [FileNotFoundError(errno.ENOENT, "gone"), OSError("words of a library"), ValueError("no")], ids=repr
)
def test_what_is_not_the_systems_refusal_stays_as_it_is(error):
    with pytest.raises(type(error)) as caught, os_errors.translate_errors("/a"):
        raise error
    assert caught.value is error


def test_only_the_errors_that_are_asked_for_are_translated():
    with pytest.raises(PermissionError), os_errors.translate_errors("/a", only=os_errors.WRITING):
        raise failing("EACCES")
    with refused(sl.Unavailable, refusal="ENOSPC"), os_errors.translate_errors("/a", only=os_errors.WRITING):
        raise failing("ENOSPC")


def test_words_of_a_library_that_repeat_the_system_are_known():
    found = os_errors.from_message(f"IO Error: cannot write: {os.strerror(errno.ENOSPC)}", "/a")
    assert found is not None and found.fields == {"path": "/a", "refusal": "ENOSPC"}
    assert os_errors.from_message("syntax error", "/a") is None


def test_files_of_a_commit_that_was_refused_are_deleted_and_others_stay(storage):
    for name in ("a", "b"):
        storage.put_new(name, b"x")
    os_errors.delete_if_refused(sl.Conflict("lost the race"), storage, ["a"])
    assert storage.exists("a")
    os_errors.delete_if_refused(os_errors.unavailable(failing("ENOSPC"), "/a"), storage, ["a"])
    assert not storage.exists("a") and storage.exists("b")
