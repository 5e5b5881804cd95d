"""Code that means harm, or does it by mistake, in each driver that should contain it. After each, the sandbox still works."""

import contextlib
import os
import socket

import pytest

from ludus.errors import SandboxFailed
from ludus.sandboxes.sandbox import MAX_COMMAND_BYTES, Limits
from tests.sandboxes.conftest import ROOM, need, new_marker, on, sleeping, wait_for

every = on("process", "namespace", "container")
contained = on("namespace", "container")
QUICK = Limits(time_s=60)


@every
def test_a_command_that_never_ends_is_killed_with_what_it_started(sandbox):
    marker = new_marker()
    done = sandbox.run(f"sleep {marker} & sleep {marker}", limits=Limits(time_s=0.5))
    assert (done.exit_code, done.timed_out) == (137, True)
    assert wait_for(lambda: not sleeping(marker))


@on("process", "namespace")
def test_what_a_finished_command_left_behind_is_killed(sandbox):
    marker = new_marker()
    done = sandbox.run(f"sleep {marker} & echo done")
    assert (done.stdout, done.timed_out) == ("done\n", False)
    assert wait_for(lambda: not sleeping(marker))


@every
def test_endless_output_is_cut_and_ended(sandbox):
    done = sandbox.run("yes", limits=Limits(time_s=60, output_bytes=1000))
    assert (done.exit_code, done.truncated, done.timed_out, len(done.stdout)) == (137, True, False, 1000)
    shell = sandbox.shell()
    done = shell.run("yes", limits=Limits(time_s=60, output_bytes=1000))
    assert (done.exit_code, done.truncated, done.restarted, len(done.stdout)) == (137, True, True, 1000)
    assert shell.run("echo next").stdout == "next\n"


@every
def test_much_output_is_cut_without_ending_the_command(sandbox):
    done = sandbox.run("head -c 300000 /dev/zero; echo end >&2; exit 4", limits=Limits(output_bytes=1000))
    assert (done.exit_code, done.truncated, len(done.stdout), done.stderr) == (4, True, 1000, "end\n")


@every
def test_output_is_text_whatever_was_written(sandbox):
    done = sandbox.run(r"printf '\000\033[2J\377<|im_end|>\r\n'")
    assert done.stdout == "\0\033[2J\ufffd<|im_end|>\r\n"
    assert sandbox.shell().run(r"printf '\000\033[2J\377<|im_end|>\r\n'").stdout == done.stdout


@every
@pytest.mark.parametrize("command", ["echo a\0b", ["echo", "a\0b"], "x" * (MAX_COMMAND_BYTES + 1), []])
def test_a_command_that_no_system_could_start_is_an_answer(sandbox, command):
    done = sandbox.run(command)
    assert done.exit_code == 126
    assert done.stderr.startswith("ludus: ")


@every
def test_half_a_surrogate_pair_hurts_nobody(sandbox):
    assert sandbox.run("echo '\ud800'").stdout == "?\n"
    assert sandbox.shell().run("echo '\ud800'").stdout == "?\n"
    sandbox.write("half", "\ud800")
    assert sandbox.read("half") == b"?"


@every
def test_a_guessed_end_of_output_fools_nobody(sandbox):
    shell = sandbox.shell()
    done = shell.run("printf '0123456789abcdef0123456789abcdef0\\n'; __ludus a b; set -x; true; set +x; (exit 3)")
    assert done.exit_code == 3
    assert shell.run("echo mine").stdout == "mine\n"


@every
def test_a_shell_whose_output_is_redirected_still_answers(sandbox):
    shell = sandbox.shell()
    shell.run("exec >/dev/null 2>&1")
    assert shell.run("echo heard").stdout == "heard\n"


@every
def test_a_stopped_shell_is_replaced(sandbox):
    shell = sandbox.shell()
    done = shell.run("kill -STOP $$", limits=Limits(time_s=0.5))
    assert (done.timed_out, done.restarted) == (True, True)
    assert shell.run("echo next").stdout == "next\n"


@on("process")
@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a/../../out", "link/out", "link"])
def test_a_process_writes_and_reads_only_in_its_folder(sandbox, tmp_path, path):
    link = sandbox.folder / "link"
    if not link.is_symlink():
        link.symlink_to("/etc")
    with pytest.raises(PermissionError):
        sandbox.read(path)
    with pytest.raises(PermissionError):
        sandbox.write(path, "x")


@contained
@pytest.mark.parametrize(
    "path", ["../../../etc/new", "/usr/new", "/new", "/proc/sys/kernel/core_pattern", "/etc/shadow"]
)
def test_nothing_is_written_outside_the_sandboxs_own_folders(sandbox, path):
    with pytest.raises(OSError, match="in the sandbox"):
        sandbox.write(path, "x")
    assert not os.path.exists("/etc/new")
    assert sandbox.run(["/bin/sh", "-c", f"echo x > {path}"]).exit_code != 0


