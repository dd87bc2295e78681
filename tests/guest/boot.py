# SPDX-License-Identifier: GPL-2.0-or-later
"""One guest from its start to its end: starts QEMU, streams the command's output, reads its exit.

QEMU dies with this process (prctl PR_SET_PDEATHSIG), and what it needs of the host's network is in
a network namespace that dies with QEMU. Reads and writes build/guest/ only.
"""

from __future__ import annotations

import ctypes
import fcntl
import lzma
import mmap
import os
import re
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from atfnd.errors import OperatorError
from bench.counted import build as counted
from tests.guest import simnic_module
from tests.guest.fetch import Parts, irqbalance, parts
from tests.guest.machine import DEFAULT_KERNEL, Machine

__all__ = ["ROOT", "TIMED_OUT", "Outcome", "prepare", "run"]

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/guest"
HERE = Path(__file__).parent
TIMED_OUT = 124  # as timeout(1)
KERNEL_ARGUMENTS = (
    "console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off tsc=reliable no_timer_check "
    "8250.nr_uarts=1 i8042.nokbd i8042.noaux random.trust_cpu=on apparmor=0 selinux=0 audit=0 "
    "init_on_alloc=0 rcupdate.rcu_expedited=1 nokaslr net.ifnames=0 "
    "maxcpus=1"  # session.sh brings up the others
)
COMPLAINT = re.compile(
    r"(WARNING|BUG|INFO): |Oops|general protection|unable to handle|self-detected stall"
)
# All its CPUs share a thread. With one for each, a CPU may run into an int3 that the kernel has
# already taken out of its text again (Oops in __napi_poll() when a BPF program was attached; 7.3.4,
# QEMU 10), and beside another guest one that holds a lock waits for one that wants it.
ACCEL = "tcg,thread=single"
ATTEMPTS = 4
LATENCY_S = 0.05  # of the output
COUNTED_TSC_KHZ = 1_000_000  # a tick is an instruction
RDTSC = bytes.fromhex("0f31 48c1e220 4809d0 c3")  # rdtsc; shl rdx, 32; or rax, rdx; ret
TSC_NS, TSC_TRIES = 50_000_000, 50
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")  # that mount the host's root
FOLDERS = ("bin", "dev", "modules", "proc", "sys")
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`exit_code` of the command, TIMED_OUT, or None when the guest died under it.

    `complaints`: what the guest's kernel warned of; `console`: its last lines.
    """

    exit_code: int | None
    complaints: tuple[str, ...]
    console: str


def run(
    command: Sequence[str],
    machine: Machine,
    timeout_s: float,
    stdout: BinaryIO,
    stderr: BinaryIO,
) -> Outcome:
    """Run `command` in the caller's directory and environment, for `timeout_s` from its start at
    most; its output is copied as it comes.

    A guest that dies or stands still before the command starts is started again, and that is
    reported on sys.stderr. OperatorError: none of ATTEMPTS could be started.
    """
    found = prepare(machine.kernel)
    if machine.counted:
        counted.build(found, BUILD)
    copies = {"stdout": stdout, "stderr": stderr}
    with _folder() as folder:
        (folder / "initramfs").write_bytes(_initramfs(found))
        (folder / "session.sh").write_bytes((HERE / "session.sh").read_bytes())
        (folder / "command").write_text(_script(command, machine, found))
        for attempt in range(1, ATTEMPTS + 1):
            qemu = _start(found, machine, folder)
            try:
                ended = _stream(qemu, folder, machine.boot_s, timeout_s, copies)
            finally:
                qemu.kill()
                qemu.wait()
            console = _last_lines(folder / "console")
            if (folder / "started").exists() or (folder / "exit").exists():
                return _outcome(folder, console, not ended)
            said = f"{(folder / 'qemu').read_text()}{console}"
            print(f"guest: no command started in attempt {attempt}:\n{said}", file=sys.stderr)
    raise OperatorError(f"the guest did not start:\n{said}")


def prepare(kernel: str = DEFAULT_KERNEL) -> Parts:
    """Download and build what a guest with this kernel is made of, where it is missing.
    OperatorError as `run`."""
    found = parts(kernel)
    irqbalance()  # the guest has no network
    simnic_module.build(found, BUILD)
    return found


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder of this run; those of runs that were killed go: nobody holds their lock."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for left in BUILD.glob("run-*"):
            if (taken := _hold(left)) is not None:
                os.close(taken)
                shutil.rmtree(left)
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=BUILD))
        held = _hold(folder)
    assert held is not None
    try:
        yield folder
    finally:
        with (BUILD / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.close(held)
            shutil.rmtree(folder)


def _hold(folder: Path) -> int | None:
    """A descriptor that keeps others off; None when somebody has one."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _script(command: Sequence[str], machine: Machine, found: Parts) -> str:
    """What session.sh runs. make's own variables stay out: no job server answers in the guest."""
    kept = {k: v for k, v in os.environ.items() if k.isidentifier() and not k.startswith("MAKE")}
    exports = [f"export {key}={shlex.quote(value)}" for key, value in kept.items()]
    modules = "/lib/modules"
    lines = [
        f"mkdir -p {modules} && ln -s {shlex.quote(str(found.modules))} {modules}/",
        *(f"modprobe {name} || exit 126" for name in machine.modules),
        ": >/run/guest/started",
        *exports,
        "export ATFND_GUEST=1",
        f"cd {shlex.quote(str(Path.cwd()))} || exit 126",
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def _start(found: Parts, machine: Machine, folder: Path) -> subprocess.Popen[bytes]:
    usr = found.qemu / "usr"
    khz = COUNTED_TSC_KHZ if machine.counted else _tsc_khz()
    libraries = usr / "lib/x86_64-linux-gnu"
    qemu = [
        *(str(usr / "bin/qemu-system-x86_64"), "-L", str(usr / "share/qemu")),
        *("-L", str(usr / "share/seabios"), "-machine", "q35", "-accel", ACCEL),
        *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
        *("-serial", f"file:{folder}/console"),
        *_share("root", Path("/"), ",readonly=on"),
        *_share("run", folder, ""),
        *("-kernel", str(found.image), "-initrd", str(folder / "initramfs")),
        *("-append", f"{KERNEL_ARGUMENTS} guest.init={machine.init} tsc_early_khz={khz}"),
        *machine.arguments(),
    ]
    if machine.counted:
        qemu += counted.arguments(BUILD, folder, machine.cluster)
    network = ["ip link set lo up"]
    for taps in machine.taps:
        bridge = taps[0].replace("tap", "bridge")
        network.append(f"ip link add {bridge} up type bridge")
        for tap in taps:
            network.append(f"ip tuntap add {tap} mode tap multi_queue")
            network.append(f"ip link set {tap} up master {bridge}")
    shell = " && ".join([*network, 'exec "$@"'])
    environment = {
        "LD_LIBRARY_PATH": f"{libraries}:{found.qemu / 'lib/x86_64-linux-gnu'}",
        "QEMU_MODULE_DIR": str(libraries / "qemu"),
    }
    env = ["env", *(f"{key}={value}" for key, value in environment.items())]
    with (folder / "qemu").open("wb") as said:
        return subprocess.Popen(
            ["unshare", "--net", "sh", "-c", shell, "sh", *env, *qemu],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            preexec_fn=_die_with(os.getpid()),
        )


def _tsc_khz() -> int:
    """How fast this machine's TSC counts, 20 ppm off at most. So does the guest's: TCG reads the
    host's (accel/tcg, cpu_get_host_ticks). On a loaded host the guest would misjudge it."""
    with mmap.mmap(
        -1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    ) as page:
        page.write(RDTSC)
        hold = ctypes.c_char.from_buffer(page)
        read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(hold))
        first_ns, first = _together(read)
        last_ns, last = first_ns, first
        while last_ns - first_ns < TSC_NS:
            last_ns, last = _together(read)
        del read, hold  # the page has no other user
    return round((last - first) * 1_000_000 / (last_ns - first_ns))


