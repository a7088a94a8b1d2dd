"""The owner of quotas: records how much of each every gateway may hold, and grants shares.

For each gateway the owner records the most that it may hold. A granted share counts immediately; a reclaimed share
counts until its holder reports that it has given it back. The shares therefore never sum to more than the quota,
whatever messages are lost, late or duplicated. The share of a gateway that is gone counts for a minute more, since it
may have been used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from plimsoll_gateway.admission.quota.usage import Kind
from plimsoll_gateway.admission.quota_sync.membership import GONE_SECONDS, SILENT_SECONDS
from plimsoll_gateway.admission.quota_sync.messages import Grant, Line, Reply, Report
from plimsoll_gateway.admission.quota_sync.split import even, split

LEARN_SECONDS = 2.0
"""A new owner of a quota raises no share until all gateways have reported, or this time has passed."""
SETTLE_SECONDS = 10.0
"""Time for which a new owner withholds streams without a known holder. Streams end with their gateway, and after this
time all gateways know the new owner.
"""
PARTED_SECONDS = GONE_SECONDS
"""A member that has been silent for this time may serve clients behind a network partition. It keeps its even share."""
FORGET_SECONDS = PARTED_SECONDS + GONE_SECONDS + 6.0
"""A member that has been silent for this time holds at most its even share: on its side of a partition the gateways
have given up the rest, and it has left their last minute. If there is no partition, the member has another owner.
"""
IDLE_PART = 100
"""One hundredth of a quota is kept for gateways without demand, so that their first requests are not refused."""
SEATS_TO_SPARE = 4
"""If the limit has this many streams for each gateway, each keeps one for its next request."""

Quota = tuple[str, Kind]
Order = Callable[[str], Sequence[str]]
LimitOf = Callable[[str, Kind], "int | None"]


class StaleReport(Exception):
    """A report that is older than one already received."""


@dataclass(slots=True)
class Claim:
    """The most one gateway may hold of a quota, with the usage and demand of its last report.

    `implied`: the gateway has not reported this quota; it holds its even share, or nothing if it has not joined.
    """

    held: int
    used: int
    want: int
    heard: float
    implied: bool = False


@dataclass(slots=True)
class Heard:
    """Data of a gateway's last report, apart from its quotas."""

    instance: str
    number: int
    joined: bool
    at: float


@dataclass(slots=True)
class Entry:
    """The owner's record of one quota.

    `kept` is an amount without a known holder, withheld while a gateway that is gone may have used it.
    """

    born: float
    spoken: float = 0.0  # when a gateway last treated us as the owner
    learning: bool = True
    kept: int = 0
    kept_until: float = 0.0
    claims: dict[str, Claim] = field(default_factory=dict)
    gone: list[tuple[int, float]] = field(
        default_factory=list
    )  # amounts held by gateways that are gone, and until when they count

    def withheld(self) -> int:
        """Return the amount that may not be granted although no gateway holds it."""
        return self.kept + sum(amount for amount, _ in self.gone)

    @property
    def quiet(self) -> bool:
        """Whether nothing is used, wanted or withheld, and the owner has learnt the shares of all gateways."""
        return not (
            self.learning or self.kept or self.gone or any(claim.used or claim.want for claim in self.claims.values())
        )


