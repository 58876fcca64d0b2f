from __future__ import annotations

import gzip
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from torchprof_hooks.session.trace_writer import PARTIAL, new_file


def write(directory: Path, content: bytes = b"new") -> str:
    """Write a file; returns what it is called."""
    with new_file(directory, "trace", ".json") as new:
        new.file.write(content)
    return new.path.name


def write_and_raise(directory: Path, error: BaseException) -> None:
    with new_file(directory, "trace", ".json") as new:
        new.file.write(b"half of")
        raise error


def content_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_a_file_is_there_when_the_block_is_left_and_not_before(tmp_path: Path) -> None:
    with new_file(tmp_path, "trace", ".json") as new:
        new.file.write(b"first ")
        new.file.flush()
        assert new.path == tmp_path / "trace.json"
        assert [*content_of(tmp_path)] == ["trace.json" + PARTIAL]
        new.file.write(b"second")
    assert content_of(tmp_path) == {"trace.json": b"first second"}
    assert new.file.closed


@pytest.mark.parametrize(
    "error", [ValueError("no"), OSError("full"), KeyboardInterrupt(), SystemExit()]
)
def test_nothing_is_left_of_a_block_that_raises(
    error: BaseException, tmp_path: Path
) -> None:
    with pytest.raises(type(error)) as raised:
        write_and_raise(tmp_path, error)
    assert raised.value is error
    assert content_of(tmp_path) == {}


def test_a_name_that_was_given_up_is_free_again(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"):
        write_and_raise(tmp_path, ValueError("no"))
    assert write(tmp_path) == "trace.json"


def test_the_block_may_close_the_file(tmp_path: Path) -> None:
    with (
        new_file(tmp_path, "trace", ".json.gz") as new,
        new.file,
        gzip.GzipFile(fileobj=new.file, mode="wb") as compressed,
    ):
        compressed.write(b"content")
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == b"content"


def test_an_empty_block_makes_an_empty_file(tmp_path: Path) -> None:
    with new_file(tmp_path, "trace", ".json"):
        pass
    assert content_of(tmp_path) == {"trace.json": b""}


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        ([], "trace.json"),
        (["trace.json"], "trace-2.json"),
        (["trace.json", "trace-2.json"], "trace-3.json"),
        (["trace-2.json"], "trace.json"),
        (["trace.json", "trace-3.json"], "trace-2.json"),
        (["trace", "trace.json.gz", "other.json"], "trace.json"),
        # Somebody is writing these, or was.
        (["trace.json" + PARTIAL], "trace-2.json"),
        (["trace.json", "trace-2.json" + PARTIAL], "trace-3.json"),
        (["trace.json", "trace.json" + PARTIAL], "trace-2.json"),
    ],
)
def test_the_first_free_number_is_taken_and_all_else_stays(
    existing: list[str], expected: str, tmp_path: Path
) -> None:
    others = {name: f"content of {name}".encode() for name in existing}
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)

    assert write(tmp_path) == expected
    assert content_of(tmp_path) == {**others, expected: b"new"}


def test_the_file_of_somebody_else_stays_when_the_block_raises(tmp_path: Path) -> None:
    others = {"trace.json": b"complete", "trace-2.json" + PARTIAL: b"incomplete"}
    for name, content in others.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="no"):
        write_and_raise(tmp_path, ValueError("no"))
    assert content_of(tmp_path) == others


def test_a_directory_has_its_name(tmp_path: Path) -> None:
    (tmp_path / "trace.json").mkdir()
    assert write(tmp_path) == "trace-2.json"


def test_numbers_stand_ahead_of_the_suffix(tmp_path: Path) -> None:
    for _ in range(3):
        with new_file(tmp_path, "timeline-7.5", ".json.gz"):
            pass
    assert set(content_of(tmp_path)) == {
        "timeline-7.5.json.gz",
        "timeline-7.5-2.json.gz",
        "timeline-7.5-3.json.gz",
    }


def test_files_that_are_written_at_once_have_names_of_their_own(tmp_path: Path) -> None:
    with new_file(tmp_path, "trace", ".json") as outer:
        with new_file(tmp_path, "trace", ".json") as inner:
            inner.file.write(b"inner")
        outer.file.write(b"outer")
    assert content_of(tmp_path) == {"trace.json": b"outer", "trace-2.json": b"inner"}


def test_directories_that_are_missing_are_made(tmp_path: Path) -> None:
    directory = tmp_path / "runs" / "7" / "traces"
    assert write(directory) == "trace.json"
    assert content_of(directory) == {"trace.json": b"new"}


def test_many_threads_get_files_of_their_own(tmp_path: Path) -> None:
    threads, rounds = 16, 8
    directory = tmp_path / "made" / "by all"
    barrier = Barrier(threads)

    def work(thread: int) -> dict[str, bytes]:
        written = {}
        for number in range(rounds):
            content = f"{thread} {number}\n".encode() * 1_000
            barrier.wait()
            written[write(directory, content)] = content
        return written

    with ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(work, range(threads)))

    written = {name: content for part in parts for name, content in part.items()}
    assert content_of(directory) == written
    names = {"trace.json", *(f"trace-{n}.json" for n in range(2, threads * rounds + 1))}
    assert set(written) == names


@pytest.mark.parametrize("below", ["file", "file/traces"])
def test_where_no_directory_can_be_is_an_os_error(below: str, tmp_path: Path) -> None:
    # Also for root, who may write to any directory.
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises(OSError, match="file"):
        write(tmp_path / below)
    assert content_of(tmp_path) == {"file": b"in the way"}


@pytest.mark.parametrize("length", [250, 300])  # too long with what is added, and so
def test_a_name_that_no_file_can_have_is_an_os_error(
    length: int, tmp_path: Path
) -> None:
    with (
        pytest.raises(OSError, match="too long"),
        new_file(tmp_path, "x" * length, ".json"),
    ):
        pytest.fail("there is a file")
    assert content_of(tmp_path) == {}


def test_nothing_is_left_of_a_file_that_cannot_get_its_name(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match=r"trace\.json"),
        new_file(tmp_path, "trace", ".json") as new,
    ):
        new.path.mkdir()  # by somebody else, meanwhile
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