def _together(read: Callable[[], int]) -> tuple[int, int]:
    """Both clocks at the same moment: of many readings, the one that was interrupted least."""
    found = []
    for _ in range(TSC_TRIES):
        before_ns = time.monotonic_ns()
        ticks = read()
        after_ns = time.monotonic_ns()
        found.append((after_ns - before_ns, (before_ns + after_ns) // 2, ticks))
    _, middle_ns, ticks = min(found)
    return middle_ns, ticks


def _initramfs(parts: Parts) -> bytes:
    """busybox, init.sh and modules: a cpio archive (Documentation/driver-api/early-userspace/
    buffer-format.rst, newc)."""
    modules = list(_load_order(parts.modules))
    entries = [(name, stat.S_IFDIR | 0o755, b"") for name in FOLDERS]
    entries += [
        ("init", stat.S_IFREG | 0o755, (HERE / "init.sh").read_bytes()),
        ("bin/busybox", stat.S_IFREG | 0o755, (parts.qemu / "bin/busybox").read_bytes()),
        ("modules/order", stat.S_IFREG | 0o644, "".join(f"{p.stem}\n" for p in modules).encode()),
    ]
    entries += [
        (f"modules/{path.stem}", stat.S_IFREG | 0o644, lzma.decompress(path.read_bytes()))
        for path in modules
    ]
    entries.append(("TRAILER!!!", 0, b""))
    return b"".join(_newc(number, *entry) for number, entry in enumerate(entries, 1))


def _load_order(folder: Path) -> Iterator[Path]:
    """Each module after what it depends on. One without a line in modules.dep is built in."""
    lines = [line.split(":") for line in (folder / "modules.dep").read_text().splitlines()]
    needs = {Path(path).name.split(".")[0]: (path, rest.split()) for path, rest in lines}
    seen = set()
    for name in MODULES:
        path, dependencies = needs.get(name, (None, []))
        for each in [*reversed(dependencies), path]:
            if each is not None and each not in seen:
                seen.add(each)
                yield folder / each


def _newc(inode: int, name: str, mode: int, data: bytes) -> bytes:
    fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _share(tag: str, path: Path, more: str) -> list[str]:
    """A host folder that the guest mounts over 9p by its tag."""
    local = f"local,id={tag},path={path},security_model=none,multidevs=remap{more}"
    return ["-fsdev", local, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]


def _die_with(parent: int) -> Callable[[], None]:
    def arrange() -> None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os.kill(os.getpid(), signal.SIGKILL)

    return arrange


def _stream(
    qemu: subprocess.Popen[bytes],
    folder: Path,
    boot_s: float,
    timeout_s: float,
    copies: Mapping[str, BinaryIO],
) -> bool:
    """Copy the guest's output until it ends: True. False: no command within `boot_s`, or it did
    not end within `timeout_s`."""
    deadline = time.monotonic() + boot_s
    started = folder / "started"
    running = False
    pidfd = os.pidfd_open(qemu.pid)
    with ExitStack() as stack:
        stack.callback(os.close, pidfd)
        files = {
            name: stack.enter_context((folder / name).open("w+b", buffering=0)) for name in copies
        }
        while time.monotonic() < deadline:
            ended = select.select([pidfd], [], [], LATENCY_S)[0]
            for name, copy in copies.items():
                if data := files[name].read():
                    copy.write(data)
                    copy.flush()
            if ended:
                return True
            if not running and started.exists():
                running = True
                deadline = time.monotonic() + timeout_s
    return False


def _outcome(folder: Path, console: str, timed_out: bool) -> Outcome:
    dmesg, exit_code = folder / "dmesg", folder / "exit"
    log = dmesg.read_text(errors="replace") if dmesg.exists() else console
    complaints = tuple(line for line in log.splitlines() if COMPLAINT.search(line))
    if exit_code.exists():
        return Outcome(int(exit_code.read_text()), complaints, console)
    return Outcome(TIMED_OUT if timed_out else None, complaints, console)


def _last_lines(console: Path) -> str:
    """A panic is about 50 lines."""
    return "\n".join(console.read_text(errors="replace").splitlines()[-80:])