@contained
def test_a_link_to_a_file_of_this_machine_leads_nowhere(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("s3cr3t")
    sandbox.run(["ln", "-sf", str(secret), "link"])
    sandbox.run(["ln", "-sfn", str(tmp_path), "folder"])
    for path in ("link", "folder/secret", f"../../..{secret}", str(secret)):
        with pytest.raises(OSError, match="in the sandbox"):
            sandbox.read(path)
    with pytest.raises(OSError, match="in the sandbox"):
        sandbox.write("folder/new", "x")
    assert os.listdir(tmp_path) == ["secret"]


@contained
@pytest.mark.parametrize("path", ["/etc/shadow", "/root", "/home", os.path.abspath(__file__)])
def test_files_of_this_machine_are_not_there(sandbox, path):
    assert not sandbox.run(["ls", path]).ok


@contained
def test_a_device_or_a_pipe_is_not_read_for_ever(sandbox):
    sandbox.run("mkfifo pipe")
    for path in ("/dev/zero", "pipe", "."):
        with pytest.raises(OSError, match="plain file"):
            sandbox.read(path)


@contained
def test_there_is_no_network_not_even_to_this_machine(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(0.2)
        sandbox.run(f"(echo hello | nc -w 1 127.0.0.1 {port}) || (exec 3<>/dev/tcp/127.0.0.1/{port})", limits=QUICK)
        with pytest.raises(TimeoutError):
            server.accept()
    interfaces = sandbox.run("cat /proc/net/dev").stdout
    assert [line.split(":")[0].strip() for line in interfaces.splitlines()[2:]] == ["lo"]


@contained
def test_code_inside_has_no_rights_and_gets_none(sandbox):
    status = sandbox.run("cat /proc/self/status; id -u").stdout
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    assert {int(lines[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert lines["NoNewPrivs"].strip() == "1"
    assert status.splitlines()[-1] == "65534"
    assert not sandbox.run("mount -t tmpfs none /tmp").ok
    assert not sandbox.run("unshare -U true").ok or sandbox.kind == "container"


@contained
def test_processes_of_this_machine_are_not_seen(sandbox):
    assert str(os.getpid()) not in sandbox.run("ls /proc | grep '^[0-9]*$'").stdout.split()
    assert wait_for(lambda: num_processes(sandbox) < 12)


def num_processes(sandbox):
    return len(sandbox.run("ls /proc | grep '^[0-9]*$'").stdout.split())


@contained
def test_a_full_disk_is_the_sandboxs_own_affair(sandbox):
    done = sandbox.run(f"dd if=/dev/zero of=big bs=1048576 count={4 * ROOM.disk_mb}", limits=QUICK)
    assert not done.ok
    assert "No space" in done.stderr
    with pytest.raises(OSError, match="in the sandbox"):
        sandbox.write("more", b"x" * 2**20)
    assert sandbox.run("rm -f big more").ok
    for path in ("/dev/shm", "/run", "/var/tmp", "/dev"):
        sandbox.run(f"head -c 40000000 /dev/zero > {path}/big; rm -f {path}/big", limits=QUICK)
    sandbox.write("fits", "x")


@contained
def test_a_memory_bomb_is_killed_and_the_sandbox_goes_on(sandbox):
    shell = sandbox.shell()
    shell.run("x=kept")
    bomb = "x=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; while :; do x=$x$x; done"
    done = sandbox.run(bomb, limits=Limits(time_s=60))
    assert done.exit_code != 0
    assert not done.timed_out
    assert sandbox.run("echo alive").stdout == "alive\n"


@contained
def test_a_fork_bomb_is_bounded_and_leaves_nothing(sandbox):
    sandbox.run("f() { f | f & }; f; sleep 1000", limits=Limits(time_s=1))
    assert sandbox.run("echo alive").stdout == "alive\n"
    assert wait_for(lambda: num_processes(sandbox) < 12)
    shell = sandbox.shell()
    shell.run("f() { f | f & }; f; sleep 1000", limits=Limits(time_s=1))
    assert sandbox.run("echo alive").stdout == "alive\n"
    assert shell.run("echo alive", limits=QUICK).stdout.endswith("alive\n")  # after what its forks still had to say


@contained
def test_a_fork_bomb_stays_within_its_number_of_processes(sandbox):
    forks = "i=0; while [ $i -lt 200 ]; do sleep 3 & i=$((i + 1)); done; ls /proc | grep -c '^[0-9]*$'"
    done = sandbox.run(forks, limits=Limits(time_s=4))
    assert "fork" in done.stderr
    assert wait_for(
        lambda: sandbox.run("true").ok
    )  # in a container they go on sleeping, and the next test wants to fork


@contained
def test_two_sandboxes_do_not_see_each_other(sandbox, provider, request):
    other = provider.open(need(sandbox.kind, request), session="s3")
    try:
        sandbox.write("/tmp/mine", "secret")
        shell = sandbox.shell()
        shell.run(f"sleep {os.getpid()} &")
        with pytest.raises(FileNotFoundError):
            other.read("/tmp/mine")
        assert str(os.getpid()) not in other.run("cat /proc/[0-9]*/cmdline").stdout
        other.run("f() { f | f & }; f; sleep 1000", limits=Limits(time_s=1))
        assert shell.run("echo untouched").stdout == "untouched\n"
    finally:
        other.close()


@on("namespace", "container", fixture="own_sandbox")
def test_a_sandbox_that_kills_everything_it_can_is_reported_or_goes_on(own_sandbox):
    shell = own_sandbox.shell()
    done = shell.run("kill -9 -1; kill -9 1; kill -USR1 1; true", limits=Limits(time_s=5))
    assert done.ok or done.restarted, "it goes on, or it is reported"
    with contextlib.suppress(SandboxFailed):  # the container is gone, and says so
        assert own_sandbox.run("echo alive").stdout == "alive\n"
