"""Keeps each node's taint as the rule says: decides when something or time changed, and has it written.

One thread decides, in order; a few others write. While a watch is blind, or another replica leads,
nothing is decided: what is known then is old, and neither a reason to close nor one to open. That time
counts for nothing: an agent's absence goes on where it was, good looks begin anew.
"""

import dataclasses
import functools
import logging
import math
import threading
import time

from agent.cluster import errors, leader
from agent.gate import breaker, decision, due, fabricnodes, hands, pace, view
from agent.gate.breaker import Pool
from agent.gate.decision import Cause, Circumstances, Decision, Memory, Rules
from agent.gate.metrics import Metrics
from agent.gate.records import NodeView
from agent.gate.taints import Written

_FIRST_DELAY_SECONDS = 1.0
_LAST_DELAY_SECONDS = 60.0
# A write that was taken is seen by the watch in milliseconds; until then the old copy is not acted on.
_ECHO_SECONDS = 2.0
_HELD_LOOK_SECONDS = 10.0
_BREAKER_FIRST_SECONDS = 5.0
_BREAKER_AGAIN_SECONDS = 600.0
_NAMES_IN_EVENT = 10
_WRITES_PER_SECOND = 100.0

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What an administrator may change while the gate runs.

    `enforcing`: nodes are closed, and not only said to be; nodes that are fit are opened all the
    same, whoever closed them with our taint. `writing`: by this gate, and not by another controller.
    """

    rules: Rules
    limits: breaker.Limits
    enforcing: bool
    writing: bool


class Keeper:
    """Decides about every node of the pool and has it made so, or says what it would do."""

    def __init__(
        self,
        picture: view.View,
        candidate: leader.Leader,
        crew: hands.Hands,
        orders: Orders,
        counters: Metrics,
    ) -> None:
        self._view = picture
        self._leader = candidate
        self._hands = crew
        self._orders = orders
        self._next_orders: Orders | None = None
        self._counters = counters
        self._due = due.Due()
        self._pace = pace.Pace(per_second=_WRITES_PER_SECOND, burst=int(_WRITES_PER_SECOND))
        self._acting = False
        self._acted_at = time.monotonic()
        self._resume_at = 0.0
        self._stop = threading.Event()
        self.last_step = time.monotonic()
        self._nodes: dict[str, _Known] = {}
        self._pools: dict[str, Pool] = {}
        # Pool → when to tell of its breaker again, and of how many nodes was told.
        self._told: dict[str, tuple[float, int]] = {}

    def run(self) -> None:
        """Steps until told to stop."""
        while not self._stop.is_set():
            self.last_step = time.monotonic()
            self._step()
        self._hands.stop()

    def stop(self) -> None:
        """Makes `run` return after the writes that are being done."""
        self._stop.set()
        self._view.wake()

    def order(self, orders: Orders) -> None:
        """Takes new orders from the next step on."""
        self._next_orders = orders
        self._view.wake()

    def _step(self) -> None:
        """Waits for a change or a time, and does what follows from it."""
        changed = self._view.wait(self._pause())
        now = time.monotonic()
        for name in changed:
            self._due.put(name, now)
        for one in self._hands.done():
            self._finish(one, now)
        if not self._may_act():
            return
        while not self._stop.is_set() and now >= self._resume_at and not self._pace.wait(now):
            first = self._due.pop(now)
            if first is None:
                break
            self._look(first, now)
            self.last_step = now = time.monotonic()
        self._tell_breakers(now)

    def _pause(self) -> float:
        now = time.monotonic()
        if not self._acting:
            return 1.0  # leadership ends by time, which nobody calls out
        first = max(self._due.first(), self._resume_at, now + self._pace.wait(now))
        told = min((at for at, _ in self._told.values()), default=math.inf)
        return min(max(0.0, min(first, told) - now), 1.0)

    def _may_act(self) -> bool:
        """Whether all watches see and this gate leads. When that begins, everything is looked at anew."""
        acting = self._view.current and self._leader.leading
        self._counters.enforcing.set(int(self._orders.enforcing))
        self._counters.writes_taints.set(int(self._orders.writing))
        self._counters.current.set(int(self._view.current))
        self._counters.leading.set(int(self._leader.leading))
        orders, self._next_orders = self._next_orders, None
        now = time.monotonic()
        if acting:
            blind, self._acted_at = now - self._acted_at, now
        if acting == self._acting and orders is None:
            return acting
        if orders is not None:
            self._orders = orders
            _log.info("new orders: %s", orders)
        if acting != self._acting:
            _log.info("the gate sees the cluster and leads" if acting else "the gate holds")
        if acting:
            self._warn()
        if acting and not self._acting:
            self._skip(blind)
        self._acting = acting
        self._recount()
        for name in self._view.names():
            self._due.put(name, now)
            # All are counted before the first is decided about.
            if (node := self._view.node(name)) is not None:
                self._count_in(node)
        return acting

    def _warn(self) -> None:
        """Says what is probably not meant, and what is easily forgotten."""
        if not self._orders.writing:
            _log.warning("mode nrc: this gate neither writes nor removes the taint, whoever does")
        nodes = [node for name in self._view.names() if (node := self._view.node(name))]
        if not nodes:
            _log.warning("no node is in a pool: nothing is gated until nodes have the pool's label")
        if control_plane := sorted(node.name for node in nodes if node.control_plane):
            shown = ", ".join(control_plane[:_NAMES_IN_EVENT])
            _log.warning("control-plane nodes are in a pool: %s (%d)", shown, len(control_plane))

    def _skip(self, seconds: float) -> None:
        """Takes time in which nothing could be heard out of every wait."""
        for known in self._nodes.values():
            if known.memory is not None:
                known.memory = decision.after_blindness(known.memory, seconds)

    def _recount(self) -> None:
        """Counts anew what is in the pools; what is being written stays known."""
        for known in self._nodes.values():
            known.pool, known.reserved_at, known.wanted_since = None, None, None
        self._pools.clear()
        self._told.clear()
        self._counters.held.clear()
        self._counters.closed.clear()

    def _known(self, name: str) -> "_Known":
        return self._nodes.setdefault(name, _Known())

    def _pool(self, node: NodeView) -> Pool:
        return self._pools.setdefault(node.pool, Pool(self._orders.limits))

    def _count_in(self, node: NodeView) -> None:
        """Counts the node in its pool; the others' absence counts or does not with it."""
        known = self._known(node.name)
        if known.pool is not None and known.pool != node.pool:
            self._pools[known.pool].drop(node.name)
        known.pool = node.pool
        pool = self._pool(node)
        before = pool.mass_absence
        found = self._view.fabric_node(node.name)
        ready = self._view.agent_ready(node.name)
        was_proven = decision.proven(node) or decision.adopted(node, found)
        if node.taint is not None:
            known.reserved_at = None
        member = breaker.member(node, proven=was_proven, agent_ready=ready)
        if member.closed_at is None and known.reserved_at is not None:
            member = dataclasses.replace(member, closed_at=known.reserved_at)
        pool.put(node.name, member)
        if pool.mass_absence != before:
            _log.warning("pool %s: agents absent: %d", node.pool, len(pool.absent))
            for name in pool.absent:
                # Their graces start here, or count again from here.
                self._known(name).memory = None
                self._due.put(name, time.monotonic())

    def _look(self, name: str, now: float) -> None:
        known = self._known(name)
        if known.busy:
            known.again = True
            return
        node = self._view.node(name)
        if node is None:
            self._leave(name, known)
            return
        self._count_in(node)
        policy = fabricnodes.Policy(
            enforcing=self._orders.enforcing, installed_at=self._leader.installed_at
        )
        found = self._view.fabric_node(name)
        target = fabricnodes.wanted(node, found, policy)
        around = Circumstances(
            now=now,
            wall=time.time(),
            agent_ready=self._view.agent_ready(name),
            fabric_node=target,
            mass_absence=self._pool(node).mass_absence,
        )
        said, memory = decision.decide(node, around, known.memory, self._orders.rules)
        decide = functools.partial(
            _again, around=around, memory=known.memory, rules=self._orders.rules
        )
        known.memory = memory
        said = self._within_limits(node, said, around)
        self._show(known, node, said)
        self._due.put(name, said.again_at)
        job = hands.Job(node=node, said=said)
        if found is None:
            job = dataclasses.replace(job, create=target)
        elif found.owner != node.uid:
            job = dataclasses.replace(job, delete=True)
        elif found != target:
            job = dataclasses.replace(job, adopt=target)
        if node.malformed != known.malformed:
            known.malformed = node.malformed
            job = dataclasses.replace(job, malformed=bool(node.malformed))
        if self._differs(known, node, said, now):
            job = dataclasses.replace(job, taint=(decide, around.wall))
            if said.limited and node.taint is None:
                known.reserved_at = around.wall
                self._count_in(node)
        self._give(known, job, now)

    def _give(self, known: "_Known", job: hands.Job, now: float) -> None:
        if job == hands.Job(node=job.node, said=job.said):
            return
        if job.taint or job.release:
            self._pace.take(now)
        known.busy = True
        self._hands.give(job)

    def _within_limits(self, node: NodeView, said: Decision, around: Circumstances) -> Decision:
        """The decision, or that the node stays open since too many would be closed."""
        pool = self._pool(node)
        held = said.cause is Cause.HELD
        value = decision.AGENT
        if said.limited and node.taint is None and self._orders.writing:
            room_at = pool.room_at(around.wall)
            if room_at > around.wall:
                held, value = True, said.value
                wait = min(room_at - around.wall, _HELD_LOOK_SECONDS)
                why = f"too many would be closed at once; held back: {said.why}"
                said = Decision(
                    taint=False, value="", cause=Cause.HELD, why=why, again_at=around.now + wait
                )
        if held:
            pool.held[node.name] = value
        else:
            pool.held.pop(node.name, None)
        return said

    def _differs(self, known: "_Known", node: NodeView, said: Decision, now: float) -> bool:
        """Whether the taint is to be written; where it is not by this gate, says what it would be."""
        if said.wanted == node.taint:
            known.wanted_since = None
            return False
        news = known.wanted_since is None or known.wanted != said.wanted
        if news:
            known.wanted_since, known.wanted = now, said.wanted
        if self._orders.writing and (self._orders.enforcing or not said.taint):
            return True
        if news:
            self._counters.withheld.labels(action=_action(said)).inc()
            _log.info("would %s %s: %s", _action(said), node.name, said.why)
        return False

    def _leave(self, name: str, known: "_Known") -> None:
        """About a node that was deleted or taken out of the pool."""
        was_tainted = known.tainted
        self._show(known, None, None)
        if known.pool is not None:
            pool = self._pools[known.pool]
            pool.drop(name)
            pool.held.pop(name, None)
        found = self._view.fabric_node(name)
        if found is None and known.pool is None:
            del self._nodes[name]
            return
        known.pool, known.memory = None, None
        node = NodeView(name=name)
        writes = self._orders.writing
        release = writes and (found is not None or was_tainted)
        job = hands.Job(node=node, release=release, delete=found is not None and not writes)
        self._give(known, job, time.monotonic())
        if not known.busy:
            del self._nodes[name]

    def _finish(self, done: hands.Done, now: float) -> None:
        """A job ended: what it was about is looked at again."""
        name, said = done.job.node.name, done.job.said
        known = self._known(name)
        known.busy = False
        if known.again:
            known.again = False
            self._due.put(name, now)
        if done.written is not Written.DONE:
            known.reserved_at = None
        if done.written is Written.DONE and said is not None:
            since = known.wanted_since
            known.wanted_since = None
            if since is not None:
                self._counters.write_delay.observe(now - since)
            _log.info("%s %s: %s", _action(said), name, said.why)
        if done.error is not None:
            self._put_off(name, known, done.error, now)
            return
        known.failures = 0
        self._due.put(name, now + _ECHO_SECONDS)

    def _put_off(self, name: str, known: "_Known", error: errors.ApiError, now: float) -> None:
        """The server did not do it: this node waits, ever longer.

        Where others would fail too, they wait a moment as well. When the server is away the watches
        are blind soon, and then everything holds.
        """
        known.failures += 1
        delay = min(_FIRST_DELAY_SECONDS * 2 ** min(known.failures - 1, 10), _LAST_DELAY_SECONDS)
        if isinstance(error, errors.Throttled):
            self._resume_at = now + min(error.retry_after_seconds, _LAST_DELAY_SECONDS)
        elif isinstance(error, errors.Unreachable):
            self._resume_at = now + _FIRST_DELAY_SECONDS
        self._due.drop(name)
        self._due.put(name, now + delay)
        _log.warning("can't write about %s: %s; again in %.0f s", name, error, delay)

    def _show(self, known: "_Known", node: NodeView | None, said: Decision | None) -> None:
        """The node's part in the metrics; none where it is no more."""
        cause = said.cause if said else None
        tainted = node is not None and node.taint is not None
        if known.cause != cause:
            if known.cause:
                self._counters.nodes.labels(cause=known.cause.value).dec()
            if cause:
                self._counters.nodes.labels(cause=cause.value).inc()
            known.cause = cause
        if known.tainted != tainted:
            self._counters.tainted.inc(1 if tainted else -1)
            known.tainted = tainted

    def _tell_breakers(self, now: float) -> None:
        """An event when a breaker has been open for a moment, again while it stays so, and when it closes."""
        for name, pool in self._pools.items():
            held = len(pool.held)
            self._counters.held.labels(pool=name).set(held)
            self._counters.closed.labels(pool=name).set(pool.closed)
            if held and name not in self._told:
                self._told[name] = now + _BREAKER_FIRST_SECONDS, 0
            elif held and now >= self._told[name][0]:
                self._told[name] = now + _BREAKER_AGAIN_SECONDS, held
                self._hands.tell_breaker(name, _held_text(pool), is_open=True)
            elif not held and name in self._told:
                _, told = self._told.pop(name)
                if told:
                    self._hands.tell_breaker(name, "nothing is held back any more", is_open=False)


