"""Two nodes, as network namespaces that have an address and a name each, with two ranks
on each, started by torchrun."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.thorough import IS_THOROUGH
from torchprof_hooks import load_ranks

SCRIPT = Path(__file__).parents[1] / "programs" / "scripts" / "two_ranks.py"
LONGEST_S = 120


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def why_not() -> str:
    """Why there can be no namespaces, "" if there can."""
    if not IS_THOROUGH:
        return "thorough"
    if not shutil.which("ip") or not shutil.which("unshare"):
        return "needs ip and unshare"
    try:
        ip("netns", "add", f"tph-try-{os.getpid()}")
        ip("netns", "del", f"tph-try-{os.getpid()}")
    except subprocess.CalledProcessError:
        return "may not make network namespaces"
    return ""


@contextmanager
def nodes() -> Iterator[tuple[str, str]]:
    """Two namespaces that reach each other at 10.77.0.1 and 10.77.0.2, on ``eth0``."""
    names = f"tph-{os.getpid()}-0", f"tph-{os.getpid()}-1"
    with ExitStack() as stack:
        for name in names:
            ip("netns", "add", name)
            stack.callback(ip, "netns", "del", name)
        ends = [("name", "eth0", "netns", name) for name in names]
        ip("link", "add", *ends[0], "type", "veth", "peer", *ends[1])
        for number, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.77.0.{number + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                ip("-n", name, "link", "set", device, "up")
        yield names


def start(number: int, node: str, folder: Path) -> subprocess.Popen[str]:
    named = ["unshare", "--uts", "sh", "-c", f'hostname node{number}; exec "$@"', "sh"]
    launcher = [sys.executable, "-m", "torch.distributed.run"]
    size = ["--nnodes", "2", "--node-rank", str(number), "--nproc-per-node", "2"]
    meeting = ["--master-addr", "10.77.0.1", "--master-port", "29500"]
    program = ["-m", "torchprof_hooks", "--save", str(folder / "profile.json")]
    return subprocess.Popen(
        [
            *["ip", "netns", "exec", node, *named],
            *[*launcher, *size, *meeting, *program, str(SCRIPT)],
        ],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"},
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.thorough
@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_ranks_on_two_nodes(tmp_path: Path) -> None:
    with nodes() as names:
        started = [start(n, name, tmp_path) for n, name in enumerate(names)]
        try:
            told = [each.communicate(timeout=LONGEST_S) for each in started]
        finally:
            for each in started:
                if each.poll() is None:
                    os.killpg(each.pid, signal.SIGKILL)
    assert [each.returncode for each in started] == [0, 0], told
    ranks = load_ranks(tmp_path)
    assert (ranks.world_size, ranks.missing, ranks.stale) == (4, (), ())
    places = [
        (each.provenance.host, each.provenance.local_rank) for each in ranks.ranks
    ]
    assert places == [("node0", 0), ("node0", 1), ("node1", 0), ("node1", 1)]
    of_first, of_second = (err for _, err in told)
    assert of_first.count("4 of 4 ranks of") == 1
    assert "4 of 4 ranks" not in of_second
