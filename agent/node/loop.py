"""The node daemon: probes run, the ledger remembers, the condition says, the publisher tells."""

import logging
import signal
import threading
import time
from pathlib import Path

from agent import endpoint
from agent.cluster import api as cluster_api
from agent.cluster import errors
from agent.cluster import token as tokens
from agent.node import (
    announce,
    clock,
    condition,
    fabricnode,
    ladder,
    ledger,
    outbox,
    probing,
    recheck,
    state,
    verified,
)
from agent.node.condition import Condition
from agent.node.ladder import Ladder
from agent.node.ledger import Ledger, Run
from agent.node.metrics import NodeMetrics
from agent.node.orders import Follower
from agent.node.publisher import Publisher
from agent.node.report import Report
from agent.node.runner import Runner
from agent.node.schedule import Schedule
from agent.settings import Settings
from probes.contract import Outcome, Verdict

_log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
_AFTER_ERROR_SECONDS = 1.0


def run(settings: Settings) -> int:
    """Runs the daemon until SIGTERM or SIGINT; writes nothing on the way out.

    Returns:
        the process's exit code: 0 after a signal, 1 when it can't start.

    Raises:
        SettingsError: the settings ask for what does not exist.
    """
    try:
        catalogue = probing.catalogue(settings)
        rungs = ladder.build(catalogue, settings)
        daemon = Daemon(settings, rungs)
    except (probing.ProbesUnusable, errors.ApiError, OSError) as error:
        _log.error("the agent can't start: %s", error)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: daemon.stop())
    return daemon.run()


