"""How a test run is divided, scheduled and reported."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts.testrun import quick
from scripts.testrun.lanes import MOST_LANES, fits
from scripts.testrun.pieces import ALONE, FOLDERS, Folder, Piece, divide, files_of, read_durations, write_durations
from scripts.testrun.results import (
    FAILED,
    PASSED,
    SKIPPED,
    Outcome,
    failure_summary,
    folder_table,
    read_tests,
    seconds_by_file,
    slowest_table,
)

COMPUTING = Folder("computing", load=1.0)
WAITING = Folder("waiting", load=0.25)


def piece(folder: Folder = WAITING, name: str = "waiting-1", *, is_alone: bool = False) -> Piece:
    return Piece(folder, name, ("tests/waiting/test_a.py",), 10.0, is_alone)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with tests of its own."""

    def write(path: str, text: str = "") -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    for folder in ("unit/log", "contract", "simulation", "interop", "fault"):
        write(f"tests/{folder}/test_plain.py")
    write("tests/unit/log/test_segment.py", "from tailrace.log.segment import Segment\n")
    write("tests/unit/test_reader.py", "from tailrace.log.segment import Segment\n")
    write("src/tailrace/log/segment.py")
    return tmp_path


# --- pieces


def test_every_file_is_in_exactly_one_piece_whatever_was_recorded(checkout: Path) -> None:
    files = [f"tests/unit/test_{number}.py" for number in range(7)]
    for file in files:
        (checkout / file).write_text("")
    durations = {files[0]: 50.0, files[1]: 20.0, files[3]: 100.0}
    pieces = divide(FOLDERS["unit"], files, durations, checkout)
    assert [file for each in pieces for file in each.files] == files
    assert pieces[0].files == (files[0],)
    assert len({each.name for each in pieces}) == len(pieces) > 1


def test_files_with_sensitive_tests_are_in_a_piece_that_runs_alone_as_well(checkout: Path) -> None:
    file = "tests/fault/test_plain.py"
    (checkout / file).write_text(f"@pytest.mark.{ALONE}\ndef test_timing(): ...\n")
    beside, alone = divide(FOLDERS["fault"], [file], {}, checkout)
    assert (beside.files, beside.is_alone) == ((file,), False)
    assert (alone.files, alone.is_alone) == ((file,), True)


def test_durations_of_files_that_were_not_run_stay_and_of_files_that_are_gone_do_not(tmp_path: Path) -> None:
    record = tmp_path / "durations.json"
    here, other = files_of("unit")[:2]
    write_durations({here: 1.0, other: 2.0, "tests/unit/test_gone.py": 3.0}, record)
    write_durations({here: 4.04}, record)
    assert read_durations(record) == {here: 4.0, other: 2.0}


def test_the_record_knows_the_suite() -> None:
    known = read_durations()
    missing = [file for name in FOLDERS for file in files_of(name) if file not in known]
    assert len(missing) < 20, f"make test ARGS=--record writes {len(missing)} missing durations: {missing}"


# --- lanes


def test_many_pieces_that_wait_run_side_by_side_and_few_that_compute() -> None:
    assert fits(piece(COMPUTING), [piece(COMPUTING)], 2.0)
    assert not fits(piece(COMPUTING), [piece(COMPUTING)] * 2, 2.0)
    assert fits(piece(), [piece(COMPUTING), piece(), piece(), piece()], 2.0)
    assert not fits(piece(), [piece()] * MOST_LANES, 2.0)


def test_nothing_runs_beside_a_piece_that_must_be_alone() -> None:
    assert not fits(piece(is_alone=True), [piece()], 2.0)
    assert not fits(piece(), [piece(is_alone=True)], 2.0)
    assert fits(piece(is_alone=True), [], 2.0)


def test_a_piece_that_needs_more_than_there_is_runs_by_itself() -> None:
    assert fits(piece(Folder("huge", load=9.0)), [], 2.0)


