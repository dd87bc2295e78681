# SPDX-License-Identifier: GPL-2.0-or-later
"""What is said of a flow holds by now: where its packets arrive, whose it is, who moved a queue."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from atfnd.engine import audit
from atfnd.engine.placement import steer
from atfnd.engine.table.memory import Memory
from atfnd.model import Flow, Match, NicView, SocketUse
from atfnd.observe.processes.threads import ended_threads
from atfnd.serve.api.views import placed
from atfnd.serve.explain.explain import explain
from tests.diagnose.machines import topology
from tests.engine.test_steer import LATER_NS, STRICT, WORKER, Machine
from tests.serve.shown import flow, key, lab, rule
from tests.values import key as number_key
from tests.values import one_rule, seen
from tests.wait import until


def entry(memory: Memory, number: int = 0) -> Flow:
    found = memory.table.get(number_key(number))
    assert found is not None
    return found


def audited(machine: Machine, rx_cpu: int, count: int, number: int = 0) -> Flow:
    """Its socket as an audit finds it: `count` bytes, the last packet processed on `rx_cpu`."""
    machine.now_ns += LATER_NS
    queue = next((queue for queue in machine.nic.queues if queue.cpu == rx_cpu), None)
    napi_id = None if queue is None else queue.napi_id
    use = SocketUse(1000 + number, number_key(number), None, napi_id, rx_cpu, count)
    machine.carry_out(
        audit.check_sockets([use], {"nic": machine.nic}, machine.memory, machine.now_ns)
    )
    return entry(machine.memory, number)


def test_a_flow_that_has_come_to_arrive_on_its_cpu_says_so() -> None:
    machine = Machine()
    machine.memory.in_force = one_rule(0, LATER_NS)  # owns no queue
    machine.uses(0, 9)  # a CPU without a queue
    assert "no queue is delivered there" in str(entry(machine.memory).why)
    assert placed(entry(machine.memory)) is None
    found = audited(machine, 9, 2 << 20)
    assert str(found.why) == "its packets arrive on CPU 9, where its thread runs, without a filter"
    assert placed(found) is True
    answer = explain(found, machine.nic, topology(), None)
    assert answer.verdict == (
        "Not steered, and need not be: its packets arrive on CPU 9, where its thread runs."
    )
    assert answer.advice is None
    found = audited(machine, 3, 3 << 20)
    assert str(found.why) == "its thread runs on CPU 9, and no queue is delivered there"
    assert placed(found) is None


def test_what_was_observed_before_a_follow_says_nothing_of_after() -> None:
    machine = Machine()
    machine.uses(0, 1)
    assert placed(audited(machine, 1, 2 << 20)) is True
    machine.now_ns += LATER_NS
    event = seen(0, 2, rx_cpu=1, napi_id=101, thread=WORKER, off_since_ns=machine.now_ns)
    machine.carry_out(steer.seen(event, machine.nic, STRICT, machine.memory, machine.now_ns))
    found = entry(machine.memory)
    assert (found.target_cpu, placed(found)) == (2, None)
    assert placed(audited(machine, 1, found.bytes)) is None  # no packet came since
    assert placed(audited(machine, 2, 5 << 20)) is True
    assert placed(audited(machine, 3, 6 << 20)) is False  # that is evidence


def test_a_thread_without_an_entry_in_proc_has_ended(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    assert ended_threads({7, 8}, str(tmp_path)) == {8}
    done = threading.Thread(target=lambda: None)
    done.start()
    done.join()
    assert done.native_id is not None
    both = {threading.get_native_id(), done.native_id}
    until(lambda: ended_threads(both) == {done.native_id}, "its thread has ended")


OURS = rule(100, Match.of(key(40_000)), 3)


def on_cpu_0(**changes: object) -> NicView:
    """Queue 3 is delivered on CPU 0, though the flow's entry says 3."""
    nic = lab(OURS)
    return replace(nic, queues=(*nic.queues[:3], replace(nic.queues[3], cpu=0)), **changes)  # type: ignore[arg-type]


def test_nobody_moved_a_queue_that_follows_its_owner() -> None:
    theirs = on_cpu_0(owners={3: "thread 4711"})
    answer = explain(flow(40_000), theirs, topology(), 1)
    assert answer.verdict == (
        "Queue 3 is delivered on CPU 0, where it followed thread 4711, not on CPU 3."
    )
    assert answer.advice is None
    own = on_cpu_0(owners={3: "thread 4121"})
    answer = explain(flow(40_000), own, topology(), 1)
    assert answer.verdict == (
        "Queue 3 is still delivered on CPU 0: it follows thread 4121, which runs on CPU 3 now."
    )
    moved_queue = on_cpu_0(owners={3: "thread 4121"}, manual=frozenset({"queue-cpu:3"}))
    answer = explain(flow(40_000), moved_queue, topology(), 1)
    assert "another program moved it" in answer.verdict
    assert answer.advice == "taskset -pc 3 903 (queue 3)"