@dataclasses.dataclass(slots=True, kw_only=True)
class _Known:
    """What the keeper remembers of a node.

    `wanted` is what its taint should be, and since when (`wanted_since`, None: it is so). `busy`
    holds while a job about it is out, and `again` when it changed meanwhile. `reserved_at` is when
    room in the breaker was taken for it.
    """

    memory: Memory | None = None
    pool: str | None = None
    cause: Cause | None = None
    tainted: bool = False
    malformed: str = ""
    wanted: str | None = None
    wanted_since: float | None = None
    busy: bool = False
    again: bool = False
    reserved_at: float | None = None
    failures: int = 0


def _again(node: NodeView, around: Circumstances, memory: Memory | None, rules: Rules) -> Decision:
    return decision.decide(node, around, memory, rules)[0]


def _action(said: Decision) -> str:
    return "taint" if said.taint else "untaint"


def _held_text(pool: Pool) -> str:
    names = sorted(pool.held)
    more = len(names) - _NAMES_IN_EVENT
    shown = ", ".join(f"{name} ({pool.held[name]})" for name in names[:_NAMES_IN_EVENT])
    rest = f" and {more} more" if more > 0 else ""
    return f"{pool.closed} of {len(pool)} proven nodes are closed; held back: {shown}{rest}"
