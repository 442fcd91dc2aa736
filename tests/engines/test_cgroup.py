"""Limits of containers, read from folders laid out as the kernel lays them out."""

from pathlib import Path

import psutil
import pytest

from ganglion.core.machine import Memory
from ganglion.engines.resources import allowed_cores, allowed_memory, free_bytes, read_memory, usable_cores

MIB = 2**20
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNTS = """\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw"""


def lay_out(root: Path, cgroup: str, mountinfo: str, files: dict[str, str]) -> Path:
    for name, text in {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mountinfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_a_container_of_the_second_version_is_limited_by_its_own_group(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        "0::/",
        V2_MOUNT,
        {
            "sys/fs/cgroup/memory.max": str(1000 * MIB),
            "sys/fs/cgroup/memory.high": "max",
            "sys/fs/cgroup/memory.current": str(600 * MIB),
            "sys/fs/cgroup/memory.stat": f"anon 1\ninactive_file {100 * MIB}\nactive_file 7",
            "sys/fs/cgroup/cpu.max": "150000 100000",
        },
    )
    assert allowed_memory(root) == Memory(1000 * MIB, 500 * MIB)
    assert allowed_cores(root) == 2


def test_the_tightest_group_above_the_process_counts(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        "0::/pod/container",
        V2_MOUNT,
        {
            "sys/fs/cgroup/pod/container/memory.max": "max",
            "sys/fs/cgroup/pod/container/memory.current": str(10 * MIB),
            "sys/fs/cgroup/pod/memory.max": str(500 * MIB),
            "sys/fs/cgroup/pod/memory.high": str(400 * MIB),
            "sys/fs/cgroup/pod/memory.current": str(300 * MIB),
            "sys/fs/cgroup/pod/container/cpu.max": "max 100000",
            "sys/fs/cgroup/pod/cpu.max": "50000 100000",
        },
    )
    assert allowed_memory(root) == Memory(400 * MIB, 100 * MIB)
    assert allowed_cores(root) == 1


def test_the_first_version_is_read_where_each_controller_is_mounted(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        "4:memory:/jobs/1\n3:cpu,cpuacct:/jobs/1\n0::/",
        V1_MOUNTS,
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(9000 * MIB),
            "sys/fs/cgroup/memory/jobs/1/memory.limit_in_bytes": str(800 * MIB),
            "sys/fs/cgroup/memory/jobs/1/memory.usage_in_bytes": str(700 * MIB),
            "sys/fs/cgroup/memory/jobs/1/memory.stat": f"inactive_file 1\ntotal_inactive_file {50 * MIB}",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpu,cpuacct/jobs/1/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu,cpuacct/jobs/1/cpu.cfs_period_us": "100000",
        },
    )
    assert allowed_memory(root) == Memory(800 * MIB, 150 * MIB)
    assert allowed_cores(root) == 3


def test_a_mount_that_begins_at_the_containers_own_group_is_read_at_its_top(tmp_path: Path) -> None:
    root = lay_out(
        tmp_path,
        "4:memory:/docker/abc/inner",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory",
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(300 * MIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(310 * MIB),
            "sys/fs/cgroup/memory/inner/memory.limit_in_bytes": str(600 * MIB),
            "sys/fs/cgroup/memory/inner/memory.usage_in_bytes": str(1 * MIB),
        },
    )
    assert allowed_memory(root) == Memory(300 * MIB, 0)


@pytest.mark.parametrize(
    ("cgroup", "mountinfo"),
    [
        ("", ""),
        ("0::/", V2_MOUNT),
        ("nonsense", "nonsense - \n - cgroup2\n1 2 3 4 5 - cgroup2 x"),
        ("0::/../../etc", V2_MOUNT),
    ],
)
def test_without_limits_or_with_nonsense_nothing_is_limited(
    tmp_path: Path, cgroup: str, mountinfo: str
) -> None:
    files = {"sys/fs/cgroup/memory.max": "max", "sys/fs/cgroup/memory.current": "5", "etc/memory.max": "1"}
    root = lay_out(tmp_path, cgroup, mountinfo, files)
    assert allowed_memory(root) is None
    assert allowed_cores(root) is None


def test_this_process_may_take_no_more_than_the_machine_has() -> None:
    memory = read_memory()
    assert 0 < memory.free_bytes <= memory.total_bytes <= psutil.virtual_memory().total
    assert abs(free_bytes() - memory.free_bytes) < 2**30
    assert 1 <= usable_cores() <= (psutil.cpu_count() or 1)
