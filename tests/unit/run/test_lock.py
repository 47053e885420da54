"""One process writes a run at a time; whoever can say so waits."""

import signal
import subprocess
import sys
from pathlib import Path

HOLD = "import signal, sys; from pathlib import Path; from mixlab.run.lock import RunLock\n"
HOLD += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whoever runs the tests may have ignored it
HOLD += (
    "with RunLock(Path(sys.argv[1]), print if sys.argv[2:] else None): print('has it', flush=True); sys.stdin.read()"
)


def start(folder: Path, *waits: str) -> subprocess.Popen[str]:
    call = [sys.executable, "-u", "-c", HOLD, str(folder), *waits]
    return subprocess.Popen(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_second_process_is_refused_or_waits_until_it_is_its_turn_or_is_stopped(tmp_path: Path) -> None:
    first = start(tmp_path)
    assert line_of(first) == "has it"
    refused, waiting, stopped = start(tmp_path), start(tmp_path, "waits"), start(tmp_path, "waits")
    assert f"in use by process {first.pid}" in refused.communicate()[1]
    for process in (waiting, stopped):
        assert line_of(process).startswith(f"waiting for process {first.pid} on ")
    stopped.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in stopped.communicate()[1]
    assert waiting.poll() is None
    first.communicate("")
    assert line_of(waiting) == "has it"
    waiting.communicate("")
    assert (first.returncode, waiting.returncode) == (0, 0)
