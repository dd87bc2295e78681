# SPDX-License-Identifier: GPL-2.0-or-later
"""Command lines that run `atfnd` where the kernel refuses something: no root, no BPF, no BTF.

Each is a prefix for tests.daemons.Daemon.spawn. Only the process is changed, never the machine.
"""

from __future__ import annotations

import sys

__all__ = ["NO_BPF", "NO_BTF", "NO_FILTERS", "NO_ROOT"]

# Everything is imported before the user changes: another user may be unable to read the tree.
_AS_NOBODY = """
import os, sys, atfnd.cli.doctor, atfnd.cli.facts, atfnd.cli.run, atfnd.cli.restore
from atfnd.cli.commands import main
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.argv[0] = sys.argv.pop(1)
main()
"""

# seccomp(2): bpf(2) with BPF_PROG_LOAD (5) is EPERM, as in a container; the rest is allowed.
_WITHOUT_PROGRAMS = """
import ctypes, os, struct, sys
BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
rules = [(LOAD, 0, 0, 0), (EQUAL, 0, 3, BPF), (LOAD, 0, 0, 16), (EQUAL, 0, 1, 5),
         (RETURN, 0, 0, 0x00050001), (RETURN, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
program = struct.pack("@HP", len(rules), ctypes.addressof(code))
libc = ctypes.CDLL(None, use_errno=True)
for args in ((38, 1, 0, 0, 0), (22, 2, program, 0, 0)):  # NO_NEW_PRIVS; SECCOMP, MODE_FILTER
    if libc.prctl(*args):
        raise OSError(ctypes.get_errno(), "prctl")
os.execv(sys.argv[1], sys.argv[1:])
"""

# A lab NIC that has no filters, as virtio_net or ena: the rest of it is real.
_WITHOUT_FILTERS = """
import dataclasses, errno, sys
import atfnd.nic.driver
from atfnd.cli.commands import main
from atfnd.model import Actuator
from atfnd.nic.lab.nic import LabNic
class Filterless(LabNic):
    def caps(self):
        return dataclasses.replace(
            super().caps(), filters=False, filter_slots=None, actuator=Actuator.NONE)
    def insert(self, match, queue, location=None):
        raise OSError(errno.EOPNOTSUPP, "no filters")
atfnd.nic.driver.LabNic = Filterless
sys.argv[0] = sys.argv.pop(1)
main()
"""

NO_ROOT = (sys.executable, "-c", _AS_NOBODY)
NO_FILTERS = (sys.executable, "-c", _WITHOUT_FILTERS)
NO_BPF = (sys.executable, "-c", _WITHOUT_PROGRAMS)
# A mount namespace of its own, in which the kernel's type information is hidden.
NO_BTF = (
    *("unshare", "--mount", "sh", "-c"),
    'mount -t tmpfs none /sys/kernel/btf && exec "$@"',
    "sh",
)
