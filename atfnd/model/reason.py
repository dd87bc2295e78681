# SPDX-License-Identifier: GPL-2.0-or-later
"""Why a flow is where it is, a setting has its value, or a move was made or not: codes, and the one
table of their words."""

from __future__ import annotations

from enum import Enum, unique
from typing import NamedTuple

__all__ = ["UNSAID", "Code", "Why"]


class Why(NamedTuple):
    """A reason. `about`: what its words name, in their order; numbers, texts of the kernel, or
    other reasons. `str` of it is the sentence."""

    code: Code
    about: tuple[object, ...] = ()

    def __str__(self) -> str:
        return self.code.value.format(*self.about)

    @property
    def word(self) -> str:
        """Its code, as programs see it."""
        return self.code.name.lower()

    def __bool__(self) -> bool:
        """Something is said."""
        return self.code is not Code.UNSAID

    def shape(self) -> tuple[object, ...]:
        """Its code and those of the reasons in it: the same reason, whatever its numbers are."""
        inner = (each.shape() for each in self.about if isinstance(each, Why))
        return (self.code, *inner)


@unique
class Code(Enum):
    """`Code.QUEUE_GONE(3)` is a reason. Times are written with `in_ms`."""

    UNSAID = ""  # nothing is decided yet
    KERNEL = "{}"  # the words of the kernel, of a driver, or of what writes

    # Where its thread runs, and its packets are led there.
    AT_QUEUE = "its thread runs on CPU {}, where queue {} is delivered"
    NO_QUEUE_THERE = "its thread runs on CPU {}, and no queue is delivered there"
    ARRIVES = "its packets arrive on CPU {}, where its thread runs, without a filter"
    PLACED = "its thread runs on CPU {}; {}: queue {} is delivered on CPU {}"
    NOT_PLACED = "its thread runs on CPU {}; {}"
    OWNS = "its thread runs on CPU {} and owns queue {}, which follows it"
    OWNS_IN_GROUP = (
        "its thread runs on CPU {}; its {} owns queue {}, which follows the busiest of its {}'s "
        "threads"
    )
    CONNECTS = "its thread connects on CPU {}, and queue {} is where it belongs"
    WANDERS_PLACED = "{}: queue {} is delivered on CPU {} of it"
    USED_AGAIN = "its 5-tuple had a filter, and is used again"
    ADOPTED = "adopted from an earlier run; its thread has not moved since"
    STEERED_AGAIN = "its policy steers it again"
    BY_RFS = "RFS hands its packets on to CPU {}, where its thread calls: {}"
    # It is not where its policy asks, and what is done instead.
    NO_QUEUE_OF_PLACEMENT = "{}: no queue is delivered {}; {}"
    NO_CPU_OF_PLACEMENT = "{}: no CPU {} is free for it; {}"
    DEDICATED = "{}: CPU {} is dedicated to another rule; {}"
    NEEDS_FILTER = "{}: that takes a filter; {}"
    LEFT_TO_RSS = "left to RSS"
    LEFT_ON_QUEUE = "left on queue {}"
    INSTEAD = "{} instead"
    # Its thread does not stay on a CPU.
    WANDERS = "its thread wanders"
    WANDERS_CPUS = "its thread wanders over CPUs {}"
    WANDERS_LLC = "its thread wanders within the last-level cache of CPUs {}"
    WANDERS_NODE = "its thread wanders within node {} (CPUs {})"
    # It is left to RSS.
    LEFT_FULL = "CPU {} is full, and another under its last-level cache is not: left to RSS"
    LEFT_GROUP = (
        "several sockets share its port (SO_REUSEPORT): one filter would bring all to one queue"
    )
    LEFT_TUNNEL = "its packets come by {}, and the NIC sees another 5-tuple"
    LEFT_WANDERS = "{}: left to RSS"
    LEAVES = "its policy now leaves it alone"
    BY_ITSELF = "RSS delivers it there by itself"
    # How the flows of a NIC are steered.
    IS_PAUSED = "paused"
    CONFLICT = "{}: nothing is steered until that ends"
    TAKES_FILTERS = "this NIC takes 5-tuple filters: one a flow"
    TAKES_NO_FILTERS = "this NIC has no 5-tuple filters"
    NO_PROOF = (
        "{} may drop a filter after it has accepted it, so no move by filters is proven to keep "
        "the order; a rule with order: bounded lets flows move"
    )
    BY_ENTRIES = "{}; flows are steered by their entries of the indirection table"
    RFS_HANDS_ON = "{}; the kernel hands packets on to the right CPU (RFS)"
    BOTH = "{}, {}"
    NO_MEANS = "{}, {}, and {}"
    NO_IMMEDIATE = "no rule has order: immediate, without which no indirection entry moves"
    RSS_MANUAL = "another program changed the indirection table: left alone until atfnctl resume"
    ONE_QUEUE = "has one receive queue"
    RSS_NOT_WRITABLE = "its indirection table cannot be written"
    KEY_UNKNOWN = "its RSS key is not known, so no flow's entry is known"
    HASH_OTHER = "{}, so no flow's entry is known"
    QUEUE_CPUS_UNKNOWN = "the CPUs of its queues are not known, and cannot be set"
    NO_RFS = "the kernel offers no RFS here"
    RFS_NOT_SET_UP = "RFS was not set up; `unowned: rfs` asks for it"
    RFS_MANUAL = "another program changed the RFS tables: left alone until atfnctl resume"
    RFS_TABLE_MANUAL = "another program changed {}"
    RFS_FILTERS = "{} may turn RFS into filters of its own (aRFS) while ntuple is on"
    # No filter may be tried for it.
    THEIR_FILTER = "another program has a filter for it"
    KIND_NOT_TAKEN = "this NIC's filters take no {} flow"
    OPEN_END = "this NIC's filters name a whole 5-tuple, and this socket leaves the remote end open"
    NOT_ARMED = "the NIC is not armed"
    # There is no room, or it waits for it.
    TABLE_FULL = "the Flow-to-Core table is full"
    TABLE_SHARE = "the Flow-to-Core table is full, and its user has more of it than others"
    TABLE_PLACE_TAKEN = "its place in the table goes to a user that has fewer"
    NIC_FULL = "the NIC's filter table is full: delivered by RSS"
    NIC_FULL_OF_OTHERS = "the NIC's filter table is full, {} are others': delivered by RSS"
    ALL_IN_USE = "our {} filters of this NIC are in use: delivered by RSS"
    RULE_SHARE = "its rule has its share of the filters, {}: delivered by RSS"
    PORTS_SHARE = "its {} has {} % of the filters for its ports: delivered by RSS"
    TENANT_SHARE = "its {} has its share of the filters, {} %: delivered by RSS"
    NONE_HAS_MORE = "{}; its user or control group has {} of the filters, and none has two more"
    AWAITS_FILTER = "it waits for a filter of a user or control group that has more than its share"
    AWAITS_CPU_TIME = "it waits for CPU time of atfnd itself (daemon.cpu): others are worth more"
    AWAITS_TURN = "it waits for its turn: its user or control group has its share of the moves"
    TAKEN = "its filter is worth {} and goes to {}, {}"
    FOR_FEWER = "whose user or control group has fewer ({})"
    FOR_SEVERAL = "that serves several"
    FOR_WORTH = "worth {}"
    RULE_SURPLUS = "its rule has more than its share of the filters, {}"
    PORT_TAKEN = "its filter goes to {}, whose user or control group has fewer"
    # The filter of a port.
    LED_BY_PORT = "the filter of its port leads it to queue {}, which follows its thread"
    PORT_LEADS = "the filter of its port leads it to queue {}"
    PORT_LEADS_NO_MORE = "the filter that led it is gone"
    NEEDLESS = "the filter of its port leads it there too, and few filters are left"
    SERVED = "its connections are served where queue {} is delivered"
    KEEPS_PORTS_QUEUE = "it keeps queue {}, while the filter of its port is deleted"
    LISTENS_AGAIN = "its port listens again"
    NO_LISTENER = "its port has no listener any more"
    UNWANTED = "the policy has no rule for its connections any more"
    RIVALS = "{} sockets listen on its port"
    BOTH_READ = "threads {} and {} both read its connections"
    SEVERAL_READ = "threads {}, {} and {} more read its connections"
    MAY_SHARE = (
        "process {} may have several threads or children, and nobody has read a connection yet"
    )
    SERVER_UNKNOWN = "the thread that serves it is not known yet"
    NO_SINGLE_RULE = "the policy has no single rule that steers all its connections"
    SEVERAL_QUEUES = "the CPUs of its connections have several queues, or none"
    NOT_OURS = "its filter is not ours to change"
    CONNECTION_CHANGES = "the filter of a connection is about to be changed"
    NOT_MOVED_YET = "its filter cannot be moved from queue {} to {} yet"
    WOULD_MOVE = "{} live connections would change their queue"
    WOULD_MOVE_WAITING = "its filter would move {} connections that wait: tried, and put off"
    QUEUE_LOOSE = "queue {} is {}"
    WINNER_UNKNOWN = "it is not known which of two filters wins on this NIC"
    # A filter is not in the NIC, or leads elsewhere.
    NOT_MOVED = "not moved yet: {}"
    STILL_LED = "its filter still leads it to queue {}; {}"
    REPOINTED = "another program pointed its filter to queue {}"
    REMOVED = "another program removed its filter at location {}"
    DROPPED = "the NIC accepted its filter and dropped it {}: tried again later"
    DROPPED_FOR_GOOD = "the NIC accepted its filter and dropped it {}: left to RSS"
    LOST_BY_NIC = "the NIC lost its filter"
    LOST_AT_RESET = "the NIC lost its filter when it was reset"
    NO_EFFECT = "its filter is in the NIC, but the NIC delivers on queue {}"
    WRITTEN_ANEW = "the NIC lists its filter, and delivers on queue {}: written anew"
    GIVEN_UP = "its flow was given up while it was written"
    IDLE = "idle for more than {:.1f} s"
    LEFT_BY_EARLIER_RUN = "left by an earlier run, and its socket is gone"
    FROM_EARLIER_RUN = "left by an earlier run"
    # Its entry of the indirection table.
    ENTRY_RIGHT = "its entry {} of the indirection table points to queue {}, on its core"
    ENTRY_NONE = "its packets hash by remote, so it has no single entry of the indirection table"
    ENTRY_UNKNOWN = "which entry of the indirection table it selects is not known: {}"
    ENTRY_MISLED = "it arrives on queue {}, not on {}, where its entry {} points"
    ENTRY_ORDER = (
        "not moved: moving its entry of the indirection table may reorder packets, and its order "
        "is {}"
    )
    ENTRY_OTHERS_ORDER = (
        "not moved: moving its entry of the indirection table may reorder packets, and another "
        "flow of the entry keeps its order"
    )
    ENTRY_SHARED = "shares entry {} with {} on CPU {}, not clearly less busy"
    ENTRY_HELD = "entry {} of the indirection table has just moved, and is held"
    ENTRIES = "most bytes are used there: {}"
    # Where a queue is delivered.
    FOLLOWS = "its owner runs on CPU {}"
    NO_OWNER = "it has no owner: it goes back to the CPU it had"
    CROWDED = "more than {} queues are on CPU {}"
    CPU_LEFT_OUT = "CPU {} may serve no queue"
    CPU_OFFLINE = "CPU {} went offline"
    TO_ITS_OWNER = "{}; its owner runs here"
    NEAREST = "its CPU went offline, and this is the nearest one"
    ONLINE_AGAIN = "its CPU is online again"
    LINK_FLAP = "the NAPI threads of a link that came up again are not confined to a CPU"
    BALANCER_UNASKED = "irqbalance moved it before atfnd asked it not to"
    UNCONFINED = "queue {} may be delivered on any of CPUs {}"
    NOT_SERVED = "the policy serves no queue on CPU {}: serve_on is {}"
    # A setting.
    ASKED_FOR = "asked for"
    POLICY_SAYS = "the policy says so"
    PAUSED = "paused by the operator"
    RESTORED = "restored by the operator"
    GUARD_STOPPED = "the guard stopped steering"
    MEASURED = "a measurement compares without atfnd"
    NIC_GONE = "the interface is gone"
    OTHER_INTERRUPT = "the interrupt is another's now"
    BORROWED = "what keeps the order of flows waits for a queue that can be quiesced"
    WAS_BORROWED = "it was borrowed for moves"
    BORROWED_BEFORE = "an earlier run borrowed NAPI threads"
    TRIAL_WRITE = "a write is measured"
    ONE_OWNER_ATR = "ATR would steer the flows that are steered here"
    ONE_OWNER_RFS = "aRFS and RFS would steer the flows that are steered here"
    ONE_OWNER_RPS = "RPS would hand packets on from the CPU they were steered to"
    XPS = "what CPU {} sends completes on CPU {}, where queue {} is"
    RFS_TABLE = "RFS looks up here on which CPU a flow was last used"
    RFS_OF_QUEUE = "RFS for queue {}: {}"
    RFS_FOUND = "queue {} was found with RFS, and nobody owns it any more"
    RFS_USED = "nobody owns queue {}, and threads that wander use its flows"
    RFS_OWNED = "queue {} has an owner: what it polls is delivered at once"
    RFS_UNUSED = "no thread that wanders uses queue {} any more"
    SYMMETRIC = "both directions of a flow come to queues of one number"
    SYMMETRIC_UNASKED = "no rule asks for a symmetric hash any more"
    SYMMETRIC_ALREADY = "its hash is symmetric without a key ({})"
    KEY_POOR = "with its key one queue received {:.0%} of {} packets"
    RECEPTION_ASKED = "{} asks for {}"
    UNASKED = "{} asks for it no more"
    WHOLE_INTERFACE = "this kernel knows it of the whole interface only (before 6.13)"
    NAPI_UNKNOWN = "which NAPI serves the queue is not known"
    NO_SUSPEND = "this kernel has no irq-suspend-timeout (6.13)"
    NAPI_WITHOUT_THREAD = "its NAPI cannot have a thread"
    NO_BUSY = "this kernel cannot have one NAPI polled without end (6.19)"
    LAST_CPU = "it would take the last CPU that is not isolated"
    MODE_LACKS = "{}: {}"
    HOST_ASKED = "the policy asks for it, of the whole machine; it was {}"
    HOST_GOES_BACK = "{}: it goes back once an interface is armed, or restored"
    HOST_MANUAL = "another program changed it: left alone until `atfnctl resume`"
    # Channels that forward.
    FORWARDING = "forwarding {}: {}"
    CHANNELS_CORE = "channels of one number are on one CPU"
    CHANNELS_MODE_0 = "mode 0: channels of one number are on one CPU"
    CHANNELS_LLC = "as near as the load permits, under one last-level cache"
    CHANNELS_NODE = "as near as the load permits, on one node"
    CHANNELS_MODE_I = "mode I: what receives on one package, what sends on another"
    CHANNELS_MODE_II = "mode II: what sends is beside the busiest that receives"
    RULE_LEAVES = "the rule leaves it"
    WAITS = "waits: {}"
    FORWARDS_UNASKED = "no forwarding rule is for it any more"
    SEVERAL_TX = "{} queue {} may be on any of CPUs {}, which forward to {} by different TX queues"
    OTHER_TX = (
        "{} queue {} would send to {} by another TX queue on CPU {}, which forwards there now"
    )
    XPS_MANUAL = "another program changed xps_cpus of {}"
    EGRESS_NOT_ARMED = "{} is not armed: CPU {} keeps its TX queue"
    TX_FIRST = "CPU {} forwards by that queue as soon as {} queue {} is there"
    TX_TAKEN = "another channel of another TX queue of {} goes to CPU {}"
    TX_BUSY = "CPU {} forwards to {} by TX queue {} now"
    TX_OF_CPUS = "what CPU {} forwards is sent by this queue"
    CHANNEL_REFUSED = "{} queue {}: {}"
    NO_CPU_SERVES = "no CPU may serve the queues of all its interfaces (serve_on)"
    NOT_PLACED_YET = "another place was better at {} looks in a row: not placed yet"
    FEW_FORWARDED = "too few packets to place anything"
    NONE_FORWARDED = "nothing is forwarded"
    # The machine.
    CPU_HAS_TIME = "CPU {} has time for its packets again"
    OWN_CPU = "it used {:.2%} of a core lately, and may use {:.2%}"
    BANNED = "their queues are ours"
    BAN_LIFTED = "another program asked it to: left alone until `atfnctl resume {}`"
    # A trial of `auto`, and its windows.
    UNTIL_SATURATED = "until that is saturated and llc is measured to be better"
    NOT_MEASURED = "nothing is measured yet"
    TAKES = "it takes {:.0%} of CPU {}"
    SHORT_OF_TIME = "{}; it carries {}"
    COMPARED = (
        "{:.2f} x the bytes a CPU-second, {:.2f} x the bytes a second and {:.2f} x the time a byte "
        "of {}"
    )
    COMPARED_IN_FULL = "{}: {} {}, {} {}"
    VOID = "void: {}"
    NOT_IN_FORCE = "{} was not in force within {} s"
    UNEVEN = "its windows are of unequal length"
    EVENTS_LOST = "events were lost"
    NO_FLOWS = "it has no flows"
    FLOWS_CHANGED = "its flows have changed"
    FEW_BYTES = "it carried too few bytes"
    FEW_PACKETS = "it receives fewer than {:.0f} packets a second"
    TIMES_UNKNOWN = "the kernel does not report the CPU time of its threads"
    NOT_READ = "it could not be read"
    NOT_COUNTED = "its driver does not count packets and bytes by queue"
    COUNTED_ANEW = "its counters began anew"
    NOT_CONFINED = "its interrupt is not confined to one CPU"
    OTHER_CPU = "it came to another CPU"
    OTHER_TRIAL = "another trial goes on: where its flows should be delivered"
    OTHER_MODE = "another mode is set up there"
    NO_OTHER_MODE = "nothing else can be had here"
    CARRIES_LESS = "it carries {}, and its core was saturated by {}"
    CARRIES_MORE = "it carries {}, and was tried at {}"
    WOULD_TAKE = "with interrupts it would take {:.0%} of CPU {}"
    DEARER = "it carries {:.2f} x the bytes a CPU-second of interrupts"
    AUTO_UNASKED = "no policy asks for `auto` there"
    OTHER_POLICY = "another policy is in force"
    FILTERS_NO_MORE = "its NIC no longer takes our filters"
    NOT_WRITABLE = "the NIC is not armed, or down"
    # Nothing has to be kept in order.
    SOCKET_GONE = "its socket is gone"
    KEEPS_QUEUE = "its packets keep their queue"
    IMMEDIATE = "the mode is immediate"
    # A mechanism keeps it.
    RING_KEPT = "the flow keeps its ring"
    NO_DATA_YET = "no data can have been sent yet"
    DRAINS = "its old ring can prove that it drained"
    CHECKED = "order is kept with high probability, and checked"
    # None does: each one's reason.
    REFUSED_BY_ALL = "birth: {}; hold: {}; gap: {}"
    NO_FOLLOW = "follow: {}"
    LENDS_NOT = "{}; it cannot borrow one: {}"
    FAILED_BEFORE = "it failed this flow before"
    QUEUE_GONE = "queue {} is gone"
    HANDED_ON = "queue {} has RFS, which hands its packets to other CPUs"
    DEFERS = "queue {} defers its interrupt (napi_defer_hard_irqs), and is polled by a timer"
    DEFERS_UNKNOWN = "whether queue {} defers its interrupt is not known"
    DATA_IN_FLIGHT = "data may be in flight"
    ASYNCHRONOUS = "this NIC does not say when a filter takes effect"
    WRITE_UNKNOWN = "how long writing a filter takes here is not known yet"
    DATA_SOONER = "data may come within {}, sooner than the filter"
    ORIGIN_UNKNOWN = "it is not known through which queues its packets come"
    RSS_UNKNOWN = "a change of a filter passes through RSS here, and RSS's queue is not known"
    UNSURE = "by which of {} queues RSS delivers it is not known, and {}"
    SEVERAL_TARGETS = "it would go to more than one queue"
    COMES_BACK = "it would leave its queue and come back to it"
    TOO_MANY_HOLDS = "queues {} would have to be quiesced at once, and {} can be"
    NOT_QUIESCED = "queue {} cannot be quiesced: {}"
    CPU_HELD = "queue {} has to drain on CPU {}, which a quiesced queue keeps"
    STAGES_UNKNOWN = "what is between the queue's poll and the socket is not known"
    STAGE = "{}, so a poll's end is not yet delivery"
    GRO_UNKNOWN = "whether queue {} holds packets in GRO is not known"
    GRO = "queue {} holds packets in GRO (gro_flush_timeout)"
    BUSY_POLLED = "an application may busy-poll queue {}, which holds packets in GRO"
    MODERATION_UNKNOWN = "how long queue {} moderates interrupts (rx-usecs) is not known"
    NO_THREAD = "queue {} has no NAPI thread, whose sleep would prove it empty"
    TOO_LONG = "a queue may be quiesced for {}, and a move takes {}"
    STRICT = "not in strict mode"
    OPEN = "it is open to any remote, and its gaps cannot be seen"
    # It was put off, or given up before the write.
    QUEUE_CHANGED = "its queue has changed meanwhile"
    REPLACED = "another decision replaced it"
    CLOSED = "its socket was closed"
    NEVER_IDLE = "never idle for {} within {}"
    NOT_HELD = "queue {} is not quiesced: {}"
    NOT_HELD_IN_TIME = "not quiesced within {}"
    # Order was not kept, or is not proven.
    OVERTOOK = "{} packets overtook others"
    OVERTOOK_UNPROVEN = "{} packets overtook others: {}"
    ON_THE_WAY = "on the way: {}"
    RFS_SWITCHED = "RFS was switched on, not by us"
    HOLD_ENDED = "the hold of queue {} ended before its time"
    NOT_DRAINED_IN_TIME = "not drained within {}"
    LOST_UNHELD = "its filter was lost, and RSS's ring was not quiesced"
    TOO_EARLY = "data may have come before the filter"
    BIRTH_UNKNOWN = "it is not known when it was established"
    TELEMETRY_LOST = "telemetry was lost"
    # It is done.
    IN_ORDER = "every packet was seen in order"
    NO_BIRTH = "no connection was being established"
    NO_PACKET = "no packet has come since"
    AS_BEFORE = "its packets still come as before"
    LOST = "the NIC refused it and lost the filter: delivered by RSS"
    # Somebody else was there.
    RESET = "the NIC was reset"
    DISTURBED = "its filter was changed or deleted meanwhile, not by us"

    def __call__(self, *about: object) -> Why:
        return Why(self, about)


UNSAID = Code.UNSAID()
