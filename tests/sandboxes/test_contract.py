"""What every driver promises, on real sandboxes."""

import threading

import pytest

from ludus.errors import SandboxFailed
from ludus.sandboxes.sandbox import Limits
from tests.sandboxes.conftest import new_marker, on, sleeping, wait_for

every = on("process", "namespace", "container")


@every
def test_a_command_answers_with_its_code_and_both_streams(sandbox):
    done = sandbox.run("echo out; echo err >&2; exit 3")
    assert (done.exit_code, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert not done.truncated
    assert not done.timed_out


@every
def test_words_of_a_command_are_not_read_by_a_shell(sandbox):
    assert sandbox.run(["echo", "$HOME; `id`", "a b"]).stdout == "$HOME; `id` a b\n"


@every
def test_a_program_that_does_not_exist_is_an_answer(sandbox):
    assert sandbox.run(["no-such-program"]).exit_code != 0


@every
def test_a_process_whose_streams_one_holds_answers_as_it_is_asked(sandbox):
    running = sandbox.attach(["/bin/sh", "-c", "while read word; do echo $word; done; exit 6"])
    try:
        for word in (b"one", b"two"):
            running.send(word + b"\n", timeout_s=60)
            assert running.receive(60) == (1, word + b"\n")
        assert running.receive(0.05) is None
    finally:
        running.kill()
        assert running.exit_code(60) == 137
        running.close()


@every
def test_files_written_are_seen_by_commands_and_read_back_byte_for_byte(sandbox):
    data = bytes(range(256)) * 300
    sandbox.write("deep/er/file", data)
    assert sandbox.read("deep/er/file") == data
    assert sandbox.read("deep/er/file", max_bytes=10) == data[:10]
    assert sandbox.run("wc -c < deep/er/file").stdout.strip() == str(len(data))


@every
def test_files_stay_between_commands_and_shells(sandbox):
    sandbox.run("echo kept > file")
    assert sandbox.shell().run("cat file").stdout == "kept\n"
    assert sandbox.read("file") == b"kept\n"


@every
def test_a_missing_file_is_an_os_error_and_no_failure_of_the_sandbox(sandbox):
    with pytest.raises(FileNotFoundError):
        sandbox.read("nowhere")
    assert sandbox.run("true").ok


@every
def test_a_shell_keeps_its_folder_its_variables_and_its_functions(sandbox):
    shell = sandbox.shell()
    shell.run("mkdir here; cd here; x=41; f() { echo $((x + 1)); }")
    done = shell.run("pwd; f")
    assert done.stdout.splitlines()[0].endswith("/here")
    assert done.stdout.splitlines()[1] == "42"


@every
def test_a_shell_survives_what_cannot_be_parsed(sandbox):
    shell = sandbox.shell()
    shell.run("x=kept")
    for broken in ("echo 'no end", "if", "(", "cat <<END", 'echo "', "done"):
        assert not shell.run(broken).restarted, broken
    assert shell.run("echo $x").stdout == "kept\n"


@every
def test_a_shell_that_ends_says_so_and_the_next_command_meets_a_new_one(sandbox):
    shell = sandbox.shell()
    shell.run("x=gone")
    done = shell.run("echo last; exit 5")
    assert (done.exit_code, done.stdout, done.restarted) == (5, "last\n", True)
    assert shell.run("echo [$x]").stdout == "[]\n"


@every
def test_a_command_in_a_shell_that_is_out_of_time_is_killed_and_the_next_one_works(sandbox):
    shell = sandbox.shell()
    shell.run("true")
    marker = new_marker()
    done = shell.run(f"echo begun; sleep {marker}", limits=Limits(time_s=1.5))
    assert (done.exit_code, done.stdout, done.timed_out, done.restarted) == (137, "begun\n", True, True)
    assert shell.run("echo next").stdout == "next\n"
    assert wait_for(lambda: not sleeping(marker))


@every
def test_commands_do_not_eat_what_is_meant_for_the_shell(sandbox):
    shell = sandbox.shell()
    assert shell.run("cat; read x; echo [$x]").stdout == "[]\n"
    assert shell.run("echo still here").stdout == "still here\n"


@every
def test_output_that_a_background_process_writes_later_ends_no_other_command(sandbox):
    shell = sandbox.shell()
    shell.run("(while [ ! -e go ]; do sleep 0.01; done; echo late; touch gone) &")
    wait_and_fail = "touch go; while [ ! -e gone ]; do sleep 0.01; done; exit_code=7; echo mine; (exit $exit_code)"
    assert shell.run(wait_and_fail).exit_code == 7
    assert shell.run("echo after").stdout == "after\n"


@on("process", "namespace", "container", fixture="own_sandbox")
def test_closing_ends_a_command_that_runs_and_can_be_done_twice(own_sandbox):
    sandbox = own_sandbox
    answers, marker = [], new_marker()
    command, limits = f"sleep {marker}", Limits(time_s=600)
    thread = threading.Thread(target=lambda: answers.append(sandbox.run(command, limits=limits)))
    shell = sandbox.shell()
    shell.run("true")
    thread.start()
    assert wait_for(lambda: sleeping(marker))
    sandbox.close()
    thread.join(60)
    assert not thread.is_alive()
    assert answers[0].exit_code == 137
    sandbox.close()
    with pytest.raises(SandboxFailed):
        sandbox.run("true")
    with pytest.raises(SandboxFailed):
        shell.run("true")