class Daemon:
    """One node's daemon.

    Raises:
        Refused: there is no usable service-account token, or it is not this node's.
        OSError: the HTTP port is taken, or the boot id can't be read.
    """

    def __init__(self, settings: Settings, rungs: Ladder) -> None:
        self._settings = settings
        self._ladder = rungs
        folder = Path(settings.node.serviceaccount_dir)
        # Two readers of one file: the publisher's thread has the other.
        server, self._token = cluster_api.in_cluster(folder)
        claim = self._token.node()
        self._node = settings.node.name or claim.name
        if self._node != claim.name:
            raise errors.Refused(
                f"NODE_NAME is {self._node}, but the token is bound to {claim.name}"
            )
        self._uid = claim.uid
        self._boot_id = _boot_id(settings)
        self._profile_hash = probing.judged_by(settings)
        self._path = Path(settings.node.run_dir) / "state.json"
        self._verified = verified.VerifiedFile(self._path.parent, self._boot_id)
        self._ledger = Ledger(boot_id=self._boot_id)
        saved = self._restore()
        self._condition: Condition | None = saved.condition if saved else None
        self._since = saved.since if saved else clock.timestamp()
        self._delivered = saved.delivered if saved else None
        self._dirty = True
        self._stopping = threading.Event()
        self.metrics = NodeMetrics()
        box = outbox.Outbox(
            self._node, settings.node.heartbeat_seconds, self._delivered, time.monotonic()
        )
        api = cluster_api.Api(server, tokens.Token(folder / "token"))
        self._publisher = Publisher(api, self._node, box, self.metrics, self._note_delivered)
        # A watch needs a connection, and so a client, of its own.
        watching = cluster_api.Api(server, tokens.Token(folder / "token"))
        self._follower = Follower(watching, self._node)
        self._recheck = recheck.Recheck(saved.recheck if saved else "")
        self._described: fabricnode.Status | None = None
        self._schedule = self._new_schedule()
        if saved and saved.profile_hash == self._profile_hash:
            self._schedule.resume(self._ledger)
        self._runner = Runner(probing.serving(settings), clock.since_boot)
        self._report = Report(rungs, self._node)
        self._serve()

    def _restore(self) -> state.Saved | None:
        """What was proven in this boot; None where that was told to another Node object."""
        saved = state.load(self._path, self._boot_id)
        if saved is None:
            return None
        self._ledger = ledger.restrict(saved.ledger, self._ladder)
        if saved.uid == self._uid:
            return saved
        self._forget()
        return None

    def _forget(self) -> None:
        """Another Node object: what was proven for the old one is not its own."""
        _log.warning("Node %s was made anew: verifying anew", self._node)
        self._ledger = ledger.unproven(self._ledger)

    def _new_schedule(self) -> Schedule:
        spacing = self._settings.node.hysteresis.recovery_spacing_seconds
        return Schedule(self._ladder, self._node, spacing)

    def _serve(self) -> None:
        pages = {
            "/metrics": endpoint.metrics(self.metrics.registry),
            "/healthz": endpoint.check(self._sickness),
            "/readyz": endpoint.check(self._unready),
            "/verdicts": self._report.page,
        }
        address = (self._settings.node.http_address, self._settings.node.http_port)
        endpoint.Server(address, pages).start()

    def _sickness(self) -> str:
        if not self._publisher.alive:
            return "the publisher ended"
        return self._report.not_ticking()

    def _unready(self) -> str:
        """Why nobody should rely on what the API server says of this node."""
        return self._report.not_ready() or self._publisher.unheard()

    def stop(self) -> None:
        """Ends the loop at its next step."""
        self._stopping.set()

    def run(self) -> int:
        """The loop."""
        words = "restored" if self._condition else "first look in this boot"
        _log.info(
            "agent starts", extra={"node": self._node, "boot_id": self._boot_id, "state": words}
        )
        self._publisher.start()
        self._follower.start()
        self._begin()
        while not self._stopping.is_set():
            try:
                self._step()
            except Exception:  # noqa: BLE001  (a bug of ours must not end the node's only witness)
                _log.exception("a step of the loop failed")
                self.metrics.loop_errors.inc()
                self._stopping.wait(_AFTER_ERROR_SECONDS)
        self._runner.stop()
        self._publisher.stop()
        self._save()
        _log.info("agent stops")
        return 0

    def _begin(self) -> None:
        for name, why in self._ladder.broken:
            self._record(_broken(name, why))
        self._conclude()

    def _look_at_token(self) -> None:
        """Once the token is bound to another Node object of our name, that one is ours to prove."""
        try:
            claim = self._token.node()
        except errors.Refused:
            return  # the publisher meets the same and says so
        if claim.name != self._node or claim.uid == self._uid:
            return
        self._uid = claim.uid
        self._forget()
        self._condition, self._schedule = None, self._new_schedule()
        self._begin()

    def _step(self) -> None:
        self._look_at_token()
        now = clock.since_boot()
        for name in self._schedule.due(now, self._ledger, self._runner.running):
            probe = self._ladder.probe(name)
            if probe is not None:
                entry = self._ledger.entries.get(name)
                seen = entry.seen if entry else ()
                self._runner.start(probe, probing.request(self._settings, name, seen))
        self._obey()
        runs = self._runner.wait(_TICK_SECONDS)
        if self._runner.changed:
            _log.info("ports changed", extra={"ports": sorted(self._runner.changed)})
            self._runner.changed.clear()
            self._schedule.changed(clock.since_boot(), self._ledger)
        for run in runs:
            self._record(run)
        self.metrics.worker_restarts.inc(self._runner.restarts)
        self._runner.restarts = 0
        hysteresis = self._settings.node.hysteresis
        settled = ledger.settle(self._ledger, clock.since_boot(), self._ladder, hysteresis)
        if runs or settled != self._ledger:
            self._ledger = settled
            self._conclude()
        if self._dirty:
            self._save()
        self._report.tick()

    def _obey(self) -> None:
        """Looks at everything again when a human asks, and tells the FabricNode what is known."""
        orders = self._follower.latest(self._uid)
        if orders is None or self._condition is None:
            self._described = None
            self._publisher.want_object(None)
            return
        if self._described is None:
            self._described = orders.status or fabricnode.EMPTY
            self._publisher.know_object(orders.status)
        if self._recheck.asked(orders.recheck, clock.since_boot()):
            _log.info("checking again, as FabricNode %s asks: %s", self._node, orders.recheck)
            self._schedule.again()
        if self._recheck.done(self._ledger, self._ladder):
            self._dirty = True
        now = fabricnode.Now(
            ledger=self._ledger,
            ladder=self._ladder,
            condition=self._condition,
            recheck=self._recheck.last_done,
            at=clock.timestamp(),
        )
        self._described = fabricnode.describe(now, self._described)
        self._publisher.want_object(self._described)

    def _record(self, run: Run) -> None:
        before = self._ledger.entries.get(run.probe)
        hysteresis = self._settings.node.hysteresis
        self._ledger = ledger.record(self._ledger, run, self._ladder, hysteresis)
        self._schedule.finished(run.probe, run.verdict, run.ended, self._ledger)
        self.metrics.show_run(run.probe, run.verdict, run.ended - run.started)
        if before is None or before.last.outcome is not run.verdict.outcome:
            level = (
                logging.INFO
                if run.verdict.outcome in {Outcome.PASS, Outcome.SKIP}
                else logging.WARNING
            )
            _log.log(level, "%s", run.verdict.message, extra=_fields(run))
        last = before.last if before else None
        for event in announce.warnings(self._about(), run, last, clock.timestamp()):
            self._publisher.tell(event)

    def _conclude(self) -> None:
        """The condition from the ledger; what changed goes out."""
        before = self._condition
        now = condition.decide(self._ledger, self._ladder, before)
        if before is None or before.status != now.status:
            self._since = clock.timestamp()
        self._condition = now
        self._dirty = True
        self._publisher.want(
            outbox.State(
                condition=now,
                since=self._since,
                boot_id=self._boot_id,
                profile_hash=self._profile_hash,
                uid=self._uid,
            )
        )
        if before is None or (before.status, before.reason) != (now.status, now.reason):
            self._announce(now)
        self._verified.update(self._ledger, self._ladder)
        self.metrics.show_state(now, self._ledger, self._ladder)
        self._report.show(now, self._ledger)

    def _announce(self, now: Condition) -> None:
        fields = {"status": now.status, "reason": now.reason, "blocked_rung": now.blocked_rung}
        _log.info("%s", now.message, extra=fields)
        self._publisher.tell(announce.transition(self._about(), now, clock.timestamp()))

    def _about(self) -> announce.About:
        return announce.About(node=self._node, uid=self._uid, boot_id=self._boot_id)

    def _note_delivered(self, delivered: outbox.State) -> None:
        """Called by the publisher's thread."""
        self._delivered = delivered
        self._dirty = True

    def _save(self) -> None:
        self._dirty = False
        if self._condition is None:
            return
        saved = state.Saved(
            ledger=self._ledger,
            condition=self._condition,
            since=self._since,
            profile_hash=self._profile_hash,
            delivered=self._delivered,
            recheck=self._recheck.last_done,
            uid=self._uid,
        )
        try:
            state.save(self._path, saved)
        except OSError as error:
            # A restart will then verify anew; nothing is claimed that was not proven.
            _log.warning("%s can't be written: %s", self._path, error.strerror)


def _broken(name: str, why: str) -> Run:
    verdict = Verdict(
        outcome=Outcome.UNKNOWN, reason="ProbeBroken", message=f"{name} can't be loaded: {why}"
    )
    now = clock.since_boot()
    return Run(probe=name, verdict=verdict, started=now, ended=now)


def _fields(run: Run) -> dict[str, object]:
    verdict = run.verdict
    return {
        "probe": run.probe,
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "seconds": round(run.ended - run.started, 3),
    }


def _boot_id(settings: Settings) -> str:
    path = Path(settings.host.root) / "proc/sys/kernel/random/boot_id"
    return path.read_text(encoding="ascii").strip()
