"""How far the followers of a partition have got, as its leader sees it, and which of them are in sync.

Keeps what followers' fetches report, and computes from it the committed offset, how many replicas have a record, and
the ISR the leader wants. Invariants: a replica that is in the ISR, or may be because a change is in flight, always
counts towards what is committed; a follower joins the ISR only in its registered incarnation. It knows neither the log
nor who waits for what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tailrace.model import NO_OFFSET

#: No limit: larger than any offset.
UNBOUNDED = 1 << 63
_NEVER = float("-inf")
_UNKNOWN_EPOCH = -1


class Follower:
    """One other replica of a partition."""

    __slots__ = (
        "broker_epoch",
        "caught_up_at",
        "fetched_at",
        "is_joining",
        "leader_end_offset",
        "log_end_offset",
        "log_start_offset",
    )

    def __init__(self, caught_up_at: float = _NEVER) -> None:
        #: The offset of its last fetch: it has everything below.
        self.log_end_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.broker_epoch = _UNKNOWN_EPOCH
        #: When it last had everything the leader had, by the leader's clock.
        self.caught_up_at = caught_up_at
        self.fetched_at = _NEVER
        #: The leader's log end at its last fetch.
        self.leader_end_offset = UNBOUNDED
        #: Whether it is about to join the ISR: commits already wait for it, or it would never catch up under load.
        self.is_joining = False

    def fetched(self, offset: int, log_start_offset: int, leader_end_offset: int, now: float) -> bool:
        """Record a fetch from an offset; returns whether it had everything at this fetch or at the previous one."""
        has_all = True
        if offset >= leader_end_offset:
            self.caught_up_at = now
        elif offset >= self.leader_end_offset:
            self.caught_up_at = max(self.caught_up_at, self.fetched_at)
        else:
            has_all = False
        self.log_end_offset = offset
        self.log_start_offset = log_start_offset
        self.leader_end_offset = leader_end_offset
        self.fetched_at = now
        return has_all

    def is_caught_up(self, leader_end_offset: int, now: float, lag_ms: int) -> bool:
        return self.log_end_offset == leader_end_offset or now - self.caught_up_at <= lag_ms / 1000


class Followers:
    """The other replicas of one partition in one leader epoch."""

    def __init__(self, replicas: Iterable[int], isr: Sequence[int], epoch_start_offset: int, now: float) -> None:
        self._isr = tuple(isr)
        self._pending: tuple[int, ...] = ()
        self._broker_epochs: Mapping[int, int] = {}
        # Replicas in the ISR count as caught up until now.
        self._by_id = {replica: Follower(now if replica in self._isr else _NEVER) for replica in replicas}
        #: The leader's log end when its epoch began: a replica below it may be missing committed records.
        self.epoch_start_offset = epoch_start_offset
        #: The offset up to which every replica that counts has everything.
        self.committed_limit = UNBOUNDED
        self._count()

    @property
    def last_fetch(self) -> float:
        """When a follower last fetched; -inf if none has in this epoch."""
        return max((follower.fetched_at for follower in self._by_id.values()), default=_NEVER)

    def __getitem__(self, replica: int) -> Follower:
        return self._by_id[replica]

    def update(self, replicas: Sequence[int], isr: Sequence[int], broker_epochs: Mapping[int, int]) -> None:
        """Take over the replicas, the ISR and every broker's incarnation from the image."""
        self._isr = tuple(isr)
        self._broker_epochs = broker_epochs
        self._by_id = {replica: self._by_id.get(replica) or Follower() for replica in replicas}
        for replica, follower in self._by_id.items():
            if replica in self._isr or not self._is_registered(replica, follower):
                follower.is_joining = False
        self._count()

    def wait_for_change(self, isr: Sequence[int]) -> None:
        """A change to this ISR is in flight, so count its members too; an empty ISR ends this."""
        self._pending = tuple(isr)
        self._count()

    def fetched(
        self,
        replica: int,
        broker_epoch: int,
        offset: int,
        log_start_offset: int,
        leader_start_offset: int,
        leader_end_offset: int,
        high_watermark: int,
        now: float,
    ) -> bool:
        """Record a follower's fetch from an offset; returns whether it could join the ISR now.

        It may not join before it has saved the leader's log start: as leader, it would bring back deleted records.
        """
        follower = self._by_id[replica]
        registered = self._broker_epochs.get(replica)
        if broker_epoch < follower.broker_epoch if registered is None else broker_epoch != registered:
            # Sent by an earlier or unknown incarnation: if it were remembered, it would shut out the current one.
            return False
        if broker_epoch == _UNKNOWN_EPOCH:
            return False
        if broker_epoch != follower.broker_epoch:
            caught_up_at = follower.caught_up_at
            follower = self._by_id[replica] = Follower(caught_up_at)
            follower.broker_epoch = broker_epoch
        had = follower.log_end_offset
        has_all = follower.fetched(offset, log_start_offset, leader_end_offset, now)
        may_join = False
        has_start = log_start_offset >= leader_start_offset
        if has_start and replica not in self._isr and self._is_registered(replica, follower):
            if has_all and not follower.is_joining and offset >= self.epoch_start_offset:
                follower.is_joining = True
                had = NO_OFFSET
            may_join = follower.is_joining and offset >= max(high_watermark, self.epoch_start_offset)
        if offset != had:
            self._count()
        return may_join and replica not in self._pending

    def _is_registered(self, replica: int, follower: Follower) -> bool:
        return self._broker_epochs.get(replica) == follower.broker_epoch

    def _count(self) -> None:
        self.committed_limit = min(
            (
                follower.log_end_offset
                for replica, follower in self._by_id.items()
                if follower.is_joining or replica in self._isr or replica in self._pending
            ),
            default=UNBOUNDED,
        )

    def limit_of(self, count: int, own_end_offset: int) -> int:
        """The offset up to which `count` in-sync replicas, including the leader, have everything."""
        ends = [follower.log_end_offset for replica, follower in self._by_id.items() if replica in self._isr]
        if count > 1 + len(ends):
            return NO_OFFSET
        return min([own_end_offset, *sorted(ends, reverse=True)[: count - 1]])

    def low_watermark(self, own_start_offset: int) -> int:
        """The lowest log start of the replicas that are alive or in the ISR, and so may lead."""
        starts = [
            follower.log_start_offset
            for replica, follower in self._by_id.items()
            if replica in self._broker_epochs or replica in self._isr
        ]
        return min([own_start_offset, *starts])

    def wanted(
        self,
        leader: int,
        leader_start_offset: int,
        leader_end_offset: int,
        high_watermark: int,
        now: float,
        lag_ms: int,
    ) -> tuple[tuple[int, ...], dict[int, int]] | None:
        """The ISR that the leader wants, and its new members with their broker epochs; None for no change."""
        if self._pending:
            return None
        for follower in self._by_id.values():
            if follower.is_joining and not follower.is_caught_up(leader_end_offset, now, lag_ms):
                follower.is_joining = False
                self._count()
        kept = [
            replica
            for replica in self._isr
            if replica == leader
            or (replica in self._by_id and self._by_id[replica].is_caught_up(leader_end_offset, now, lag_ms))
        ]
        added = {
            replica: follower.broker_epoch
            for replica, follower in self._by_id.items()
            if replica not in self._isr
            and self._is_registered(replica, follower)
            and follower.log_start_offset >= leader_start_offset
            and follower.log_end_offset >= max(high_watermark, self.epoch_start_offset)
            and follower.is_caught_up(leader_end_offset, now, lag_ms)
        }
        if len(kept) == len(self._isr) and not added:
            return None
        return (*kept, *added), added
