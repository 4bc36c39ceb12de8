"""Which replica decides: the official client's leader election, over a Lease.

The client's own lock builds typed models and sets no time limit on its calls; this one goes through
the gate's connection. Leadership also ends by time alone: a call that hangs renews nothing.
"""

import datetime as dt
import logging
import os
import threading
import time
import types
import uuid
from collections.abc import Callable
from typing import Any

from kubernetes.leaderelection import electionconfig, leaderelection
from kubernetes.leaderelection.leaderelectionrecord import LeaderElectionRecord

from agent.cluster import connection, errors

NAME = "fabric-gate"
LEASE_SECONDS = 15
_RENEW_DEADLINE_SECONDS = 10
_RETRY_SECONDS = 2
_NOT_FOUND = '{"code": 404}'

_log = logging.getLogger(__name__)


class Leader:
    """This process as a candidate. `changed` is called when it begins and ends to lead."""

    def __init__(
        self, api: connection.Connection, namespace: str, changed: Callable[[], None]
    ) -> None:
        self._lock = _Lease(api, namespace)
        self._changed = changed
        self._elected = False

    @property
    def leading(self) -> bool:
        """Whether nobody else can be leading now."""
        fresh = time.monotonic() - self._lock.renewed < LEASE_SECONDS
        return self._elected and fresh

    @property
    def installed_at(self) -> float:
        """When the Lease was made, which the first gate of an installation does; seconds since 1970."""
        return self._lock.created

    def run(self) -> None:
        """Stands for election until it resigns, again after each loss."""
        # It says at level info every two seconds that somebody else leads.
        logging.getLogger("leaderelection").setLevel(logging.WARNING)
        while True:
            try:
                leaderelection.LeaderElection(self._configuration()).run()  # type: ignore[no-untyped-call]
            except _ResignedError:
                return
            except Exception:  # noqa: BLE001  (an election that ends must not end the candidate)
                _log.exception("the election failed; standing again")
                self._set(elected=False)
                time.sleep(_RETRY_SECONDS)

    def _configuration(self) -> electionconfig.Config:
        return electionconfig.Config(  # type: ignore[no-untyped-call]
            self._lock,
            LEASE_SECONDS,
            _RENEW_DEADLINE_SECONDS,
            _RETRY_SECONDS,
            lambda: self._set(elected=True),
            lambda: self._set(elected=False),
        )

    def resign(self) -> None:
        """Leads no more, and gives the Lease back, so that the other replica need not wait for its end."""
        was_elected = self._elected
        self._set(elected=False)
        self._lock.retire(release=was_elected)

    def _set(self, *, elected: bool) -> None:
        if self._elected != elected:
            self._elected = elected
            _log.info("this gate leads" if elected else "this gate does not lead any more")
            self._changed()


def made_at(api: connection.Connection, namespace: str) -> float | None:
    """When the Lease was made, in seconds since 1970; None where there is none.

    Raises:
        ApiError: any of its kinds.
    """
    try:
        lease = api.get(f"{_path(namespace)}/{NAME}")
    except errors.Conflict as error:
        if error.gone:
            return None
        raise
    return _created(lease)


class _ResignedError(Exception):
    """The client's election knows no other end."""


class _Lease:
    """The lock as the client's election wants it: records in and out, and never an exception but that one."""

    def __init__(self, api: connection.Connection, namespace: str) -> None:
        self._api = api
        self.name = NAME
        self.namespace = namespace
        self.identity = f"{os.environ.get('HOSTNAME', 'gate')}_{uuid.uuid4().hex[:8]}"
        self.renewed = -float(LEASE_SECONDS)
        self.created = 0.0
        self._seen: dict[str, Any] = {}
        self._retired = threading.Event()

    def get(self, name: str, namespace: str) -> tuple[bool, Any]:
        """The record that is there; else what the election takes for an error."""
        if self._retired.is_set():
            raise _ResignedError
        try:
            lease = self._api.get(f"{_path(namespace)}/{name}")
        except errors.ApiError as error:
            gone = isinstance(error, errors.Conflict) and error.gone
            return False, types.SimpleNamespace(body=_NOT_FOUND if gone else "", reason=error)
        self._take(lease)
        return True, self._record()

    def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        """Makes the Lease with this record in it."""
        body = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": name, "namespace": namespace},
            "spec": _spec(election_record),
        }
        return self._written(lambda: self._take(self._api.create(_path(namespace), body)))

    def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        """Writes this record, if the Lease is still the one that was read."""
        if self._retired.is_set():
            return False
        body = {**self._seen, "spec": {**self._seen.get("spec", {}), **_spec(updated_record)}}
        return self._written(lambda: self._api.replace(f"{_path(namespace)}/{name}", body))

    def retire(self, *, release: bool) -> None:
        """Ends the election, and empties the Lease that is ours."""
        self._retired.set()
        if not release:
            return
        path = f"{_path(self.namespace)}/{self.name}"
        try:
            lease = self._api.get(path)
            if lease["spec"].get("holderIdentity") == self.identity:
                spec = {**lease["spec"], "holderIdentity": ""}
                self._api.replace(path, {**lease, "spec": spec})
        except errors.ApiError as error:
            _log.warning("the Lease runs out by itself: %s", error)

    def _written(self, write: Callable[[], None]) -> bool:
        # Counted from before the call: that is the earliest that the server can have taken it.
        started = time.monotonic()
        try:
            write()
        except errors.ApiError as error:
            _log.warning("the Lease was not renewed: %s", error)
            return False
        self.renewed = started
        return True

    def _take(self, lease: dict[str, Any]) -> None:
        self._seen = lease
        self.created = _created(lease)

    def _record(self) -> LeaderElectionRecord:
        spec = self._seen.get("spec") or {}
        return LeaderElectionRecord(  # type: ignore[no-untyped-call]
            spec.get("holderIdentity") or None,
            spec.get("leaseDurationSeconds"),
            spec.get("acquireTime"),
            spec.get("renewTime"),
        )


def _created(lease: dict[str, Any]) -> float:
    return dt.datetime.fromisoformat(lease["metadata"]["creationTimestamp"]).timestamp()


def _spec(record: LeaderElectionRecord) -> dict[str, Any]:
    return {
        "holderIdentity": record.holder_identity,
        "leaseDurationSeconds": int(record.lease_duration),
        "acquireTime": _micro_time(record.acquire_time),
        "renewTime": _micro_time(record.renew_time),
    }


def _micro_time(text: str) -> str:
    """The election's local time, or one that came from a Lease, as the API writes it."""
    time_ = dt.datetime.fromisoformat(text).astimezone(dt.UTC)
    return time_.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _path(namespace: str) -> str:
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
