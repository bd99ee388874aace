"""The classic rebalance protocol: join, sync, heartbeat and leave, with their timers.

The coordinator elects a group leader and distributes the leader's assignment without interpreting it. State that must
survive the process is in the journal before any client learns of it; waiting requests and timers are not stored.
`docs/architecture.md` has the table of all transitions. Nothing here suspends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from tailrace.coordinator.deadlines import Deadline
from tailrace.coordinator.operations import Operations, error_of
from tailrace.errors import ErrorCode, KafkaError
from tailrace.groups.classic_group import (
    NO_GENERATION,
    UNKNOWN_MEMBER,
    ClassicGroup,
    GroupState,
    JoinResult,
    Member,
    MemberProtocol,
    SyncResult,
)
from tailrace.groups.counters import GroupCounters
from tailrace.groups.newcomers import Newcomers
from tailrace.groups.records import GroupMetadataKey, GroupMetadataValue, encode_key, encode_value
from tailrace.groups.settings import GroupSettings
from tailrace.runtime.clock import Clock

logger = logging.getLogger("tailrace.groups")

# Every heartbeat reads these, and attribute lookup on an enum is slow.
_NONE = ErrorCode.NONE
_DEAD = GroupState.DEAD
_EMPTY = GroupState.EMPTY
_COMPLETING_REBALANCE = GroupState.COMPLETING_REBALANCE
_PREPARING_REBALANCE = GroupState.PREPARING_REBALANCE

#: A member that has never been in a generation expires after this time, whatever its session timeout.
_NEW_MEMBER_TIMEOUT_MS = 300_000
#: The delay before retrying to write a group's record.
_RETRY_MS = 5_000
#: How long to wait at least for members of which none has joined, even if their own timeout is 0.
_SHORTEST_REBALANCE_MS = 1_000


class JoinCall(NamedTuple):
    """A request to join or rejoin."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    #: Whether a new member must rejoin with the id it is given, so that a lost response leaves no orphan member.
    needs_known_id: bool
    can_skip_assignment: bool