class QuotaOwner:
    """All quotas that other gateways treat us as the owner of, and that are not idle."""

    def __init__(self, limit_of: LimitOf, order: Order) -> None:
        """`limit_of`: returns the limit of a key in our own key files; None for an unknown key or no limit.

        `order`: returns the members, ranked for a key.
        """
        self._limit_of = limit_of
        self._order = order
        self._heard: dict[str, Heard] = {}
        self._entries: dict[Quota, Entry] = {}

    def hear(self, report: Report, now: float) -> None:
        """Record the shares, usage and demand of a gateway. Raises StaleReport."""
        before = self._heard.get(report.sender)
        if before is not None and before.instance == report.instance and report.number <= before.number:
            raise StaleReport(f"report {report.number} of {report.sender} arrived after report {before.number}")
        if before is not None and before.instance != report.instance:
            self._bury(report.sender)  # it was restarted, and has lost its usage
        self._heard[report.sender] = Heard(report.instance, report.number, report.joined, now)
        for line in report.lines:
            if self._limit_of(line.key, line.kind) is not None:
                entry = self._entry((line.key, line.kind), now)
                entry.claims[report.sender] = _claim(line, now)

    def _entry(self, quota: Quota, now: float) -> Entry:
        """Return the record of a quota. If another gateway was its owner for a while, it starts again in learning
        state.
        """
        entry = self._entries.get(quota)
        if entry is None or now - entry.spoken > SILENT_SECONDS:
            entry = self._entries[quota] = Entry(born=now, gone=[] if entry is None else entry.gone)
        entry.spoken = now
        return entry

    def reply(self, report: Report, instance: str, now: float) -> Reply:
        """Return the reply to a recorded report: grants for its sender, and the keys to forget."""
        said = {(line.key, line.kind) for line in report.lines}
        restless = {key for (key, _), entry in self._entries.items() if not entry.quiet}
        grants, uneven = [], set[str]()
        for quota, entry in list(self._entries.items()):
            limit = self._limit_of(*quota)
            order = self._order(quota[0])
            if limit is None or report.sender not in order:
                continue
            claim = entry.claims.get(report.sender)
            if quota not in said and claim is not None and not claim.implied:
                continue  # another gateway is its owner at the moment
            at = order.index(report.sender)
            grant = self._grant(quota, entry, limit, order, at, now)
            if grant is not None:
                grants.append(grant)
            claim = entry.claims.get(report.sender)
            if quota[0] in restless or (claim is not None and claim.held != even(limit, len(order), at)):
                uneven.add(quota[0])
        forget = {key for key, _ in said if key not in uneven}
        for quota in said:
            if quota[0] in forget and quota in self._entries:
                self._entries[quota].claims.pop(report.sender, None)
        return Reply(instance, report.number, tuple(grants), tuple(forget))

    def _grant(self, quota: Quota, entry: Entry, limit: int, order: Sequence[str], at: int, now: float) -> Grant | None:
        member, held = order[at], [self._held(entry, order, index, limit, now) for index in range(len(order))]
        self._learn(quota, entry, limit, held, order, now)
        share = held[at] if entry.learning else self._share(quota, entry, limit, order, at, held, now)
        claim = entry.claims.setdefault(member, Claim(held[at], 0, 0, now, implied=True))
        if claim.implied:
            claim.heard = now
            if share == held[at] and self._heard[member].joined:
                return None  # equals the share that it assumes
            claim.implied = False
        claim.held = max(claim.held, share)
        elsewhere = sum(other.used for name, other in entry.claims.items() if name != member)
        return Grant(*quota, share, elsewhere + sum(amount for amount, _ in entry.gone))

    def _share(
        self,
        quota: Quota,
        entry: Entry,
        limit: int,
        order: Sequence[str],
        at: int,
        held: Sequence[int],
        now: float,
    ) -> int:
        """Return the fair share of one gateway: reductions apply immediately, increases as far as the quota is free."""
        spared = _spared(quota[1], limit, len(order))
        parted = sum(held[index] for index, member in enumerate(order) if self._parted(member, now))
        wants = {
            index: max(spared, 0 if (claim := entry.claims.get(member)) is None else claim.want)
            for index, member in enumerate(order)
            if self._reports(member, now)
        }
        ours = sum(held[index] for index in wants)
        free = limit - entry.withheld() - sum(held)
        # Silent gateways keep their shares. The others reduce theirs for them only after the time for a partition.
        between = max(0, ours + free, min(ours, limit - parted))
        target = split(between, list(wants.values()))[list(wants).index(at)]
        return target if target <= held[at] else min(target, held[at] + max(0, free))

    def _reports(self, member: str, now: float) -> bool:
        heard = self._heard.get(member)
        return heard is not None and now - heard.at <= SILENT_SECONDS

    def _parted(self, member: str, now: float) -> bool:
        """Return whether a member may have another owner behind a partition, which grants it its even share."""
        heard = self._heard.get(member)
        return heard is not None and now - heard.at > PARTED_SECONDS

    def _held(self, entry: Entry, order: Sequence[str], at: int, limit: int, now: float) -> int:
        """Return the most that a gateway may hold, reported or not."""
        claim, fair = entry.claims.get(order[at]), even(limit, len(order), at)
        if claim is not None:
            return max(claim.held, fair) if self._parted(order[at], now) else claim.held
        heard = self._heard.get(order[at])
        return 0 if heard is not None and not heard.joined else fair

    def _learn(
        self, quota: Quota, entry: Entry, limit: int, held: Sequence[int], order: Sequence[str], now: float
    ) -> None:
        """End the learning state once all gateways have reported, or after LEARN_SECONDS.

        The holder of the remaining amount is unknown: the last owner may have died, or a gateway may not know the new
        owner yet. It is withheld for a while.
        """
        if not entry.learning:
            known = sum(claim.held for claim in entry.claims.values()) + sum(amount for amount, _ in entry.gone)
            entry.kept = min(entry.kept, max(0, limit - known))
            return
        if now - entry.born < LEARN_SECONDS and not all(
            member in self._heard and self._heard[member].at >= entry.born for member in order
        ):
            return
        entry.learning = False
        for member, amount in zip(order, held, strict=True):
            entry.claims.setdefault(member, Claim(amount, 0, 0, now, implied=True))
        entry.kept = max(0, limit - sum(held) - sum(amount for amount, _ in entry.gone))
        entry.kept_until = now + SETTLE_SECONDS if quota[1] is Kind.STREAMS else self._until_given_up(order, now)

    def _until_given_up(self, order: Sequence[str], now: float) -> float:
        """Return when an amount without a known holder has left the last minute of all gateways, also behind a
        partition.
        """
        silent = (
            self._heard[member].at for member in order if member in self._heard and not self._reports(member, now)
        )
        return max(now + GONE_SECONDS, *(at + FORGET_SECONDS for at in silent), 0.0)

    def tidy(self, members: Sequence[str], now: float) -> None:
        """Withhold what gateways that are not in `members` held, and remove what has expired."""
        claimants = {member for entry in self._entries.values() for member in entry.claims}
        for member in (claimants | self._heard.keys()) - set(members):
            self._bury(member)
            self._heard.pop(member, None)
        for quota, entry in list(self._entries.items()):
            entry.gone = [(amount, until) for amount, until in entry.gone if until > now]
            if entry.kept_until <= now:
                entry.kept = 0
            for member, claim in list(entry.claims.items()):
                if now - claim.heard > FORGET_SECONDS:
                    del entry.claims[member]
            if not entry.gone and all(claim.implied for claim in entry.claims.values()):
                del self._entries[quota]

    def _bury(self, member: str) -> None:
        """Withhold what a departed gateway held, since it may have been used. Its streams ended with it."""
        heard = self._heard.get(member)
        for (_, kind), entry in self._entries.items():
            claim = entry.claims.pop(member, None)
            if claim is not None and claim.held and kind is not Kind.STREAMS:
                last = claim.heard if heard is None else max(claim.heard, heard.at)
                entry.gone.append((claim.held, last + GONE_SECONDS))

    def entries(self) -> Iterator[tuple[Quota, Entry]]:
        """Yield all quotas that are not idle."""
        yield from self._entries.items()

    def check_integrity(self) -> None:
        """Raise AssertionError if a record is impossible."""
        for quota, entry in self._entries.items():
            assert entry.kept >= 0, f"{quota}: {entry.kept} is withheld"
            for member, claim in entry.claims.items():
                assert claim.implied or member in self._heard, f"{quota}: {member} has a claim but never reported"
                assert 0 <= claim.used <= claim.held, f"{quota}: {member} used {claim.used} of {claim.held}"


def _claim(line: Line, now: float) -> Claim:
    """Return the claim of a line. Responses may use more than was reserved: usage counts as held."""
    return Claim(max(line.held, line.used), line.used, max(line.want, line.used), now)


def _spared(kind: Kind, limit: int, members: int) -> int:
    """Return the share that a gateway without demand may keep."""
    if kind is Kind.STREAMS:
        return int(limit >= SEATS_TO_SPARE * members)
    return limit // (IDLE_PART * members)
