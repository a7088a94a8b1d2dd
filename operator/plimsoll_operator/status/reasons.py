"""The reasons of conditions and events. There are no others."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Reasons of conditions and events; docs/operations/operator.md says what to do about each."""

    READY = "Ready"
    STOPPED = "Stopped"
    INVALID_SPEC = "InvalidSpec"
    REJECTED = "Rejected"

    SCHEDULED = "Scheduled"
    WAITING_FOR_PODS = "WaitingForPods"
    UNSCHEDULABLE = "Unschedulable"
    EVICTED = "Evicted"
    NODE_LOST = "NodeLost"
    GROUP_NOT_PLACED = "GroupNotPlaced"
    GROUP_GIVEN_BACK = "GroupGivenBack"

    LOADED = "Loaded"
    LOADING = "Loading"
    GROUP_FORMING = "GroupForming"
    GROUP_FORMED = "GroupFormed"
    GROUP_LOST = "GroupLost"
    IMAGE_NOT_PULLED = "ImageNotPulled"
    CONTAINER_NOT_STARTED = "ContainerNotStarted"
    INVALID_OPTIONS = "InvalidOptions"
    MODEL_SOURCE_NOT_FOUND = "ModelSourceNotFound"
    MODEL_FETCH_FAILED = "ModelFetchFailed"
    MODEL_INVALID = "ModelInvalid"
    OUT_OF_MEMORY = "OutOfMemory"
    ENGINE_DIED = "EngineDied"
    DEVICE_FAILED = "DeviceFailed"
    CRASHED = "Crashed"

    ROUTABLE = "Routable"
    NO_READY_REPLICA = "NoReadyReplica"
    SERVED_NAME_TAKEN = "ServedNameTaken"
    SERVED_NAME_RESERVED = "ServedNameReserved"
    SERVED_NAME_KEPT = "ServedNameKept"
    SERVICE_NAME_TAKEN = "ServiceNameTaken"

    SETTLED = "Settled"
    SCALING = "Scaling"
    ROLLING = "Rolling"
    ROLLOUT_QUEUED = "RolloutQueued"
    MOVING = "Moving"
    CANARY = "Canary"
    PROMOTED = "Promoted"
    TAKEN_BACK = "TakenBack"
    FAILING = "Failing"
    PROGRESS_DEADLINE_EXCEEDED = "ProgressDeadlineExceeded"

    DRAINING = "Draining"
    REPORTING = "Reporting"
    WAITING_FOR_REPORT = "WaitingForReport"
    REPORT_REFUSED = "ReportRefused"
    UNREACHABLE = "Unreachable"

    IDLE = "Idle"
    SCALED_UP = "ScaledUp"
    SCALED_DOWN = "ScaledDown"
    SCALED_FROM_ZERO = "ScaledFromZero"
    SCALED_TO_ZERO = "ScaledToZero"
    SCALED_BY_DEMAND = "ScaledByDemand"

    ASLEEP = "Asleep"
    PLACING = "Placing"
    PLACED = "Placed"
    MOVED = "Moved"
    WOKEN = "Woken"
    REFUSED = "Refused"
    POOL_NOT_FOUND = "PoolNotFound"
    NO_HOSTS = "NoHosts"
    NO_DEVICE = "NoDevice"
    TOO_LARGE = "TooLarge"
    PINNED_BEYOND_LINE = "PinnedBeyondLine"
    GROUPS = "Groups"
    NO_ROOM = "NoRoom"
    WAITS_FOR_TURN = "WaitsForTurn"
    WAITS_FOR_ROOM = "WaitsForRoom"
    FAILED_LATELY = "FailedLately"
    CLAIM_NOT_MOUNTED = "ClaimNotMounted"
    NAMESPACE_NOT_ADMITTED = "NamespaceNotAdmitted"
    NAMESPACE_UNKNOWN = "NamespaceUnknown"
    SOURCE_NOT_ADMITTED = "SourceNotAdmitted"
    TOKEN_NOT_FOUND = "TokenNotFound"
    TOKEN_NOT_ALLOWED = "TokenNotAllowed"
    TOKEN_INVALID = "TokenInvalid"
    LOAD_FAILED = "LoadFailed"

    POD_CREATED = "PodCreated"
    POD_DELETED = "PodDeleted"
    SERVICE_APPLIED = "ServiceApplied"
    BUDGET_APPLIED = "BudgetApplied"
    BUDGET_DELETED = "BudgetDeleted"


EXIT_REASONS = {
    2: Reason.INVALID_OPTIONS,
    3: Reason.MODEL_SOURCE_NOT_FOUND,
    4: Reason.MODEL_INVALID,
    5: Reason.OUT_OF_MEMORY,
    6: Reason.ENGINE_DIED,
    8: Reason.DEVICE_FAILED,
    9: Reason.MODEL_FETCH_FAILED,
    10: Reason.INVALID_OPTIONS,
}
"""Reasons by exit code of the runtime (plimsoll_runtime.errors); a contract test compares them."""

NOT_PLACED = frozenset({Reason.UNSCHEDULABLE, Reason.EVICTED, Reason.NODE_LOST, Reason.GROUP_NOT_PLACED})
"""Failures of a pod or a group to get nodes that work."""

NOT_LOADED = frozenset(EXIT_REASONS.values()) | {
    Reason.IMAGE_NOT_PULLED,
    Reason.CONTAINER_NOT_STARTED,
    Reason.CRASHED,
}
"""Failures of a pod to load its model. The kubelet tries again with growing back-off until the cause is fixed."""

CALM = frozenset(
    {
        Reason.ASLEEP,
        Reason.GROUP_FORMING,
        Reason.GROUP_LOST,
        Reason.IDLE,
        Reason.LOADING,
        Reason.MOVING,
        Reason.NO_READY_REPLICA,
        Reason.PLACING,
        Reason.ROLLING,
        Reason.ROLLOUT_QUEUED,
        Reason.SCALED_BY_DEMAND,
        Reason.SCALING,
        Reason.STOPPED,
        Reason.WAITING_FOR_PODS,
        Reason.WAITING_FOR_REPORT,
    }
)
"""Reasons that need no attention: the state is temporary or intended."""