# --- results

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.unit.log.test_segment" name="test_a[1-2]" file="tests/unit/log/test_segment.py" time="1.5"/>
<testcase classname="tests.unit.log.test_segment.TestB" name="test_b" file="tests/unit/log/test_segment.py" time="0.5">
<failure message="assert 1 == 2">def test_b():
E   assert 1 == 2
</failure></testcase>
<testcase classname="tests.unit.test_reader" name="test_c" file="tests/unit/test_reader.py" time="0.1">
<skipped/></testcase>
</testsuite></testsuites>
"""


def outcome_of(tmp_path: Path, code: int = 1) -> Outcome:
    junit = tmp_path / "piece.xml"
    junit.write_text(JUNIT)
    return Outcome(piece(), code, 60.0, 30.0, tmp_path / "piece.log", read_tests(junit))


def test_a_junit_file_tells_each_test_its_time_and_what_became_of_it(tmp_path: Path) -> None:
    tests = outcome_of(tmp_path).tests
    assert [(test.name, test.outcome, test.seconds) for test in tests] == [
        ("test_a[1-2]", PASSED, 1.5),
        ("TestB::test_b", FAILED, 0.5),
        ("test_c", SKIPPED, 0.1),
    ]
    assert read_tests(tmp_path / "absent.xml") == []
    (tmp_path / "torn.xml").write_text(JUNIT[:200])
    assert read_tests(tmp_path / "torn.xml") == []


def test_a_test_that_a_class_inherits_counts_for_the_file_of_that_class(tmp_path: Path) -> None:
    junit = tmp_path / "piece.xml"
    junit.write_text(
        '<testsuite><testcase classname="tests.unit.log.test_model.TestLog" name="runTest" time="2.0"'
        ' file=".venv/lib/python3.11/site-packages/hypothesis/stateful.py"/></testsuite>'
    )
    (test,) = read_tests(junit)
    assert (test.file, test.name) == ("tests/unit/log/test_model.py", "TestLog::runTest")


def test_the_tables_say_where_the_time_went(tmp_path: Path) -> None:
    outcome = outcome_of(tmp_path)
    header, of_folder, of_all, used = folder_table([outcome], 60.0, 2).splitlines()
    assert of_folder.split() == ["waiting", "3", "1", "1", "1", "1.0", "0.5", "0.50"]
    assert of_all.split() == ["all", "3", "1", "1", "1", "1.0", "0.5", "0.50"]
    assert header.split()[0] == "folder"
    assert used == "25% of 2 cores were used."
    assert slowest_table([outcome]).splitlines()[1].split() == ["1.5", "s", "unit/log/test_segment.py::test_a[1-2]"]
    assert seconds_by_file([outcome]) == {"tests/unit/log/test_segment.py": 2.0, "tests/unit/test_reader.py": 0.1}


def test_the_summary_names_what_failed_and_why_also_if_pytest_itself_broke(tmp_path: Path) -> None:
    assert failure_summary([outcome_of(tmp_path)]) == (
        "FAILED unit/log/test_segment.py::TestB::test_b\nE   assert 1 == 2"
    )
    broken = Outcome(piece(), 3, 1.0, 1.0, Path("waiting-1.log"))
    assert failure_summary([broken]) == "FAILED waiting-1: pytest ended with 3; see waiting-1.log"
    assert failure_summary([outcome_of(tmp_path, code=0)]) == ""


# --- the inner loop


def test_unit_tests_of_a_changed_module_come_first_its_mirror_before_those_that_import_it(checkout: Path) -> None:
    chosen = quick.choose(["src/tailrace/log/segment.py"], {}, checkout)
    assert chosen[:2] == ["tests/unit/log/test_segment.py", "tests/unit/test_reader.py"]
    assert set(chosen[2:]) == {
        *(f"tests/{folder}/test_plain.py" for folder in ("contract", "simulation", "interop", "fault")),
        "tests/unit/log/test_plain.py",
    }


def test_the_choice_keeps_within_its_bound_of_time(checkout: Path) -> None:
    slow = {"tests/unit/log/test_segment.py": quick.MOST_SECONDS + 1, "tests/interop/test_plain.py": 31.0}
    chosen = quick.choose(["tests/unit/log/test_segment.py"], slow, checkout)
    assert not set(slow) & set(chosen)
    assert "tests/unit/test_reader.py" in chosen


def test_changes_are_those_since_the_branch_began_and_those_not_committed_yet(checkout: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=checkout, check=True, capture_output=True)

    git("init", "-b", "main")
    git("add", ".")
    git("commit", "-m", "first")
    assert quick.changed_files(checkout) == []
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    (checkout / "src/tailrace/log/committed.py").write_text("")
    git("add", ".")
    git("commit", "-m", "second")
    (checkout / "src/tailrace/log/segment.py").write_text("x = 1\n")
    (checkout / "new.py").write_text("")
    assert quick.changed_files(checkout) == [
        "new.py",
        "src/tailrace/log/committed.py",
        "src/tailrace/log/segment.py",
    ]
