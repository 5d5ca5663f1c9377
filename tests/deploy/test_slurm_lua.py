"""Slurm's Lua scripts, run by a real Lua: the controller runs one of them for every job."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SLURM = Path(__file__).parents[2] / "deploy/slurm"
SCRIPT_BYTES = 4 * 1024 * 1024  # Slurm's default limit of a job's script
CPU_S_MAX = 1.0  # what is not linear takes minutes to days
# Calls one function of a script, as Slurm does, and prints what it returns and its time.
DRIVER = """
slurm = { SUCCESS = 0, ERROR = -1, log_error = function(_, text) io.write(text, "\\n") end }
dofile(arg[1])
local job = { comment = arg[4], spank = { lodefs = { lodefs = arg[5] } } }
local calls = {
  process = function() return slurm_bb_job_process(arg[3], "1001") end,
  stage = function() return slurm_bb_data_in(7, arg[3]) end,
  submit = function() return slurm_cli_pre_submit(job, 0), job.comment end,
}
local code, text = calls[arg[2]]()
io.stderr:write(os.clock())
io.write(code, " ", text or "")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """What stands in for lodefs: it repeats its last word, as an error if that has no @."""
    path = tmp_path / "lodefs"
    path.write_text(
        "#!/bin/sh\nfor last; do :; done\n"
        'case $last in *@*) printf "%s\\n" "$last" ;;\n'
        '*) printf "lodefs: error: %s is wrong\\n" "$last"; exit 2 ;; esac\n'
    )
    path.chmod(0o755)
    return path


def _called(program: Path, file: str, name: str, *words: str | Path) -> str:
    """What a function returned, in less than a second of the processor."""
    driver = program.parent / "driver.lua"
    driver.write_text(DRIVER)
    done = subprocess.run(
        ["lua5.4", driver, SLURM / file, name, *words],
        env={"LODEFS_PROGRAM": str(program), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stderr) < CPU_S_MAX
    return done.stdout


def _process(program: Path, text: str) -> str:
    script = program.parent / "job.sh"
    script.write_text(text)
    return _called(program, "burst_buffer.lua", "process", script)


def test_a_script_names_datasets_on_any_lines(program: Path) -> None:
    """They come as one list, without the blanks around them."""
    lines = "#!/bin/sh\n#BB_LUA  lodefs=a/b@main:/tmp/b  \n#BB_LUA lodefs\ntrue\n #BB_LUA lodefs=x"
    script = program.parent / "job.sh"
    script.write_text(lines + "\n#BB_LUA other=x\n#BB_LUA lodefsx\n#BB_LUA\tlodefs=c/d@v1:/tmp/d\t")
    heard = program.parent / "heard"
    program.write_text(f'#!/bin/sh\nprintf "%s|" "$@" >{heard}\n')
    assert _called(program, "burst_buffer.lua", "process", script) == "0 "
    assert heard.read_text() == "slurm|resolve|--uid|1001|--|a/b@main:/tmp/b,c/d@v1:/tmp/d|"
    assert _called(program, "burst_buffer.lua", "stage", script) == "0 "
    assert heard.read_text() == "slurm|stage|7|--|a/b@main:/tmp/b,c/d@v1:/tmp/d|"


@pytest.mark.parametrize(
    "text",
    ["#!/bin/sh\ntrue\n", "", "#BB_LUA lodefs", "x\n#BB_LUA lodefs  \n", "x #BB_LUA lodefs=a"],
)
def test_a_script_without_datasets_of_its_own_passes(program: Path, text: str) -> None:
    """Nothing is asked at submission."""
    assert _process(program, text) == "0 "


def test_datasets_with_quotes_are_one_word_of_the_command(program: Path) -> None:
    """The user's words are no shell's."""
    said = _process(program, "#BB_LUA lodefs=a'b;touch x;'\n")
    assert said == "-1 lodefs: error: a'b;touch x;' is wrong"


def _filled(line: str, *, end: str = "") -> str:
    return (line * (SCRIPT_BYTES // len(line)))[: SCRIPT_BYTES - len(end)] + end


HOSTILE = {
    "blanks within a dataset": ("#BB_LUA lodefs=" + _filled(" ", end="x"), "too many"),
    "blanks after a dataset": ("#BB_LUA lodefs=a@b" + _filled(" "), ""),
    "blanks before the word": ("#BB_LUA" + _filled(" ", end="lodefs=a@b"), ""),
    "blanks and no word": ("#BB_LUA" + _filled(" "), ""),
    "one long dataset": ("#BB_LUA lodefs=" + _filled("a@"), "too many"),
    "many datasets": (_filled("#BB_LUA lodefs=a@b\n"), "too many"),
    "many empty datasets": (_filled("#BB_LUA lodefs=\n"), "too many"),
    "many lines of others": (_filled("#BB_LUA other\n"), "too many"),
    "the mark without an end of line": (_filled("#BB_LUA"), ""),
    "ends of lines": (_filled("\n"), ""),
    "digits as a dataset": ("#BB_LUA lodefs=" + "1" * 16000, "1111"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_no_script_holds_up_the_controller(program: Path, what: str) -> None:
    """4 MB of anything take less than a second, and no answer repeats more than a KiB."""
    text, problem = HOSTILE[what]
    said = _process(program, text)
    assert len(said) < 1100
    assert said.startswith("-1 lodefs: error: " if problem else "0 ") and problem in said


def test_an_option_becomes_the_jobs_comment(program: Path) -> None:
    """What lodefs prints, without its end of line; else its error."""
    assert _called(program, "cli_filter.lua", "submit", "", "note", "a@b:/c") == "0 a@b:/c"
    refused = _called(program, "cli_filter.lua", "submit", "", "note", "nothing")
    assert refused == "lodefs: error: nothing is wrong\n1 note"


def test_a_long_comment_is_read_in_linear_time(program: Path) -> None:
    """Digits in it are no exit code."""
    comment = "9" * 100_000 + "@1"
    said = _called(program, "cli_filter.lua", "submit", "", "note", comment)
    assert said == f"0 {comment}"
    wrong = _called(program, "cli_filter.lua", "submit", "", "note", "9" * 100_000)
    assert len(wrong) < 4200