class SyncCall(NamedTuple):
    """A request for a member's assignment; the leader's request brings all assignments."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class Identity(NamedTuple):
    """The ids by which a LeaveGroup request names a member."""

    member_id: str
    instance_id: str | None


class Left(NamedTuple):
    """The result of removing one member."""

    member_id: str
    instance_id: str | None
    error: ErrorCode


class ClassicProtocol:
    """Drives the classic groups of one shard."""

    def __init__(
        self,
        settings: Callable[[], GroupSettings],
        operations: Operations,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        new_id: Callable[[], str],
        counters: GroupCounters,
        newcomers: Newcomers,
        abandoned: Callable[[ClassicGroup], None],
    ) -> None:
        self._settings = settings
        self._operations = operations
        self._clock = clock
        self._loop = loop
        self._new_id = new_id
        self._counters = counters
        self._newcomers = newcomers
        # Called when a group that never had a member loses its last pending one.
        self._abandoned = abandoned

    # --- life of a group

    def begin(self, group: ClassicGroup) -> None:
        """Start the timers of a group that was loaded."""
        for member in group.members.values():
            self._watch(group, member)
            self._keep_alive(member)
        if len(group.members) > self._settings().max_size:
            self._prepare_rebalance(group, f"it has {len(group.members)} members, more than group.max.size")

    def end(self, group: ClassicGroup, error: ErrorCode) -> None:
        """Answer all waiting requests with `error` and stop the timers: this coordinator no longer owns the group."""
        for member in list(group.members.values()):
            member.answer_join(JoinResult(error, member_id=member.member_id))
            member.answer_sync(SyncResult(error))
            if member.session is not None:
                member.session.clear()
            self._newcomers.remove(member)
        for member_id in list(group.pending):
            self._forget_pending(group, member_id)
        for deadline in (group.rebalance, group.sync_deadline):
            if deadline is not None:
                deadline.clear()
        self._enter(group, GroupState.DEAD)

    def call_together(self, group: ClassicGroup, why: str) -> None:
        """Start a rebalance: every member must rejoin."""
        self._prepare_rebalance(group, why)

    # --- joining

    def join(self, group: ClassicGroup, call: JoinCall) -> JoinResult | asyncio.Future[JoinResult]:
        """Add a member or let it rejoin; the response is sent when the generation is complete."""
        self.check_join(group, call)
        if call.member_id == UNKNOWN_MEMBER:
            return self._join_as_newcomer(group, call)
        if call.member_id in group.pending:
            if call.instance_id is not None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            return self._add(group, call, call.member_id)
        member = group.check_member(call.member_id, call.instance_id)
        return self._join_again(group, call, member)

    def check_join(self, group: ClassicGroup, call: JoinCall) -> None:
        """Refuse a member if the group is full, or if it shares no protocol with the others."""
        if group.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not group.has_room_for(call.member_id, self._settings().max_size):
            self._forget(group, call.member_id)
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if not group.supports(call.protocol_type, call.protocols):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    def _join_as_newcomer(self, group: ClassicGroup, call: JoinCall) -> JoinResult | asyncio.Future[JoinResult]:
        member_id = f"{call.instance_id if call.instance_id is not None else call.client_id}-{self._new_id()}"
        if call.instance_id is not None:
            if call.instance_id in group.static_members:
                return self._replace_static(group, call, member_id)
        elif call.needs_known_id:
            deadline = group.pending[member_id] = Deadline(self._loop, lambda: self._give_up_pending(group, member_id))
            deadline.set(call.session_timeout_ms)
            self._newcomers.add(deadline, len(member_id), lambda: self._give_up_pending(group, member_id))
            return JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id)
        return self._add(group, call, member_id)

    def _give_up_pending(self, group: ClassicGroup, member_id: str) -> None:
        self._forget_pending(group, member_id)
        self._complete_if_all_joined(group)
        if group.state is GroupState.EMPTY and group.generation == 0 and not group.pending:
            self._abandoned(group)

    def _forget_pending(self, group: ClassicGroup, member_id: str) -> bool:
        """Stop waiting for a new member to rejoin with its id; return whether it was pending."""
        deadline = group.pending.pop(member_id, None)
        if deadline is None:
            return False
        deadline.clear()
        self._newcomers.remove(deadline)
        return True

    def _add(self, group: ClassicGroup, call: JoinCall, member_id: str) -> asyncio.Future[JoinResult]:
        self._forget_pending(group, member_id)
        member = _member(call, member_id, is_new=True)
        if not group.members:
            group.protocol_type = call.protocol_type
        if group.state is GroupState.PREPARING_REBALANCE and group.came_from_empty:
            group.has_grown = True
        group.add(member)
        self._watch(group, member)
        assert member.session is not None
        member.session.set(_NEW_MEMBER_TIMEOUT_MS)
        future = member.joining = self._loop.create_future()
        sent_bytes = len(member_id) + len(call.client_id) + sum(len(one.metadata) for one in call.protocols)
        self._newcomers.add(
            member,
            sent_bytes,
            lambda: self._remove(group, [member], "was removed to bound the memory that new members use"),
        )
        self._rebalance_or_complete(group, f"{member_id} joined")
        return future

    def _join_again(
        self, group: ClassicGroup, call: JoinCall, member: Member
    ) -> JoinResult | asyncio.Future[JoinResult]:
        if group.state is GroupState.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        is_unchanged = member.protocols == call.protocols
        is_leader = member.member_id == group.leader
        if group.shown_state is GroupState.COMPLETING_REBALANCE and is_unchanged:
            # The member never got the response to its last join.
            return self._current_generation(group, member, with_members=is_leader)
        if group.state is GroupState.STABLE and is_unchanged and not is_leader:
            return self._current_generation(group, member, with_members=False)
        member.protocols = call.protocols
        member.rebalance_timeout_ms = call.rebalance_timeout_ms
        member.session_timeout_ms = call.session_timeout_ms
        member.answer_join(JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id))
        future = member.joining = self._loop.create_future()
        why = "the leader rejoined" if is_leader else f"{member.member_id} rejoined with different metadata"
        self._rebalance_or_complete(group, why)
        return future

    def _current_generation(self, group: ClassicGroup, member: Member, *, with_members: bool) -> JoinResult:
        self._keep_alive(member)
        return JoinResult(
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            leader=group.leader or UNKNOWN_MEMBER,
            member_id=member.member_id,
            members=group.joined_members() if with_members else (),
        )

    def _replace_static(
        self, group: ClassicGroup, call: JoinCall, new_id: str
    ) -> JoinResult | asyncio.Future[JoinResult]:
        """Replace a static member that is back under a new id, and fence its former id."""
        assert call.instance_id is not None
        old_id = group.static_members[call.instance_id]
        member = group.members[old_id]
        if group.shown_state is GroupState.STABLE and group.choose_protocol({old_id: call.protocols}) == group.protocol:
            return self._replace_settled(group, call, member, new_id)
        self._fence(member, old_id)
        group.replace_static(member, new_id)
        member.client_id, member.client_host = call.client_id, call.client_host
        member.protocols = call.protocols
        member.rebalance_timeout_ms = call.rebalance_timeout_ms
        member.session_timeout_ms = call.session_timeout_ms
        self._keep_alive(member)
        future = member.joining = self._loop.create_future()
        self._rebalance_or_complete(group, f"static member {call.instance_id} rejoined as {new_id}")
        return future

    def _fence(self, member: Member, old_id: str) -> None:
        member.answer_join(JoinResult(ErrorCode.FENCED_INSTANCE_ID, member_id=old_id))
        member.answer_sync(SyncResult(ErrorCode.FENCED_INSTANCE_ID))

    def _replace_settled(
        self, group: ClassicGroup, call: JoinCall, member: Member, new_id: str
    ) -> JoinResult | asyncio.Future[JoinResult]:
        """Give a static member its new id without a rebalance, once the journal has the new id."""
        old_id, old_leader = member.member_id, group.leader
        try:
            written = self._write(group, group.to_record_with(old_id, _member(call, new_id)))
        except KafkaError as error:
            return JoinResult(error.code, member_id=new_id)
        self._fence(member, old_id)
        member.protocols = call.protocols
        self._keep_alive(member)
        is_leader = group.leader == new_id
        result = JoinResult(
            generation=group.generation,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            # A member that cannot be told to skip the assignment must not learn that it leads: it would compute a new
            # assignment.
            leader=(group.leader if call.can_skip_assignment else old_leader) or UNKNOWN_MEMBER,
            member_id=new_id,
            members=group.joined_members() if is_leader and call.can_skip_assignment else (),
            skip_assignment=is_leader and call.can_skip_assignment,
        )
        if written is None:
            return result
        future: asyncio.Future[JoinResult] = self._loop.create_future()

        def finish(done: asyncio.Future[None]) -> None:
            if not future.done():
                error = _code_of(done)
                future.set_result(result if error is ErrorCode.NONE else JoinResult(error, member_id=new_id))

        written.add_done_callback(finish)
        return future

    # --- rebalancing

    def _rebalance_or_complete(self, group: ClassicGroup, why: str) -> None:
        if group.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(group)
        else:
            self._prepare_rebalance(group, why)

    def _complete_if_all_joined(self, group: ClassicGroup) -> None:
        # The first rebalance always waits for its full delay: more members are likely to join.
        if group.state is GroupState.PREPARING_REBALANCE and not group.came_from_empty and group.all_joined:
            self._complete_join(group)

    def _prepare_rebalance(self, group: ClassicGroup, why: str) -> None:
        """Start a rebalance: every member must rejoin."""
        if group.shown_state is GroupState.COMPLETING_REBALANCE:
            self._fail_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS)
        self._end_sync_phase(group)
        group.came_from_empty = group.state is GroupState.EMPTY
        group.has_grown = False
        self._enter(group, GroupState.PREPARING_REBALANCE)
        self._counters.rebalances += 1
        logger.info("group %s: rebalancing after generation %d: %s", group.group_id, group.generation, why)
        if group.came_from_empty:
            initial, timeout = self._settings().initial_rebalance_delay_ms, group.rebalance_timeout_ms
            self._wait_for_first(group, min(initial, timeout), max(timeout - initial, 0))
        elif group.all_joined:
            self._complete_join(group)
        else:
            self._complete_join_in(group, group.rebalance_timeout_ms)

    def _wait_for_first(self, group: ClassicGroup, delay_ms: int, remaining_ms: int) -> None:
        """Wait for more members of a new group: as long as members join, up to the rebalance timeout."""

        def look() -> None:
            if group.has_grown and remaining_ms > 0:
                group.has_grown = False
                delay = min(self._settings().initial_rebalance_delay_ms, remaining_ms)
                self._wait_for_first(group, delay, max(remaining_ms - delay, 0))
            else:
                self._complete_join(group)

        self._set_rebalance_deadline(group, delay_ms, look)

    def _complete_join_in(self, group: ClassicGroup, milliseconds: int) -> None:
        self._set_rebalance_deadline(group, milliseconds, lambda: self._complete_join(group))

    def _set_rebalance_deadline(self, group: ClassicGroup, milliseconds: int, action: Callable[[], None]) -> None:
        if group.rebalance is not None:
            group.rebalance.clear()
        group.rebalance = Deadline(self._loop, action)
        group.rebalance.set(milliseconds)

    def _complete_join(self, group: ClassicGroup) -> None:
        """Start the next generation with the members that have joined; keep static members that have not joined yet."""
        if group.rebalance is not None:
            group.rebalance.clear()
        for member in list(group.members.values()):
            if member.joining is None and member.instance_id is None:
                self._drop(group, member)
        if group.members and not group.elect_joined_leader():
            self._complete_join_in(group, max(group.rebalance_timeout_ms, _SHORTEST_REBALANCE_MS))
            return
        if not group.members:
            self._become_empty(group)
            return
        group.begin_generation()
        group.state_since_ms = self._clock.wall_ms()
        logger.info(
            "group %s: generation %d started with %d members, protocol %s",
            group.group_id,
            group.generation,
            len(group.members),
            group.protocol,
        )
        for member in list(group.members.values()):
            is_leader = member.member_id == group.leader
            group.owing_sync[member.member_id] = None
            member.is_new = False
            member.answer_join(self._current_generation(group, member, with_members=is_leader))
        generation = group.generation
        group.sync_deadline = Deadline(self._loop, lambda: self._sync_overdue(group, generation))
        group.sync_deadline.set(group.rebalance_timeout_ms)

    def _become_empty(self, group: ClassicGroup) -> None:
        """Make the group empty. Until the journal accepts that, new members join as if it were empty."""
        try:
            written = self._write(group, group.to_empty_record(self._clock.wall_ms()))
        except KafkaError as error:
            logger.warning(
                "group %s: cannot write the record that the group is empty: %s; retrying",
                group.group_id,
                error,
                extra={"repeats": "empty group not written"},
            )
            group.came_from_empty = True
            self._complete_join_in(group, _RETRY_MS)
            return
        logger.info("group %s: empty in generation %d", group.group_id, group.generation)
        if written is not None:
            written.add_done_callback(lambda done: self._log_failure(group, done))

    def _sync_overdue(self, group: ClassicGroup, generation: int) -> None:
        """Remove members that joined but never asked for their assignment."""
        if group.generation != generation or not group.owing_sync:
            return
        if group.state not in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return
        gone = [group.members[member_id] for member_id in group.owing_sync if member_id in group.members]
        for member in gone:
            self._drop(group, member)
        self._prepare_rebalance(group, f"{len(gone)} members never asked for their assignment")

    def _end_sync_phase(self, group: ClassicGroup) -> None:
        group.owing_sync.clear()
        if group.sync_deadline is not None:
            group.sync_deadline.clear()

    # --- assignments

    def sync(self, group: ClassicGroup, call: SyncCall) -> SyncResult | asyncio.Future[SyncResult]:
        """Return a member's assignment once the leader's assignment is in the journal."""
        if group.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = group.check_member(call.member_id, call.instance_id)
        if call.generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if call.protocol_type not in (None, group.protocol_type) or call.protocol not in (None, group.protocol):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group.state is GroupState.EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        if group.state is GroupState.PREPARING_REBALANCE:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        group.owing_sync.pop(member.member_id, None)
        self._newcomers.remove(member)
        if group.shown_state is GroupState.STABLE:
            self._keep_alive(member)
            return self._assignment(group, member)
        member.answer_sync(SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
        future = member.syncing = self._loop.create_future()
        if member.member_id == group.leader and not group.awaits_plan:
            self._take_plan(group, call.assignments)
        return future

    def _take_plan(self, group: ClassicGroup, assignments: Mapping[str, bytes]) -> None:
        plan = {member_id: assignments.get(member_id, b"") for member_id in group.members}
        generation = group.generation
        try:
            written = self._write(group, group.to_record(plan))
        except KafkaError as error:
            self._plan_failed(group, error.code)
            return
        # The group is stable by its record. Members learn of it only when nothing can undo that.
        group.awaits_plan = True
        if written is None:
            self._plan_committed(group)
            return

        def finish(done: asyncio.Future[None]) -> None:
            if not group.awaits_plan or group.state is not GroupState.STABLE or group.generation != generation:
                return
            error = _code_of(done)
            if error is ErrorCode.NONE:
                self._plan_committed(group)
            else:
                self._plan_failed(group, error)

        written.add_done_callback(finish)

    def _plan_committed(self, group: ClassicGroup) -> None:
        group.awaits_plan = False
        self._counters.completed_rebalances += 1
        for member in list(group.members.values()):
            if member.syncing is not None:
                self._keep_alive(member)
                member.answer_sync(self._assignment(group, member))

    def _plan_failed(self, group: ClassicGroup, error: ErrorCode) -> None:
        self._fail_syncs(group, error)
        self._prepare_rebalance(group, "the leader's assignment could not be written")

    def _assignment(self, group: ClassicGroup, member: Member) -> SyncResult:
        return SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)

    def _fail_syncs(self, group: ClassicGroup, error: ErrorCode) -> None:
        group.awaits_plan = False
        for member in group.members.values():
            member.assignment = b""
            if member.syncing is not None:
                self._keep_alive(member)
                member.answer_sync(SyncResult(error))

    # --- staying and leaving

    def heartbeat(self, group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Record that a member is alive; return REBALANCE_IN_PROGRESS if it must rejoin."""
        state = group.state
        if state is _DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        member = group.check_member(member_id, instance_id)
        if generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if state is _EMPTY:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        self._keep_alive(member)
        return ErrorCode.REBALANCE_IN_PROGRESS if state is _PREPARING_REBALANCE else _NONE

    def check_commit(self, group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> None:
        """Refuse an offset commit from a client outside this generation; a member's commit proves that it is alive."""
        if group.state is _DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if generation == NO_GENERATION and member_id == UNKNOWN_MEMBER and instance_id is None:
            if group.members:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            return  # a consumer that is not a group member stores its offsets here
        member = group.check_member(member_id, instance_id)
        if generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if group.state is _COMPLETING_REBALANCE or group.awaits_plan:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        self._keep_alive(member)

    def leave(self, group: ClassicGroup, identities: Sequence[Identity]) -> list[Left]:
        """Remove members that leave or that an administrator removes."""
        if group.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        left: list[Left] = []
        gone: list[Member] = []
        for identity in identities:
            try:
                member = self._leaving(group, identity)
                error = ErrorCode.NONE
                if member is not None:
                    gone.append(member)
            except KafkaError as refusal:
                error = refusal.code
            left.append(Left(identity.member_id, identity.instance_id, error))
        self._remove(group, gone, "left")
        return left

    def _leaving(self, group: ClassicGroup, identity: Identity) -> Member | None:
        if identity.instance_id is not None:
            current = group.static_members.get(identity.instance_id)
            if current is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            # An administrator may name a static member by its instance id alone.
            if identity.member_id not in (UNKNOWN_MEMBER, current):
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
            return group.members[current]
        if identity.member_id in group.pending:
            self._give_up_pending(group, identity.member_id)
            return None
        member = group.members.get(identity.member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def _session_ended(self, group: ClassicGroup, member: Member) -> None:
        if not member.is_new and (member.joining is not None or member.syncing is not None):
            self._keep_alive(member)  # the member waits for the coordinator, not the reverse
            return
        logger.info(
            "group %s: member %s sent no heartbeat for %d ms",
            group.group_id,
            member.member_id,
            member.session_timeout_ms,
        )
        self._remove(group, [member], "sent no heartbeat")

    def _remove(self, group: ClassicGroup, gone: Iterable[Member], how: str) -> None:
        names = [member.member_id for member in gone if member.member_id in group.members]
        if not names:
            return
        for name in names:
            self._drop(group, group.members[name])
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(group, f"{', '.join(names)} {how}")
        else:
            self._complete_if_all_joined(group)

    def _forget(self, group: ClassicGroup, member_id: str) -> None:
        """Remove a member that the full group has no room for."""
        member = group.members.get(member_id)
        if member is not None:
            self._remove(group, [member], "was removed because the group is full")

    def _drop(self, group: ClassicGroup, member: Member) -> None:
        if member.session is not None:
            member.session.clear()
        self._newcomers.remove(member)
        member.answer_join(JoinResult(ErrorCode.UNKNOWN_MEMBER_ID))
        member.answer_sync(SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
        group.remove(member)

    # --- timers and records

    def _watch(self, group: ClassicGroup, member: Member) -> None:
        member.session = Deadline(self._loop, lambda: self._session_ended(group, member))

    def _keep_alive(self, member: Member) -> None:
        if member.session is not None:
            member.session.set(member.session_timeout_ms)

    def _enter(self, group: ClassicGroup, state: GroupState) -> None:
        group.state = state
        group.state_since_ms = self._clock.wall_ms()

    def _write(self, group: ClassicGroup, value: GroupMetadataValue) -> asyncio.Future[None] | None:
        """Write the group's new state to the journal; if this returns, the state has changed; if it raises, it has not.

        Returns a future that ends when the record is committed, or None if it already is.
        """
        key = encode_key(GroupMetadataKey(group=group.group_id))
        return self._operations.write([(key, encode_value(value))], None)

    def _log_failure(self, group: ClassicGroup, done: asyncio.Future[None]) -> None:
        error = _code_of(done)
        if error is not ErrorCode.NONE:
            logger.warning("group %s: cannot commit its state: %s", group.group_id, error.name)


def _member(call: JoinCall, member_id: str, *, is_new: bool = False) -> Member:
    """Build the member that a join request describes."""
    return Member(
        member_id=member_id,
        instance_id=call.instance_id,
        client_id=call.client_id,
        client_host=call.client_host,
        rebalance_timeout_ms=call.rebalance_timeout_ms,
        session_timeout_ms=call.session_timeout_ms,
        protocols=call.protocols,
        is_new=is_new,
    )


def _code_of(done: asyncio.Future[None]) -> ErrorCode:
    error = error_of(done)
    if error is None:
        return ErrorCode.NONE
    return error.code if isinstance(error, KafkaError) else ErrorCode.UNKNOWN_SERVER_ERROR
